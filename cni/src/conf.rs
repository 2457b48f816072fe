//! The network configuration that the runtime writes to standard input (node contract §1.2).
//!
//! In: bytes. Out: [`NetConf`], with the delegated IPAM object already folded in, or an error of code 1, 6 or 7.

use crate::api::{Attachment, DEFAULT_PROVIDER, Dns, PLUGIN_TYPE, Route};
use crate::error::{CniError, code};
use crate::version::{self, Version};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// The specification's version that the answer has to follow.
    pub version: Version,
    /// The network's name.
    pub name: String,
    /// `kube-ovn`, or the plugin that delegates its IPAM to us.
    pub plugin: String,
    /// The agent's unix socket.
    pub server_socket: String,
    /// Provider, never empty.
    pub provider: String,
    /// Extra routes.
    pub routes: Vec<Route>,
    /// Resolver settings.
    pub dns: Dns,
    /// PCI address of a virtual function.
    pub device_id: String,
    /// `vfio-pci` or nothing.
    pub vf_driver: String,
    /// Volume of the vhost-user socket.
    pub vhost_user_socket_volume_name: String,
    /// File name of the vhost-user socket.
    pub vhost_user_socket_name: String,
    /// `kubevirt` or nothing.
    pub vhost_user_socket_consumption: String,
    /// Addresses that the runtime asks for (capability `ips`).
    pub runtime_ips: Vec<String>,
    /// The hardware address that the runtime asks for (capability `mac`).
    pub runtime_mac: String,
    /// What an earlier ADD answered, for CHECK and DEL.
    pub prev_result: Option<Value>,
    /// Attachments that the runtime knows, for GC. `None`: the key is absent, which is not the same as an empty list.
    pub valid_attachments: Option<Vec<Attachment>>,
}

impl NetConf {
    /// Whether another plugin makes the interface and only wants addresses from us.
    pub fn is_delegate(&self) -> bool {
        self.plugin != PLUGIN_TYPE
    }
}

/// Takes `null` for the default, as the reference library does.
fn lenient<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "cniVersion", default, deserialize_with = "lenient")]
    cni_version: String,
    #[serde(default, deserialize_with = "lenient")]
    name: String,
    #[serde(rename = "type", default, deserialize_with = "lenient")]
    plugin: String,
    #[serde(flatten)]
    server: Server,
    #[serde(default, deserialize_with = "lenient")]
    dns: Dns,
    #[serde(rename = "deviceID", default, deserialize_with = "lenient")]
    device_id: String,
    #[serde(default, deserialize_with = "lenient")]
    vf_driver: String,
    #[serde(default, deserialize_with = "lenient")]
    vhost_user_socket_volume_name: String,
    #[serde(default, deserialize_with = "lenient")]
    vhost_user_socket_name: String,
    #[serde(default, deserialize_with = "lenient")]
    vhost_user_socket_consumption: String,
    #[serde(rename = "runtimeConfig", default, deserialize_with = "lenient")]
    runtime: Runtime,
    // Read only when it is ours: any other plugin's object may have any shape.
    ipam: Option<Value>,
    #[serde(rename = "prevResult")]
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<RawAttachment>>,
    // The name in drafts of 1.1, still written by the reference library for older plugins.
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Vec<RawAttachment>>,
}

#[derive(Deserialize, Default)]
struct Server {
    #[serde(default, deserialize_with = "lenient")]
    server_socket: String,
    #[serde(default, deserialize_with = "lenient")]
    provider: String,
    #[serde(default, deserialize_with = "lenient")]
    routes: Vec<Route>,
}

/// What the runtime adds for capabilities; those of other plugins in the chain are none of ours.
#[derive(Deserialize, Default)]
struct Runtime {
    #[serde(default, deserialize_with = "lenient")]
    ips: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    mac: String,
}

#[derive(Deserialize)]
struct RawAttachment {
    #[serde(rename = "containerID", default, deserialize_with = "lenient")]
    container_id: String,
    #[serde(rename = "ifname", default, deserialize_with = "lenient")]
    if_name: String,
}

/// Reads only `cniVersion`, for VERSION and for printing errors about a configuration that is otherwise wrong.
pub fn version_text(stdin: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyVersion {
        #[serde(rename = "cniVersion")]
        cni_version: Option<String>,
    }
    serde_json::from_slice::<OnlyVersion>(stdin).ok()?.cni_version.filter(|text| !text.is_empty())
}

/// Reads and checks a configuration.
///
/// # Errors
/// Code 6: no JSON object of the right shape. Code 1: a version we don't speak. Code 7: name or socket missing.
pub fn parse(stdin: &[u8]) -> Result<NetConf, CniError> {
    let raw: Raw = serde_json::from_slice(stdin).map_err(|error| {
        CniError::new(code::DECODING_FAILURE, "failed to load netconf")
            .details(error.to_string())
            .remedy("correct the network configuration (/etc/cni/net.d, or the NetworkAttachmentDefinition)")
    })?;
    let version = Version::parse(&raw.cni_version).ok_or_else(|| {
        CniError::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").details(format!(
            "config is {:?}, plugin supports {:?}",
            raw.cni_version,
            version::SUPPORTED
        ))
    })?;
    check_name(&raw.name)?;

    let server = if raw.plugin == PLUGIN_TYPE {
        raw.server
    } else {
        match raw.ipam {
            Some(ipam) => serde_json::from_value(ipam).map_err(|error| {
                CniError::new(code::DECODING_FAILURE, "failed to load netconf")
                    .details(format!("ipam: {error}"))
            })?,
            None => Server::default(),
        }
    };
    if server.server_socket.is_empty() {
        let place = if raw.plugin == PLUGIN_TYPE { "server_socket" } else { "ipam.server_socket" };
        return Err(CniError::new(code::INVALID_CONFIG, "Invalid Configuration")
            .details(format!("{place} is missing"))
            .remedy("set it to the node agent's socket, usually /run/openvswitch/kube-ovn-daemon.sock"));
    }

    // The reference library writes `null` for an empty list, so the key's presence is what counts.
    let has_list = has_key(stdin, "cni.dev/valid-attachments") || has_key(stdin, "cni.dev/attachments");
    let valid_attachments = has_list.then(|| {
        let listed = raw.valid_attachments.or(raw.attachments).unwrap_or_default();
        listed
            .into_iter()
            .map(|attachment| Attachment {
                container_id: attachment.container_id,
                if_name: attachment.if_name,
            })
            .collect()
    });
    Ok(NetConf {
        version,
        name: raw.name,
        plugin: raw.plugin,
        server_socket: server.server_socket,
        provider: if server.provider.is_empty() { DEFAULT_PROVIDER.to_owned() } else { server.provider },
        routes: server.routes,
        dns: raw.dns,
        device_id: raw.device_id,
        vf_driver: raw.vf_driver,
        vhost_user_socket_volume_name: raw.vhost_user_socket_volume_name,
        vhost_user_socket_name: raw.vhost_user_socket_name,
        vhost_user_socket_consumption: raw.vhost_user_socket_consumption,
        runtime_ips: raw.runtime.ips,
        runtime_mac: raw.runtime.mac,
        prev_result: raw.prev_result,
        valid_attachments,
    })
}

fn has_key(stdin: &[u8], key: &str) -> bool {
    serde_json::from_slice::<std::collections::BTreeMap<String, &serde_json::value::RawValue>>(stdin)
        .is_ok_and(|object| object.contains_key(key))
}

fn check_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::new(code::INVALID_CONFIG, "missing network name"));
    }
    let valid = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if !valid {
        return Err(CniError::new(code::INVALID_CONFIG, "invalid characters found in network name")
            .details(format!("{name:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const SHIPPED: &str = r#"{"cniVersion":"0.3.1","name":"kube-ovn","type":"kube-ovn",
        "server_socket":"/run/openvswitch/kube-ovn-daemon.sock","ipam":"not ours to read"}"#;

    #[test]
    fn the_shipped_configuration() {
        let conf = parse(SHIPPED.as_bytes()).unwrap();
        assert_eq!(conf.version, Version::V031);
        assert_eq!(conf.provider, "ovn");
        assert!(!conf.is_delegate());
        assert_eq!(conf.valid_attachments, None);
    }

    #[test]
    fn k_008_socket_and_provider() {
        let parse_with = |members: &str| {
            parse(format!(r#"{{"cniVersion":"0.3.1","name":"n","type":"kube-ovn"{members}}}"#).as_bytes())
        };
        let error = parse_with("").unwrap_err();
        assert!(error.code == 7 && error.to_json("0.3.1").contains("server_socket is missing"));
        assert_eq!(parse_with(r#","server_socket":"/s","provider":"""#).unwrap().provider, "ovn");
        // Whatever the interface is called (contract 1.16): eth0 may be an attachment that is the default network.
        let named = parse_with(r#","server_socket":"/s","provider":"net.web.ovn""#).unwrap();
        assert_eq!(named.provider, "net.web.ovn");
    }

    #[test]
    fn c_027_the_runtimes_wishes_are_read_and_others_capabilities_are_not() {
        let parse_with = |runtime: &str| {
            let text = format!(
                r#"{{"cniVersion":"1.0.0","name":"n","type":"kube-ovn","server_socket":"/s","runtimeConfig":{runtime}}}"#
            );
            parse(text.as_bytes())
        };
        let conf = parse_with(
            r#"{"ips":["10.1.2.3/24"],"mac":"0a:00:00:00:00:01","portMappings":[{"hostPort":80}],"bandwidth":{}}"#,
        );
        let conf = conf.unwrap();
        assert_eq!(
            (conf.runtime_ips.as_slice(), conf.runtime_mac.as_str()),
            (&["10.1.2.3/24".to_owned()][..], "0a:00:00:00:00:01")
        );
        for nothing in ["null", "{}", r#"{"ips":null,"mac":null}"#] {
            let conf = parse_with(nothing).unwrap();
            assert!(conf.runtime_ips.is_empty() && conf.runtime_mac.is_empty(), "{nothing}");
        }
        assert_eq!(parse_with(r#"{"ips":"10.1.2.3"}"#).unwrap_err().code, 6);
    }

    #[test]
    fn delegated_ipam_replaces_the_top_level() {
        let text = r#"{"cniVersion":"1.0.0","name":"lan","type":"macvlan","server_socket":"/wrong","provider":"wrong",
            "routes":[{"dst":"1.0.0.0/8"}],"dns":null,
            "ipam":{"type":"kube-ovn","server_socket":"/right","provider":"lan.default","routes":[{"gw":"10.0.0.1"}]}}"#;
        let conf = parse(text.as_bytes()).unwrap();
        assert!(conf.is_delegate());
        assert_eq!(conf.server_socket, "/right");
        assert_eq!(conf.provider, "lan.default");
        assert_eq!(conf.routes, [Route { dst: String::new(), gw: "10.0.0.1".into() }]);
    }

    #[rstest]
    #[case("", 6)]
    #[case("[]", 6)]
    #[case(r#"{"cniVersion":"9.9.9","name":"n","type":"kube-ovn","server_socket":"/s"}"#, 1)]
    #[case(r#"{"type":"kube-ovn","server_socket":"/s"}"#, 7)]
    #[case(r#"{"name":"a b","type":"kube-ovn","server_socket":"/s"}"#, 7)]
    #[case(r#"{"name":"n","type":"kube-ovn"}"#, 7)]
    #[case(r#"{"name":"n","type":"macvlan","server_socket":"/s"}"#, 7)]
    #[case(r#"{"name":"n","type":"macvlan","ipam":[]}"#, 7)]
    #[case(r#"{"name":"n","type":"macvlan","ipam":3}"#, 6)]
    fn errors_have_the_specs_codes(#[case] text: &str, #[case] code: u32) {
        assert_eq!(parse(text.as_bytes()).unwrap_err().code, code, "{text}");
    }

    #[test]
    fn attachments_absent_null_and_listed() {
        let with = |member: &str| {
            let text = format!(
                r#"{{"cniVersion":"1.1.0","name":"n","type":"kube-ovn","server_socket":"/s"{member}}}"#
            );
            parse(text.as_bytes()).unwrap().valid_attachments
        };
        assert_eq!(with(""), None);
        assert_eq!(with(r#","cni.dev/valid-attachments":null"#), Some(vec![]));
        let one = Attachment { container_id: "c".into(), if_name: "eth0".into() };
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            let member = format!(r#","{key}":[{{"containerID":"c","ifname":"eth0"}}]"#);
            assert_eq!(with(&member), Some(vec![one.clone()]));
        }
    }

    #[test]
    fn version_is_readable_from_wrong_configurations() {
        assert_eq!(version_text(br#"{"cniVersion":"0.4.0","name":7}"#).as_deref(), Some("0.4.0"));
        assert_eq!(version_text(b"garbage"), None);
        assert_eq!(version_text(b"{}"), None);
    }
}
