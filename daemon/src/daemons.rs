//! Whether the programs beside the agent live: ovs-vswitchd and ovn-controller (the database's server is known by its
//! session, see [`Ovs`](crate::ovs::Ovs)).
//!
//! In: their control sockets. Out: [`Daemons`] behind a watch channel. A connection that is held open ends with the
//! program, so its death is known at once; a question every few seconds finds one that hangs. Nothing is started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::flags::Flags;
use crate::node::NotYet;

/// How often a living program is asked whether it still answers.
const ASK: Duration = Duration::from_secs(10);
/// How long it may take to answer: vswitchd is busy for seconds when it changes much.
const ANSWER: Duration = Duration::from_secs(8);
/// How often ovn-controller computes everything anew.
pub const RECOMPUTE: Duration = Duration::from_secs(600);
/// How often a dead one is looked for.
const LOOK: Duration = Duration::from_millis(500);

/// What is known of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Alive {
    /// Its folder is not there: nothing can be said.
    #[default]
    Unknown,
    /// It answers.
    Yes,
    /// It does not, for this reason.
    No(String),
}

/// The programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemons {
    /// ovs-vswitchd: carries packets.
    pub vswitchd: Alive,
    /// ovn-controller: writes its flows.
    pub ovn_controller: Alive,
}

impl Daemons {
    /// What does not live.
    pub fn missing(&self) -> Vec<NotYet> {
        let remedy = "is the ovs-ovn pod running on this node? look at its log";
        [
            ("vswitchd", "ovs-vswitchd", &self.vswitchd),
            ("ovn-controller", "ovn-controller", &self.ovn_controller),
        ]
        .into_iter()
        .filter_map(|(step, name, alive)| match alive {
            Alive::No(reason) => Some(NotYet::new(step, format!("{name} is dead: {reason}"), remedy)),
            Alive::Yes | Alive::Unknown => None,
        })
        .collect()
    }
}

/// Where ovs-vswitchd has its control socket: `OVS_RUNDIR`, else beside the database's.
pub fn ovs_folder(flags: &Flags) -> PathBuf {
    let beside = || {
        let endpoint = flags.ovs_endpoint();
        let socket = Path::new(endpoint.strip_prefix("unix:").unwrap_or(&endpoint)).to_owned();
        socket.parent().filter(|folder| folder.is_absolute()).map(Path::to_owned)
    };
    let set = std::env::var_os("OVS_RUNDIR").map(PathBuf::from);
    set.or_else(beside).unwrap_or_else(|| PathBuf::from("/run/openvswitch"))
}

/// Where ovn-controller has its own: `OVN_RUNDIR`, else `/run/ovn`.
pub fn ovn_folder() -> PathBuf {
    std::env::var_os("OVN_RUNDIR").map_or_else(|| PathBuf::from("/run/ovn"), PathBuf::from)
}

/// Follows both until cancelled.
pub async fn follow(ovs: PathBuf, ovn: PathBuf, told: watch::Sender<Daemons>, cancel: CancellationToken) {
    let vswitchd = follow_one(&ovs, "ovs-vswitchd", |alive| {
        told.send_if_modified(|all| tell(&mut all.vswitchd, alive));
    });
    let controller = follow_one(&ovn, "ovn-controller", |alive| {
        told.send_if_modified(|all| tell(&mut all.ovn_controller, alive));
    });
    tokio::select! {
        () = cancel.cancelled() => {}
        () = vswitchd => {}
        () = controller => {}
    }
}

/// Lets ovn-controller compute everything anew from time to time, until cancelled: a safety net against what its
/// incremental engine may have missed (node contract §4.1).
pub async fn recompute(folder: PathBuf, every: Duration, cancel: CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        let asked = async {
            let socket = ovsdb::unixctl::socket_of(&folder, "ovn-controller")?;
            ovsdb::unixctl::call(&socket, "inc-engine/recompute", &[], ANSWER).await
        };
        match asked.await {
            Ok(_) => tracing::info!("ovn-controller computes everything anew"),
            // That it is dead is told elsewhere.
            Err(error) => tracing::debug!(%error, "ovn-controller can't be asked to compute anew"),
        }
    }
}

fn tell(known: &mut Alive, now: Alive) -> bool {
    let news = *known != now;
    *known = now;
    news
}

async fn follow_one(folder: &Path, name: &str, tell: impl Fn(Alive)) {
    let mut lived = None;
    loop {
        let reason = if folder.is_dir() {
            let tell_alive = || {
                if lived.replace(true) != Some(true) {
                    tracing::info!(program = name, "it answers");
                }
                tell(Alive::Yes);
            };
            Some(hold(folder, name, ANSWER, tell_alive).await)
        } else {
            None
        };
        match reason {
            Some(reason) => {
                if lived.replace(false) != Some(false) {
                    tracing::warn!(program = name, reason, "it does not answer");
                }
                tell(Alive::No(reason));
            }
            None => tell(Alive::Unknown),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Holds a connection for as long as the program lives; returns why it does not.
async fn hold(folder: &Path, name: &str, answer: Duration, mut alive: impl FnMut()) -> String {
    let socket = match ovsdb::unixctl::socket_of(folder, name) {
        Ok(socket) => socket,
        Err(error) => return error.to_string(),
    };
    let mut connection = match UnixStream::connect(&socket).await {
        Ok(connection) => connection,
        Err(error) => return format!("{}: {error}", socket.display()),
    };
    let mut nothing = [0; 64];
    loop {
        if let Err(error) = ovsdb::unixctl::call(&socket, "version", &[], answer).await {
            return format!("{}: {error}", socket.display());
        }
        alive();
        // It says nothing by itself: whatever comes is the connection's end.
        match tokio::time::timeout(ASK, connection.read(&mut nothing)).await {
            Err(_) => {}
            Ok(Ok(length)) if length > 0 => {}
            Ok(_) => return "it ended".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    /// A program with a control socket, until the handle is aborted. `answers` false: it hangs.
    fn program(folder: &Path, pid: u32, answers: bool) -> tokio::task::JoinHandle<()> {
        let socket = folder.join(format!("ovn-controller.{pid}.ctl"));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::write(folder.join("ovn-controller.pid"), format!("{pid}\n")).unwrap();
        tokio::spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                calls.spawn(async move {
                    let mut buffer = [0; 1024];
                    while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {
                        if answers {
                            stream.write_all(br#"{"id":0,"result":"x 1.0","error":null}"#).await.unwrap();
                        }
                    }
                });
            }
        })
    }

    #[tokio::test]
    async fn a_death_is_known_at_once_and_a_successor_is_found() {
        let (ovs, ovn) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let nowhere = ovs.path().join("none");
        let (told, mut known) = watch::channel(Daemons::default());
        let cancel = CancellationToken::new();
        let _guard = cancel.clone().drop_guard();
        let first = program(ovn.path(), 7, true);
        tokio::spawn(follow(nowhere, ovn.path().to_owned(), told, cancel));
        let wait = async |known: &mut watch::Receiver<Daemons>, alive: fn(&Alive) -> bool| {
            let waiting = known.wait_for(|daemons| alive(&daemons.ovn_controller));
            tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap().clone()
        };
        let alive = wait(&mut known, |alive| *alive == Alive::Yes).await;
        assert_eq!(
            (alive.missing(), alive.vswitchd),
            (vec![], Alive::Unknown),
            "nothing is said of what is not there"
        );
        first.abort();
        let dead = wait(&mut known, |alive| matches!(alive, Alive::No(_))).await;
        let missing = dead.missing();
        assert_eq!((missing[0].step, missing.len()), ("ovn-controller", 1));
        assert!(missing[0].reason.contains("ovn-controller is dead") && !missing[0].remedy.is_empty());
        let _second = program(ovn.path(), 8, true);
        wait(&mut known, |alive| *alive == Alive::Yes).await;
    }

    #[tokio::test]
    async fn k_072_ovn_controller_computes_anew_from_time_to_time() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("ovn-controller.3.ctl")).unwrap();
        std::fs::write(folder.path().join("ovn-controller.pid"), "3").unwrap();
        let cancel = CancellationToken::new();
        let _guard = cancel.clone().drop_guard();
        tokio::spawn(recompute(folder.path().to_owned(), Duration::from_millis(5), cancel));
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 1024];
            let length = stream.read(&mut asked).await.unwrap();
            assert!(String::from_utf8_lossy(&asked[..length]).contains("\"inc-engine/recompute\""));
            stream.write_all(br#"{"id":0,"result":"","error":null}"#).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_as_good_as_dead() {
        let folder = tempfile::tempdir().unwrap();
        let _program = program(folder.path(), 9, false);
        let reason =
            hold(folder.path(), "ovn-controller", Duration::from_millis(100), || panic!("it never answered"))
                .await;
        assert!(reason.contains("no reply"), "{reason}");
    }
}
