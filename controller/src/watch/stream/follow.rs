//! Following a watch: from the bytes of its answer to inputs.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::wire::{Line, VersionOnly, escape};
use super::super::{WINDOW, WINDOW_GRACE, fingerprint};
use super::{Closed, HEAD_TIMEOUT, LINE_LIMIT, Stop, Watch, key};
use crate::facts::ObjectRef;
use crate::io::Input;
use crate::kube_io::client::ApiError;
use crate::objects::Object;

impl Watch {
    /// Watches for one window.
    pub(super) async fn follow(&mut self) -> Result<(), Stop> {
        let version = self.version.clone().unwrap_or_default();
        // Spread, so that 28 watches do not start again in the same moment for ever.
        let window = WINDOW.mul_f64(rand::random_range(0.7..=1.0));
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            self.resource.collection(),
            escape(&version),
            window.as_secs()
        );
        let started = Instant::now();
        let body = self.api.stream(&path, HEAD_TIMEOUT).await?;
        let deadline = Instant::now() + window + WINDOW_GRACE;
        match tokio::time::timeout_at(deadline, self.read(body)).await {
            Err(_) => Err(ApiError::Timeout(window + WINDOW_GRACE).into()),
            Ok(Err(Stop::Window)) if started.elapsed() < Duration::from_secs(1) => {
                // A server that ends watches at once (it is shutting down) must not be asked in a loop.
                Err(ApiError::Transport("the watch was ended at once".to_owned()).into())
            }
            Ok(result) => result,
        }
    }

    /// Reads event lines until the stream ends.
    async fn read(&mut self, mut body: Body) -> Result<(), Stop> {
        let kind = self.resource.kind;
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            match body.frame().await {
                None => break,
                Some(Err(error)) => {
                    return Err(ApiError::Transport(crate::kube_io::client::chain(&error)).into());
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.statuses.with(kind, |status| status.proof = Some(Instant::now()));
                    // What works is no failure any more, even if the window ends badly.
                    self.recovered();
                    // Whole lines only; what is left of the last one waits for the next frame.
                    let mut rest: &[u8] = &data;
                    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                        let (line, tail) = rest.split_at(end);
                        rest = tail.get(1..).unwrap_or_default();
                        if buffer.is_empty() {
                            self.line(line).await?;
                        } else {
                            buffer.extend_from_slice(line);
                            let line = std::mem::take(&mut buffer);
                            self.line(&line).await?;
                        }
                    }
                    buffer.extend_from_slice(rest);
                    if buffer.len() > LINE_LIMIT {
                        return Err(ApiError::Decode("an endless event".to_owned()).into());
                    }
                    self.publish_content();
                }
            }
        }
        self.statuses.with(kind, |status| status.proof = Some(Instant::now()));
        if buffer.is_empty() {
            Err(Stop::Window)
        } else {
            Err(ApiError::Transport("the watch was cut".to_owned()).into())
        }
    }

    /// Handles one event.
    async fn line(&mut self, line: &[u8]) -> Result<(), Stop> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let event: Line<'_> =
            serde_json::from_slice(line).map_err(|error| ApiError::Decode(format!("event: {error}")))?;
        let json = event.object.get();
        match event.r#type {
            "ADDED" | "MODIFIED" => {
                match self.decoder.object(json) {
                    Ok(object) => {
                        self.reached(object.meta().resource_version.to_string());
                        self.apply(object).await?;
                    }
                    Err(bad) => {
                        self.skip(&bad);
                        if let Ok(meta) = self.decoder.metadata(json) {
                            self.reached(meta.resource_version.to_string());
                        }
                    }
                }
                self.count();
            }
            "DELETED" => {
                match self.decoder.metadata(json) {
                    Ok(meta) => {
                        self.reached(meta.resource_version.to_string());
                        self.delete(meta.namespace, meta.name).await?;
                    }
                    Err(bad) => self.skip(&bad),
                }
                self.count();
            }
            "BOOKMARK" => {
                let bookmark: VersionOnly = serde_json::from_str(json)
                    .map_err(|error| ApiError::Decode(format!("bookmark: {error}")))?;
                self.reached(bookmark.metadata.resource_version);
            }
            "ERROR" => {
                #[derive(Default, Deserialize)]
                #[serde(default)]
                struct Code {
                    code: u16,
                }
                let code = serde_json::from_str::<Code>(json).unwrap_or_default().code;
                return Err(ApiError::from_answer(code, json.as_bytes()).into());
            }
            other => return Err(ApiError::Decode(format!("event of type {other}")).into()),
        }
        Ok(())
    }

    fn count(&self) {
        self.statuses.with(self.resource.kind, |status| status.events += 1);
    }

    fn reached(&mut self, version: String) {
        if !version.is_empty() {
            self.statuses.with(self.resource.kind, |status| status.version.clone_from(&version));
            self.version = Some(version);
        }
    }

    async fn apply(&mut self, mut object: Object) -> Result<(), Closed> {
        if let Some(old) = self.objects.get(&key(&object)) {
            object.share_with(old);
        }
        let new = fingerprint(object.meta());
        let old = self.objects.insert(key(&object), object.clone());
        if let Some(old) = &old {
            let old = fingerprint(old.meta());
            if old == new {
                return Ok(());
            }
            self.checksum = self.checksum.wrapping_sub(old);
        }
        self.checksum = self.checksum.wrapping_add(new);
        self.send(Input::Applied(object)).await
    }

    async fn delete(&mut self, namespace: Arc<str>, name: Arc<str>) -> Result<(), Closed> {
        let kind = self.resource.kind;
        if let Some(old) = self.objects.remove(&(namespace.clone(), name.clone())) {
            self.checksum = self.checksum.wrapping_sub(fingerprint(old.meta()));
        }
        self.send(Input::Deleted(ObjectRef { kind, namespace, name })).await
    }
}
