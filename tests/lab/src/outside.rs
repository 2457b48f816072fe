//! The outside host: a machine that is in no cluster and shares both of the
//! nodes' networks. It is what "the world" is to a lab.
//!
//! In: HTTP requests on port 80. Out: what it saw. `GET /` answers with one
//! line, the address that the request came from; `GET /blob?BYTES` with that
//! many bytes of a known pattern, `POST /` with the body's length and hash.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::cache::hex;
use crate::control;
use crate::plan::{HOST_OUTSIDE, Net};
use crate::run::command;
use crate::state::Lab;

/// The port it serves on.
pub const PORT: u16 = 80;
/// The largest body that it makes or takes.
const LIMIT: usize = 64 << 20;

/// Starts the outside host's server (once).
pub fn start(lab: &Lab) -> Result<()> {
    let mut serve = command(&lab.program().to_string_lossy(), ["outside-serve"]);
    control::launch(lab, "outside", "out", "out", &mut serve)
}

/// The outside host's addresses on the management network.
pub fn addresses(lab: &Lab) -> Vec<IpAddr> {
    lab.plan.addresses(Net::Management, HOST_OUTSIDE)
}

/// The hidden subcommand `lab outside-serve`: serves until it is ended.
pub fn serve() -> Result<()> {
    // One socket for both families; IPv4 clients appear as mapped addresses.
    let listener = TcpListener::bind(("::", PORT)).context("cannot listen")?;
    println!("serving on port {PORT}");
    for connection in listener.incoming() {
        match connection {
            Ok(stream) => {
                thread::spawn(move || {
                    if let Err(error) = answer(&stream) {
                        println!("request failed: {error:#}");
                    }
                });
            }
            Err(error) => {
                println!("accept: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
    Ok(())
}

fn answer(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let peer = stream.peer_addr()?.ip().to_canonical();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.by_ref().take(8192).read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.by_ref().take(8192).read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>()?.min(LIMIT);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    println!("{peer}: {}", first.trim());
    let body = match first.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["POST", ..] => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            format!("{length} {}\n", hex(&Sha256::digest(&body))).into_bytes()
        }
        ["GET", path, ..] => match path.strip_prefix("/blob?") {
            Some(size) => blob(size.parse::<usize>()?.min(LIMIT)),
            None => format!("{peer}\n").into_bytes(),
        },
        _ => Vec::new(),
    };
    let mut stream = stream;
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)?;
    Ok(())
}

/// `size` bytes of a pattern without short repetitions, so that a swapped or
/// missing packet changes the hash.
pub fn blob(size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 8);
    let mut number = 0_u32;
    while bytes.len() < size {
        bytes.extend_from_slice(format!("{number:07}\n").as_bytes());
        number = number.wrapping_add(1);
    }
    bytes.truncate(size);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind(("::1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let serving = thread::spawn(move || answer(&server).unwrap());
        client.write_all(request).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        serving.join().unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    #[test]
    fn it_tells_who_asked_and_what_came() {
        assert_eq!(ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "::1\n");
        assert_eq!(ask(b"GET /blob?12 HTTP/1.0\r\n\r\n"), "0000000\n0000");
        let said = ask(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc");
        assert!(said.starts_with("3 ba7816bf"), "{said}");
    }
}
