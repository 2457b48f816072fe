//! A containerd's whole store with all images in it, made once and shared by
//! nodes: importing 300 MB into each node takes longer than all the rest of a
//! start.
//!
//! In: image archives. Out: a folder in the cache, and node folders that hold
//! hard links to it. Safe, since containerd never changes a blob or the files
//! of a committed snapshot (containers write to layers of their own above
//! them); its databases, which do change, are copied.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cache::{Cache, Key, remove};
use crate::progress::{Look, quiet_step, say, wait_for};
use crate::run::{capture, check, command, run};

/// Cache kind of seeds.
const KIND: &str = "containerd-seed";
/// Databases that containerd writes to, below its root.
const DATABASES: &[&str] =
    &["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"];

/// The seed that holds exactly these archives; made when it is missing, from
/// the newest other one where possible (most layers stay the same).
pub fn ensure(cache: &Cache, archives: &[PathBuf]) -> Result<PathBuf> {
    let version = capture(&mut command("containerd", ["--version"]))?;
    let mut key = Key::default().text("containerd", version.trim());
    for archive in archives {
        // Archives are named by what is in them.
        let folder = archive.parent().and_then(Path::file_name).unwrap_or_default();
        key = key.text(&folder.to_string_lossy(), &archive.file_name().unwrap_or_default().to_string_lossy());
    }
    let path = cache.get(KIND, &key.finish(), |draft| {
        quiet_step("image store for nodes", || {
            if let Some(older) = newest(&cache.root().join(KIND)) {
                clone(&older, draft)?;
                // An image that replaces another may lose a layer that both have: containerd collects what nothing refers
                // to, and the new one refers to it only when it is unpacked.
                match fill(cache, draft, archives) {
                    Ok(()) => return Ok(()),
                    Err(error) => say(format!("image store for nodes: made from nothing, since {error:#}")),
                }
                remove(draft)?;
            }
            fill(cache, draft, archives)
        })
    })?;
    cache.prune(KIND, 2)?;
    Ok(path)
}

fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let dated = entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    dated.max().map(|(_, path)| path)
}

/// Makes `target` a store of its own with the content of `seed`.
pub fn clone(seed: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(target)?;
    let from = seed.join(".");
    // Hard links need one file system; a copy is right everywhere.
    if run("cp", [Path::new("-al"), &from, target]).is_err() {
        remove(target)?;
        fs::create_dir_all(target)?;
        run("cp", [Path::new("-a"), &from, target])?;
    }
    for database in DATABASES {
        let file = target.join(database);
        if file.exists() {
            fs::remove_file(&file)?;
            fs::copy(seed.join(database), &file)
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
    }
    Ok(())
}

/// Imports archives into a store by a containerd that runs just for that.
fn fill(cache: &Cache, root: &Path, archives: &[PathBuf]) -> Result<()> {
    fs::create_dir_all(root)?;
    let state = cache.root().join("tmp").join(format!("{KIND}-run"));
    remove(&state)?;
    fs::create_dir_all(&state)?;
    let socket = state.join("containerd.sock");
    let config = state.join("config.toml");
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let lines = [
        "version = 2".to_owned(),
        format!("root = {}", quoted(root)),
        format!("state = {}", quoted(&state.join("state"))),
        // Without the part that kubelets talk to, it is only a store.
        r#"disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]"#.to_owned(),
        "[grpc]".to_owned(),
        format!("address = {}", quoted(&socket)),
    ];
    fs::write(&config, lines.join("\n") + "\n")?;
    let log = fs::File::create(state.join("log"))?;
    let child = Command::new("containerd")
        .arg("--config")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start containerd")?;
    let mut containerd = Stopping { child };
    wait_for("a containerd for the image store", Duration::from_secs(30), || {
        if let Some(status) = containerd.child.try_wait()? {
            return Ok(Look::NotYet(format!("it ended with {status}")));
        }
        UnixStream::connect(&socket).map(|_| Look::Ready(())).map_err(Into::into)
    })?;
    for archive in archives {
        let mut ctr = command("ctr", ["--address"]);
        ctr.arg(&socket).args(["--namespace", "k8s.io", "images", "import", "--digests=false"]).arg(archive);
        check(&mut ctr)?;
    }
    containerd.stop()?;
    remove(&state)
}

/// A child that does not outlive this value.
struct Stopping {
    child: Child,
}

impl Stopping {
    /// Asks it to end (its databases are closed then) and waits.
    fn stop(&mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        if self.child.try_wait()?.is_none() {
            kill(pid, Signal::SIGTERM)?;
        }
        for _ in 0..500 {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("containerd does not end");
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        // Only after a failure is it still there; the draft is thrown away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
