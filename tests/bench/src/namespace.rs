//! Sandboxes: network namespaces as a runtime makes them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace that lives as long as the value.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<File>);

impl Sandbox {
    /// Makes one.
    ///
    /// # Errors
    /// Without privilege.
    pub fn new() -> Result<Self> {
        let made = std::thread::spawn(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace (root is needed)")?;
            File::open("/proc/thread-self/ns/net").context("open the network namespace")
        });
        let file = made.join().map_err(|_| anyhow!("the thread in the namespace panicked"))??;
        Ok(Self(Arc::new(file)))
    }

    /// The path by which plugins can open it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Pings once from inside.
    ///
    /// # Errors
    /// No answer within a second, or no `ping`.
    pub fn ping(&self, target: &str) -> Result<(), String> {
        let (file, target) = (self.0.clone(), target.to_owned());
        let run = move || -> Result<()> {
            setns(&*file, CloneFlags::CLONE_NEWNET).context("enter the pod's namespace")?;
            let arguments = ["-c", "1", "-W", "1", &target];
            let run = |program: &str, first: &[&str]| {
                let mut ping = Command::new(program);
                ping.args(first).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status()
            };
            // Not every machine has the first.
            let status = run("ping", &[]).or_else(|_| run("busybox", &["ping"]));
            if status.context("start ping")?.success() {
                return Ok(());
            }
            Err(anyhow!("the first ping of {target} is not answered"))
        };
        let result = std::thread::spawn(run).join().unwrap_or_else(|_| Err(anyhow!("the thread panicked")));
        result.map_err(|error| format!("{error:#}"))
    }
}
