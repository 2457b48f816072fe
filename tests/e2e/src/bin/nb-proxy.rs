//! A proxy in front of an OVSDB server that counts requests.
//!
//! A transaction that changes nothing shows in no log and in no file of the
//! server, so the only way to prove that a controller is silent is to stand
//! between the two. Bytes pass through untouched and at once; a copy of what the
//! client sends is parsed, and every `transact` is appended to a file as one line
//! of JSON (its parameters), with the arrival time in front.
//!
//! Usage: `nb-proxy LISTEN UPSTREAM LOGFILE`, for instance
//! `nb-proxy 172.30.0.11:16641 172.30.0.11:6641 /tmp/transactions`.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

/// Hands every chunk it reads to the upstream before its reader sees it.
struct Tee {
    from: TcpStream,
    to: TcpStream,
}

impl Read for Tee {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        self.to.write_all(&buffer[..n])?;
        Ok(n)
    }
}

fn serve(client: TcpStream, upstream: &str, log: &str) -> io::Result<()> {
    let server = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut down_from, mut down_to) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut down_from, &mut down_to);
        let _ = down_to.shutdown(Shutdown::Both);
    });
    let (client_end, server_end) = (client.try_clone()?, server.try_clone()?);
    let tee = Tee { from: client, to: server };
    let mut out = OpenOptions::new().create(true).append(true).open(log)?;
    for document in serde_json::Deserializer::from_reader(tee).into_iter::<serde_json::Value>() {
        let Ok(document) = document else { break };
        if document["method"] == "transact" {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
            writeln!(out, "{now} {}", document["params"])?;
        }
    }
    let _ = client_end.shutdown(Shutdown::Both);
    let _ = server_end.shutdown(Shutdown::Both);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, listen, upstream, log] = arguments.as_slice() else {
        anyhow::bail!("usage: nb-proxy LISTEN UPSTREAM LOGFILE");
    };
    OpenOptions::new().create(true).append(true).open(log)?;
    let listener = TcpListener::bind(listen)?;
    for client in listener.incoming() {
        let (client, upstream, log) = (client?, upstream.clone(), log.clone());
        std::thread::spawn(move || {
            if let Err(error) = serve(client, &upstream, &log) {
                eprintln!("nb-proxy: {error}");
            }
        });
    }
    Ok(())
}
