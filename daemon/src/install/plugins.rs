//! CNI plugins on the node: ours is always the image's, the common ones are the node's own where it has them.

use std::fs;
use std::io;
use std::path::Path;

use super::atomic::{Outcome, replace};

/// Replaced with every version.
const OURS: &str = "kube-ovn";

/// Installed only into a folder that is the node's.
const KUBECTL: &str = "kubectl-ko";

/// Installed only where the node has none: its owner chose their version. The image need not carry all of them.
const COMMON: [&str; 4] = ["loopback", "portmap", "macvlan", "ipvlan"];

/// What became of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its name.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
}

/// Copies the plugins of the image's folder into the node's.
///
/// # Errors
/// When our own plugin is missing in the image, or a file can't be written.
pub fn install_plugins(source: &Path, target: &Path) -> io::Result<Vec<Installed>> {
    let mut done = Vec::new();
    for name in COMMON {
        let file = target.join(name);
        // An empty file is what an installer without care leaves after a crash; a dangling link is nothing either.
        let present = fs::metadata(&file).is_ok_and(|meta| meta.len() > 0);
        let what = if present {
            "the node's own is kept"
        } else {
            match fs::read(source.join(name)) {
                Ok(content) => {
                    replace(&file, &content, 0o755)?;
                    "installed"
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        };
        done.push(Installed { name, what });
    }
    // Last: the configuration that names all of them follows only if this worked.
    let content = fs::read(source.join(OURS))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", source.join(OURS).display())))?;
    let what = match replace(&target.join(OURS), &content, 0o755)? {
        Outcome::Unchanged => "up to date",
        Outcome::ModeSet => "made executable",
        Outcome::Written => "installed",
    };
    done.push(Installed { name: OURS, what });
    Ok(done)
}

/// Installs `kubectl-ko` into `target`, if that is the node's folder: in the image's own it is there already.
///
/// # Errors
/// When it can't be written.
pub fn install_kubectl(source: &Path, target: &Path) -> io::Result<Option<Installed>> {
    if !is_mounted(target) { Ok(None) } else { copy_kubectl(source, target) }
}

/// Whether a folder is the root of a mount.
fn is_mounted(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Some(parent) = folder.parent() else { return false };
    match (fs::metadata(folder), fs::metadata(parent)) {
        (Ok(own), Ok(parent)) => own.is_dir() && own.dev() != parent.dev(),
        _ => false,
    }
}

fn copy_kubectl(source: &Path, target: &Path) -> io::Result<Option<Installed>> {
    let content = match fs::read(source.join(KUBECTL)) {
        Ok(content) => content,
        // An image without the tool.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let what = match replace(&target.join(KUBECTL), &content, 0o755)? {
        Outcome::Unchanged => "up to date",
        Outcome::ModeSet => "made executable",
        Outcome::Written => "installed",
    };
    Ok(Some(Installed { name: KUBECTL, what }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ours_is_replaced_and_theirs_are_kept() {
        let (image, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["kube-ovn", "loopback", "portmap"] {
            fs::write(image.path().join(name), format!("new {name}")).unwrap();
        }
        for name in ["kube-ovn", "portmap", "bridge"] {
            fs::write(node.path().join(name), format!("old {name}")).unwrap();
        }
        fs::write(node.path().join("loopback"), "").unwrap();
        let done = install_plugins(image.path(), node.path()).unwrap();
        assert_eq!(done.len(), 3);
        let text = |name: &str| fs::read_to_string(node.path().join(name)).unwrap();
        assert_eq!(text("kube-ovn"), "new kube-ovn");
        assert_eq!(text("portmap"), "old portmap");
        assert_eq!(text("loopback"), "new loopback", "an empty file is no plugin");
        assert_eq!(text("bridge"), "old bridge");
        assert_eq!(fs::metadata(node.path().join("kube-ovn")).unwrap().permissions().mode() & 0o777, 0o755);
        let again = install_plugins(image.path(), node.path()).unwrap();
        assert!(again.contains(&Installed { name: "kube-ovn", what: "up to date" }));
        assert_eq!(fs::read_dir(node.path()).unwrap().count(), 4);
    }

    #[test]
    fn the_kubectl_plugin_is_put_into_the_nodes_folder_alone() {
        let (image, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(copy_kubectl(image.path(), node.path()).unwrap(), None, "none in the image");
        fs::write(image.path().join("weir"), "tool").unwrap();
        std::os::unix::fs::symlink("weir", image.path().join("kubectl-ko")).unwrap();
        // A folder of the image: nothing is to be doubled there.
        assert_eq!(install_kubectl(image.path(), node.path()).unwrap(), None);
        assert!(
            is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/none")) && !is_mounted(Path::new("/"))
        );
        let done = |what| Some(Installed { name: "kubectl-ko", what });
        assert_eq!(copy_kubectl(image.path(), node.path()).unwrap(), done("installed"));
        assert_eq!(copy_kubectl(image.path(), node.path()).unwrap(), done("up to date"));
        let file = node.path().join("kubectl-ko");
        assert_eq!(fs::read_to_string(&file).unwrap(), "tool", "the program, not the link");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn an_image_without_our_plugin_is_an_error_that_names_it() {
        let (image, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = install_plugins(image.path(), node.path()).unwrap_err();
        assert!(error.to_string().contains("/kube-ovn: "), "{error}");
    }

    #[test]
    fn a_running_plugin_can_be_replaced() {
        let (image, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sleep = ["/bin/sleep", "/usr/bin/sleep"].iter().find(|path| Path::new(path).exists()).unwrap();
        fs::copy(sleep, node.path().join("kube-ovn")).unwrap();
        fs::write(image.path().join("kube-ovn"), "new").unwrap();
        let mut running = std::process::Command::new(node.path().join("kube-ovn")).arg("60").spawn().unwrap();
        let result = install_plugins(image.path(), node.path());
        running.kill().unwrap();
        running.wait().unwrap();
        result.unwrap();
    }
}
