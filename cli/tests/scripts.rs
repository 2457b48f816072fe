//! The start scripts of the image: they parse, and the supervisor that they share
//! ends everything when one daemon ends or when it is asked to.

// Helpers of tests are tests too, which the lint can't see.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/scripts")
}

#[test]
fn all_parse() {
    let mut seen = 0;
    for entry in std::fs::read_dir(scripts()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            let status = Command::new("sh").arg("-n").arg(&path).status().unwrap();
            assert!(status.success(), "{}", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

/// Two "daemons" that print their pid and wait; `stop` ends them by their pid files.
const MAIN: &str = r#"
set -eu
. "$1/supervise.sh"
cd "$2"
stop() { end one.pid; end two.pid; }
for name in one two; do
    run "$name" sh -c 'echo $$ > '$name'.pid; echo '$name' $$; exec sleep 600'
done
supervise stop
"#;

struct Supervised {
    child: Child,
    daemons: Vec<String>,
    _folder: tempfile::TempDir,
}

fn start() -> Supervised {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", MAIN, "main"])
        .arg(scripts())
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let mut daemons: Vec<String> = lines.map(|line| line.unwrap()).collect();
    daemons.sort();
    let daemons = daemons.iter().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
    Supervised { child, daemons, _folder: folder }
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", signal, pid]).status().unwrap().success());
}

fn gone(pid: &str) -> bool {
    // Reaped, or a zombie for a moment: no command line either way.
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty())
}

#[test]
fn asked_to_end_it_ends_well() {
    let mut it = start();
    signal("TERM", &it.child.id().to_string());
    assert_eq!(it.child.wait().unwrap().code(), Some(0));
    assert!(it.daemons.iter().all(|pid| gone(pid)));
}

#[test]
fn one_daemons_end_ends_all_with_an_error() {
    let mut it = start();
    signal("KILL", &it.daemons[1]);
    assert_eq!(it.child.wait().unwrap().code(), Some(1));
    assert!(it.daemons.iter().all(|pid| gone(pid)));
}
