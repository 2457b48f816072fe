//! Frames that no honest kernel would send, put on a pod's wire, and what of
//! them arrives in another pod.
//!
//! In: two pods and frames. Out: which frames came. The program `frames` sends
//! and listens inside the pods' network namespaces.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::checks::probe::PodView;
use lab::node;
use lab::progress::{Look, wait_for};
use lab::run::{capture, command};

use crate::cluster::{Cluster, PATIENCE};
use crate::flow;

/// A hardware address.
pub type Mac = [u8; 6];

/// A frame with a UDP datagram that holds `mark`; its checksum is right.
///
/// Errors: the addresses are of two families.
pub fn udp(macs: (Mac, Mac), ips: (IpAddr, IpAddr), mark: &str) -> Result<Vec<u8>> {
    let mut datagram = Vec::new();
    let length = u16::try_from(8 + mark.len())?;
    for field in [40_000, 40_001, length, 0] {
        datagram.extend_from_slice(&u16::to_be_bytes(field));
    }
    datagram.extend_from_slice(mark.as_bytes());
    let mut frame = ethernet(macs, if ips.0.is_ipv4() { 0x0800 } else { 0x86dd });
    match ips {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame.extend(ipv4(from, to, length)),
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let sum = checksum(&[&from.octets(), &to.octets(), &[0, 17], &length.to_be_bytes(), &datagram]);
            datagram.splice(6..8, sum.to_be_bytes());
            frame.extend_from_slice(&[0x60, 0, 0, 0]);
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&[17, 64]);
            frame.extend_from_slice(&from.octets());
            frame.extend_from_slice(&to.octets());
        }
        (from, to) => bail!("{from} and {to} are of two families"),
    }
    frame.extend(datagram);
    Ok(frame)
}

/// An ARP answer that tells `macs.1` (of `told`) that `claimed` is at `macs.0`.
pub fn arp_answer(macs: (Mac, Mac), claimed: Ipv4Addr, told: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(macs, 0x0806);
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend_from_slice(&macs.0);
    frame.extend_from_slice(&claimed.octets());
    frame.extend_from_slice(&macs.1);
    frame.extend_from_slice(&told.octets());
    frame
}

/// The same for IPv6: an unsolicited neighbour advertisement.
pub fn nd_answer(macs: (Mac, Mac), claimed: Ipv6Addr, told: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend_from_slice(&claimed.octets());
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&macs.0);
    let length = [0, 32];
    let sum = checksum(&[&claimed.octets(), &told.octets(), &[0, 58], &length, &message]);
    message.splice(2..4, sum.to_be_bytes());
    let mut frame = ethernet(macs, 0x86dd);
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
    frame.extend_from_slice(&claimed.octets());
    frame.extend_from_slice(&told.octets());
    frame.extend(message);
    frame
}

fn ethernet((from, to): (Mac, Mac), kind: u16) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes()[..]].concat()
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, payload: u16) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&(20 + payload).to_be_bytes());
    header.extend_from_slice(&[0, 1, 0, 0, 64, 17, 0, 0]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    let sum = checksum(&[&header]);
    header.splice(10..12, sum.to_be_bytes());
    header
}

/// The Internet checksum over pieces (all but the last of even length).
fn checksum(pieces: &[&[u8]]) -> u16 {
    let bytes = pieces.concat();
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Reads `0a:58:…`.
pub fn mac(text: &str) -> Result<Mac> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    bytes.try_into().map_err(|_| anyhow::anyhow!("{text} is no hardware address"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `frames` in the network namespace of a pod.
fn inside(cluster: &Cluster, pod: &PodView, arguments: &[String]) -> Result<std::process::Command> {
    let on = cluster.lab.node(&pod.node)?;
    // Seen from the machine, the node's link /var/run would lead to the machine's own /run.
    let netns = flow::netns(cluster, &on, pod)?.replace("/var/run/", "/run/");
    let netns = node::path_in(&cluster.lab, &on, &netns)?;
    let mut enter = command("nsenter", [format!("--net={}", netns.display())]);
    enter.arg(program()?).args(arguments);
    Ok(enter)
}

fn program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own.ancestors().map(|folder| folder.join("frames")).find(|path| path.is_file());
    found.context("no program frames beside this test: `make e2e` builds it")
}

struct Listener {
    child: Child,
    heard: File,
}

impl Listener {
    fn start(cluster: &Cluster, pod: &PodView) -> Result<Self> {
        let heard = tempfile::tempfile()?;
        let mut listen = inside(cluster, pod, &["listen".into()])?;
        let child = listen.stdin(Stdio::null()).stdout(heard.try_clone()?).spawn()?;
        let mut listener = Self { child, heard };
        wait_for("the listener", Duration::from_secs(20), || {
            let text = listener.text()?;
            Ok(if text.starts_with("listening") { Look::Ready(()) } else { Look::NotYet(text) })
        })?;
        Ok(listener)
    }

    fn text(&mut self) -> Result<String> {
        let mut text = String::new();
        self.heard.seek(SeekFrom::Start(0))?;
        self.heard.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `frames` and then `last` from one pod and tells which of `frames` came
/// to the other. `last` must be one that passes: once it is there, what was
/// sent before and is not there was dropped.
pub fn arrived(
    cluster: &Cluster,
    from: &PodView,
    to: &PodView,
    frames: &[Vec<u8>],
    last: &[u8],
) -> Result<Vec<bool>> {
    let mut listener = Listener::start(cluster, to)?;
    let mut arguments = vec!["send".to_owned(), "eth0".to_owned()];
    // Three times each: a shared machine loses one now and then.
    for _ in 0..3 {
        arguments.extend(frames.iter().map(|frame| hex(frame)));
    }
    arguments.push(hex(last));
    wait_for("the last frame", PATIENCE, || {
        capture(&mut inside(cluster, from, &arguments)?)?;
        std::thread::sleep(Duration::from_millis(300));
        let came = listener.text()?.contains(&hex(last));
        Ok(if came { Look::Ready(()) } else { Look::NotYet("the frame that must pass did not come".into()) })
    })?;
    let text = listener.text()?;
    Ok(frames.iter().map(|frame| text.contains(&hex(frame))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_right_checksums() {
        let macs = (mac("0a:58:00:00:00:01").unwrap(), mac("0a:58:00:00:00:02").unwrap());
        let v4 = udp(macs, ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()), "odd").unwrap();
        assert_eq!(v4.len(), 14 + 20 + 8 + 3);
        assert_eq!(checksum(&[&v4[14..34]]), 0, "a right header sums up to nothing");
        let v6 = udp(macs, ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()), "even").unwrap();
        let sum = checksum(&[&v6[22..54], &[0, 17], &[0, 12], &v6[54..]]);
        assert_eq!(sum, 0);
        let nd = nd_answer(macs, "fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert_eq!(checksum(&[&nd[22..54], &[0, 58], &[0, 32], &nd[54..]]), 0);
        assert!(udp(macs, ("10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap()), "").is_err());
        assert!(mac("0a:58").is_err());
    }
}
