//! The network configuration that makes a node Ready (node contract §1.5): put into place last, when the agent can
//! serve, and rolled out when it changed.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::atomic::{Outcome, replace};

/// The shipped configuration: us, then `portmap` for host ports. Version 0.3.1, since the node's own `portmap` and an old
/// runtime have to understand it too.
pub fn shipped(socket: &Path) -> Vec<u8> {
    let conf = json!({
        "name": "kube-ovn",
        "cniVersion": "0.3.1",
        "plugins": [
            {"type": "kube-ovn", "server_socket": socket},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{conf:#}\n").into_bytes()
}

/// The configuration to install: the file of the image or the user's mount (`--cni-conf-file`) if there is one, else
/// the shipped one.
///
/// # Errors
/// When the file is no list of plugins: a node keeps what it has rather than getting that.
pub fn content(file: &Path, socket: &Path) -> io::Result<Vec<u8>> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(shipped(socket)),
        Err(error) => return Err(error),
    };
    let invalid = |why: &str| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}; it is not installed", file.display()))
    };
    let conf: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
    let has_name = conf.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let plugins = conf.get("plugins").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let all_typed = plugins.iter().all(|plugin| plugin.get("type").is_some_and(Value::is_string));
    if !has_name || plugins.is_empty() || !all_typed {
        return Err(invalid("a configuration list has a name and plugins with types"));
    }
    Ok(bytes)
}

/// Puts the configuration into the runtime's folder, readable by root alone. Nothing is written if it is there.
///
/// # Errors
/// When the file can't be written; the old one is then still there.
pub fn install(folder: &Path, name: &str, content: &[u8]) -> io::Result<Outcome> {
    std::fs::create_dir_all(folder)?;
    replace(&folder.join(name), content, 0o600)
}

/// Takes the configuration away (uninstalling): the node becomes NotReady.
///
/// # Errors
/// When the file can't be removed; a missing one is a success.
pub fn remove(folder: &Path, name: &str) -> io::Result<()> {
    match std::fs::remove_file(folder.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const SOCKET: &str = "/run/openvswitch/kube-ovn-daemon.sock";

    #[test]
    fn the_shipped_configuration_is_one_that_our_plugin_takes() {
        let conf: Value = serde_json::from_slice(&shipped(Path::new(SOCKET))).unwrap();
        assert_eq!(conf["plugins"][1], json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        assert_eq!((&conf["name"], &conf["cniVersion"]), (&json!("kube-ovn"), &json!("0.3.1")), "K003");
        assert_eq!(conf["plugins"].as_array().unwrap().len(), 2);
        assert_eq!(conf["plugins"][0]["type"], "kube-ovn", "K004: we are first");
        // A runtime hands each plugin its object, with name and version of the list.
        let mut ours = conf["plugins"][0].clone();
        ours["name"] = conf["name"].clone();
        ours["cniVersion"] = conf["cniVersion"].clone();
        let parsed = cni::conf::parse(&serde_json::to_vec(&ours).unwrap()).unwrap();
        assert_eq!(parsed.server_socket, cni::api::DEFAULT_SOCKET);
    }

    #[test]
    fn a_changed_configuration_is_rolled_out() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("source"), dir.path().join("net.d"));
        let from_image = |source: &Path| content(source, Path::new(SOCKET)).unwrap();
        assert_eq!(from_image(&source), shipped(Path::new(SOCKET)), "without a file the shipped one");
        let name = "01-kube-ovn.conflist";
        assert_eq!(install(&folder, name, &from_image(&source)).unwrap(), Outcome::Written);
        assert_eq!(install(&folder, name, &from_image(&source)).unwrap(), Outcome::Unchanged);
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(install(&folder, name, &from_image(&source)).unwrap(), Outcome::ModeSet);
        let chained = r#"{"name":"generic-veth","plugins":[{"type":"kube-ovn"},{"type":"cilium-cni"}]}"#;
        fs::write(&source, chained).unwrap();
        assert_eq!(install(&folder, name, &from_image(&source)).unwrap(), Outcome::Written);
        assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), chained);
        assert_eq!(fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
        remove(&folder, name).unwrap();
        remove(&folder, name).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_broken_configuration_is_not_installed() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        for text in [
            "",
            "{",
            "[]",
            r#"{"name":"x"}"#,
            r#"{"name":"x","plugins":[]}"#,
            r#"{"name":"x","plugins":[{}]}"#,
        ] {
            fs::write(&source, text).unwrap();
            assert_eq!(
                content(&source, Path::new(SOCKET)).unwrap_err().kind(),
                io::ErrorKind::InvalidData,
                "{text}"
            );
        }
    }
}
