//! `cni-bench` measures whoever's executable: here the reference plugin `ptp`
//! with `host-local`, on a node that is a namespace of its own. Needs root and
//! `WEIR_CNI_TOOLS` (`make tools`, `lab cni-tools`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sched::{CloneFlags, unshare};
use serde_json::json;

/// Runs the program in a network namespace that ends with it.
fn bench(arguments: Vec<String>) -> Output {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        Command::new(env!("CARGO_BIN_EXE_cni-bench")).args(arguments).output().unwrap()
    };
    std::thread::spawn(run).join().unwrap()
}

fn tools() -> PathBuf {
    std::env::var_os("WEIR_CNI_TOOLS").expect("WEIR_CNI_TOOLS names the folder of `lab cni-tools`").into()
}

/// A node's configuration of `ptp`; leases are kept in `folder`.
fn configuration(folder: &Path) -> PathBuf {
    let list = json!({
        "cniVersion": "1.0.0", "name": "other", "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local", "dataDir": folder.join("leases"),
                "ranges": [[{"subnet": "10.77.0.0/24", "gateway": "10.77.0.1"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    let file = folder.join("10-other.conflist");
    std::fs::write(&file, list.to_string()).unwrap();
    file
}

fn arguments(folder: &Path, more: &[&str]) -> Vec<String> {
    let plugin = tools().join("ptp");
    let configuration = configuration(folder);
    let mut arguments = vec![
        "--plugin".to_owned(),
        plugin.display().to_string(),
        "--configuration".to_owned(),
        configuration.display().to_string(),
    ];
    arguments.extend(more.iter().map(|text| (*text).to_owned()));
    arguments
}

/// Addresses that the plugin has given out and not got back.
fn leases(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder.join("leases/other")) else { return Vec::new() };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

/// The fields of the table's line `name`: calls first, failures last.
fn line(text: &str, name: &str) -> Vec<f64> {
    let line = text.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect(text);
    line.split('|').filter_map(|field| field.trim().parse().ok()).collect()
}

#[test]
fn other_plugins_are_measured_one_by_one_and_at_once() {
    for (how, add) in [(None, "ADD one by one"), (Some("--parallel"), "ADD at once")] {
        let folder = tempfile::tempdir().unwrap();
        let mut more: Vec<&str> = how.into_iter().collect();
        more.extend(["--ping", "10.77.0.1", "web/a", "web/b", "web/c"]);
        let output = bench(arguments(folder.path(), &more));
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}{errors}");
        for name in [add, "DEL"] {
            let fields = line(&text, name);
            assert_eq!((fields.first(), fields.last()), (Some(&3.0), Some(&0.0)), "{text}");
            // No process starts, makes a pair of links and ends within a tenth of a millisecond.
            assert!(fields[1] > 0.1, "{text}");
        }
        assert!(leases(folder.path()).is_empty(), "DEL gave everything back");
    }
}

#[test]
fn what_stays_is_left_to_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(arguments(folder.path(), &["--keep", "web/a", "web/b"]));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("| DEL |"), "{text}");
    assert_eq!(leases(folder.path()).len(), 2);
}

#[test]
fn a_ping_without_an_answer_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody has this address; the way there is the default route.
    let output = bench(arguments(folder.path(), &["--ping", "10.77.0.250", "web/a"]));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "{text}");
    assert_eq!(line(&text, "ADD one by one").last(), Some(&1.0), "{text}");
    assert!(errors.contains("10.77.0.250"), "{errors}");
    assert!(leases(folder.path()).is_empty(), "it is deleted all the same");
}
