//! Files of ours that must stay where they are: the CNI socket and the runtime's configuration.
//!
//! In: folders, watched by inotify. Out: a file that somebody removed (a clean-up script, a tmpfiles rule, a person) is
//! back at once. Where inotify can't be had (its instances are limited), a look every few seconds does the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::flags::Flags;
use crate::install;
use crate::readiness::Readiness;
use crate::socket::{self, SocketFile};
use crate::sys::FolderWatch;

/// A look without an event.
const LOOK: Duration = Duration::from_secs(60);
/// The same without inotify.
const LOOK_BLIND: Duration = Duration::from_secs(3);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(3);
/// Events of one cause come in bunches.
const GATHER: Duration = Duration::from_millis(20);

/// Wakes when names in a folder come, go or are written.
struct Folder(Option<FolderWatch>);

impl Folder {
    fn watch(folder: &Path) -> Self {
        let watch = FolderWatch::new(folder).inspect_err(|error| {
            tracing::debug!(folder = %folder.display(), %error, "no inotify; looking every few seconds");
        });
        Self(watch.ok())
    }

    /// Returns after an event, or after a while.
    async fn changed(&self) {
        let Some(watch) = &self.0 else {
            tokio::time::sleep(LOOK_BLIND).await;
            return;
        };
        if let Ok(Ok(())) = tokio::time::timeout(LOOK, watch.changed()).await {
            tokio::time::sleep(GATHER).await;
            watch.drain();
        }
    }
}

/// Serves on a unix socket until cancelled, and binds it again when its file is gone. Calls that came by an earlier
/// binding are finished; nobody can come by it any more.
///
/// # Errors
/// When a server panics.
pub async fn serve(
    path: PathBuf,
    first: (UnixListener, SocketFile),
    router: Router,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let mut servers = JoinSet::new();
    let (listener, mut file) = first;
    let start = |servers: &mut JoinSet<()>, listener: UnixListener| {
        let stop = cancel.child_token();
        servers.spawn(secure::http(listener, router.clone(), stop.clone()));
        stop
    };
    let mut current = start(&mut servers, listener);
    let mut watch = Folder::watch(&folder);
    while !cancel.is_cancelled() {
        if !path.exists() {
            match socket::bind(&path) {
                Ok((listener, new)) => {
                    tracing::warn!(path = %path.display(), "the socket's file was removed; it is bound again");
                    file = new;
                    let former = std::mem::replace(&mut current, start(&mut servers, listener));
                    former.cancel();
                    // The folder itself may be a new one.
                    watch = Folder::watch(&folder);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), error = %error, "the socket can't be bound again yet");
                    tokio::select! {
                        () = cancel.cancelled() => break,
                        () = tokio::time::sleep(RETRY) => continue,
                    }
                }
            }
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            () = watch.changed() => {}
            // One of a former binding has answered its last call.
            Some(ended) = servers.join_next() => ended.map_err(std::io::Error::other)?,
        }
    }
    while servers.join_next().await.is_some() {}
    drop(file);
    Ok(())
}

/// The conflist tells kubelet that the node's network is ready, so it comes last; a changed one replaces its
/// predecessor, a removed or altered one comes back.
pub async fn conflist(flags: Arc<Flags>, readiness: Readiness, cancel: CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => return,
        // A part that ended unasked ends the process.
        ready = readiness.ready() => if !ready { return },
    }
    keep_conflist(&flags, cancel).await;
}

async fn keep_conflist(flags: &Flags, cancel: CancellationToken) {
    let mut watch: Option<Folder> = None;
    loop {
        let installed =
            install::conflist::content(&flags.cni_conf_file, &flags.bind_socket).and_then(|content| {
                install::conflist::install(&flags.cni_conf_dir, &flags.cni_conf_name, &content)
            });
        let retry = match installed {
            Ok(install::Outcome::Unchanged) if watch.is_some() => false,
            Ok(outcome) => {
                let name = flags.cni_conf_name.as_str();
                tracing::info!(
                    ?outcome,
                    name,
                    again = watch.is_some(),
                    "the network configuration is in place"
                );
                // Only now the folder is sure to exist; it may be a new one.
                watch = Some(Folder::watch(&flags.cni_conf_dir));
                // It may have gone between the installation and the watch.
                !flags.cni_conf_dir.join(name).exists()
            }
            Err(error) => {
                tracing::warn!(error = %error, "the network configuration can't be installed; trying again");
                true
            }
        };
        let pause = async {
            match &watch {
                Some(watch) if !retry => watch.changed().await,
                _ => tokio::time::sleep(RETRY).await,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = pause => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tokio::net::UnixStream;

    /// Polls for something that must become true soon.
    async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let waiting = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"));
    }

    #[tokio::test]
    async fn a_removed_socket_is_bound_again_and_gone_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/s.sock");
        let router = Router::new().route("/", axum::routing::get(|| async { "x" }));
        let cancel = CancellationToken::new();
        let bound = socket::bind(&path).unwrap();
        // Another name of the first socket, by which its listener is reached as long as there is one.
        let first = folder.path().join("first");
        std::fs::hard_link(&path, &first).unwrap();
        let serving = tokio::spawn(serve(path.clone(), bound, router, cancel.clone()));
        for round in 0..3 {
            until("it accepts", async || UnixStream::connect(&path).await.is_ok()).await;
            if round == 1 {
                // Its whole folder.
                std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
        }
        until("it accepts", async || UnixStream::connect(&path).await.is_ok()).await;
        until("the first listener is gone", async || UnixStream::connect(&first).await.is_err()).await;
        cancel.cancel();
        serving.await.unwrap().unwrap();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_removed_or_altered_configuration_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, file) = (folder.path().join("net.d"), folder.path().join("net.d/01-kube-ovn.conflist"));
        let flags = Flags::parse_from([
            "x",
            &format!("--cni-conf-dir={}", dir.display()),
            &format!("--cni-conf-file={}", folder.path().join("none").display()),
        ]);
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let keeping = tokio::spawn(async move { keep_conflist(&flags, stop).await });
        let there =
            async || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("kube-ovn-daemon.sock"));
        until("it is installed", there).await;
        std::fs::remove_file(&file).unwrap();
        until("it is back", there).await;
        std::fs::write(&file, "{}").unwrap();
        until("it is right again", there).await;
        // Somebody's move.
        std::fs::rename(&file, dir.join("elsewhere")).unwrap();
        until("it is back again", there).await;
        cancel.cancel();
        keeping.await.unwrap();
    }
}
