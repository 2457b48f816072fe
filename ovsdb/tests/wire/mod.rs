//! What the parity tests share: a client that knows nothing but JSON, and a
//! generator of requests, right and wrong ones.

#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod requests;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ovsdb::framer::Framer;
use serde_json::{Value as Json, json};

/// A connection to a server's unix socket.
pub struct Client {
    stream: UnixStream,
    framer: Framer,
    next_id: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, framer: Framer::new(1 << 30), next_id: 1 }
    }

    pub fn send(&mut self, method: &str, params: &Json) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.notify(&json!({"id": id, "method": method, "params": params}));
        id
    }

    pub fn notify(&mut self, message: &Json) {
        self.stream.write_all(message.to_string().as_bytes()).unwrap();
    }

    /// The next message; `None` once the server has hung up.
    pub fn receive(&mut self) -> Option<Json> {
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some(message) = self.framer.next_message().unwrap() {
                return Some(serde_json::from_slice(&message).unwrap());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.framer.push(&chunk[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("no answer: {e}"),
            }
        }
    }

    /// A request's notifications and reply (without its id); a lost connection is `None`.
    pub fn call(&mut self, method: &str, params: &Json) -> (Vec<Json>, Option<Json>) {
        let id = self.send(method, params);
        let mut notifications = Vec::new();
        loop {
            match self.receive() {
                None => return (notifications, None),
                Some(mut message) if message["id"] == id => {
                    let reply = match message["error"].take() {
                        Json::Null => message["result"].take(),
                        error => json!({"rpc error": error_name(&error)}),
                    };
                    return (notifications, Some(reply));
                }
                Some(message) => notifications.push(message),
            }
        }
    }

    /// What came since the last call.
    pub fn sync(&mut self) -> Vec<Json> {
        self.call("echo", &json!([])).0
    }
}

/// The name of an error: explanations differ.
pub fn error_name(error: &Json) -> Json {
    error.get("error").unwrap_or(error).clone()
}

/// UUIDs that the two servers chose for the same row: ours by theirs and back.
#[derive(Default)]
pub struct Names {
    ours: BTreeMap<String, String>,
    theirs: BTreeMap<String, String>,
}

impl Names {
    pub fn same(&mut self, theirs: &str, ours: &str) {
        self.ours.insert(theirs.to_owned(), ours.to_owned());
        self.theirs.insert(ours.to_owned(), theirs.to_owned());
    }
    /// The same request for our server.
    pub fn to_ours(&self, json: &Json) -> Json {
        rename(json, &self.ours)
    }
    /// An answer of our server as the other would give it.
    pub fn to_theirs(&self, json: &Json) -> Json {
        rename(json, &self.theirs)
    }
}

fn rename(json: &Json, names: &BTreeMap<String, String>) -> Json {
    let other = |text: &String| names.get(text).unwrap_or(text).clone();
    match json {
        Json::String(text) => Json::String(other(text)),
        Json::Array(items) => items.iter().map(|item| rename(item, names)).collect(),
        Json::Object(map) => {
            Json::Object(map.iter().map(|(key, value)| (other(key), rename(value, names))).collect())
        }
        other => other.clone(),
    }
}

/// One notation for equal values: sets, maps and rows sorted, whole reals as integers,
/// versions left out, only the names of errors.
pub fn canonical(json: &Json) -> Json {
    match json {
        Json::Array(items) => {
            let mut items: Vec<Json> = items.iter().map(canonical).collect();
            if let [Json::String(tag), Json::Array(inner)] = items.as_mut_slice()
                && (tag == "set" || tag == "map")
            {
                inner.sort_by_key(Json::to_string);
            }
            Json::Array(items)
        }
        Json::Object(map) => {
            let mut out = serde_json::Map::new();
            for (key, value) in map {
                let value = match (key.as_str(), canonical(value)) {
                    ("_version" | "details" | "syntax", _) => continue,
                    ("rows", Json::Array(mut rows)) => {
                        rows.sort_by_key(Json::to_string);
                        Json::Array(rows)
                    }
                    (_, value) => value,
                };
                out.insert(key.clone(), value);
            }
            Json::Object(out)
        }
        Json::Number(number) => match number.as_f64() {
            Some(real) if number.as_i64().is_none() && real.fract() == 0.0 && real.abs() < 1e15 => {
                json!(real as i64)
            }
            _ => json.clone(),
        },
        other => other.clone(),
    }
}

/// Notifications by monitor: between monitors there is no order.
pub fn by_monitor(notifications: &[Json]) -> BTreeMap<String, Vec<Json>> {
    let mut out: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for notification in notifications {
        let mut notification = canonical(notification);
        let name = format!("{} {}", notification["method"], notification["params"][0]);
        if notification["method"] == "update3" {
            // Transaction ids are each server's own.
            notification["params"][1] = Json::Null;
        }
        out.entry(name).or_default().push(notification);
    }
    out
}
