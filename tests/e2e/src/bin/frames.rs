//! Sends raw frames from, and listens on, the network namespace that it is
//! started in.
//!
//! Usage: `frames send INTERFACE HEX...`, each a whole Ethernet frame;
//! `frames listen` prints `listening` and then a line of hex for each frame of
//! any interface, until it is ended.

use std::error::Error;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn packets() -> Result<OwnedFd> {
    let (family, kind) = (AddressFamily::Packet, SockType::Raw);
    Ok(socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?)
}

/// The link-layer address of an interface of this namespace.
fn link(name: &str) -> Result<LinkAddr> {
    let found = getifaddrs()?
        .filter(|entry| entry.interface_name == name)
        .find_map(|entry| entry.address?.as_link_addr().copied());
    found.ok_or_else(|| format!("no interface {name}").into())
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2).map(|at| hex.get(at..at + 2).ok_or("an odd number of digits"));
    pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["send", interface, frames @ ..] => {
            let socket = packets()?;
            bind(socket.as_raw_fd(), &link(interface)?)?;
            for frame in frames {
                send(socket.as_raw_fd(), &bytes(frame)?, MsgFlags::empty())?;
            }
            Ok(())
        }
        ["listen"] => {
            let socket = packets()?;
            let mut output = std::io::stdout();
            writeln!(output, "listening")?;
            let mut frame = vec![0; 65_536];
            loop {
                let length = recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty())?;
                let hex: String = frame[..length].iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(output, "{hex}")?;
            }
        }
        _ => Err("usage: frames send INTERFACE HEX... | frames listen".into()),
    }
}
