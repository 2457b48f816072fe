//! What the CNI executable and the node agent say to each other: HTTP/1.1 with JSON bodies over a unix socket.
//!
//! In: nothing, these are plain types. Out: `daemon` serves them, the executable in this crate sends and reads them.
//!
//! Executable and agent are upgraded at different instants, and a Kube-OVN executable may talk to our agent or ours to a
//! Kube-OVN agent. So the JSON names are fixed (node contract §1.3, §1.4), every field may be missing or `null`, unknown
//! fields are ignored, and what Weir adds is optional and left out when empty.

use serde::{Deserialize, Deserializer, Serialize};

/// Where the agent listens unless the network configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/openvswitch/kube-ovn-daemon.sock";
/// `POST`, [`CniRequest`] → 200 with [`CniResponse`].
pub const ADD_PATH: &str = "/api/v1/add";
/// `POST`, [`CniRequest`] → 204.
pub const DEL_PATH: &str = "/api/v1/del";
/// `POST`, [`CheckRequest`] → 204. A Kube-OVN agent answers 404.
pub const CHECK_PATH: &str = "/api/v1/check";
/// `POST`, [`GcRequest`] → 204. A Kube-OVN agent answers 404.
pub const GC_PATH: &str = "/api/v1/gc";
/// `GET` → 200 or 503, both with [`StatusResponse`]. A Kube-OVN agent answers 404.
pub const STATUS_PATH: &str = "/api/v1/status";

/// The provider of the cluster's own network, meant by an empty provider too.
pub const DEFAULT_PROVIDER: &str = "ovn";
/// The plugin type in a network configuration that makes an interface; with any other type we are its IPAM.
pub const PLUGIN_TYPE: &str = "kube-ovn";

/// Reads `null` as the default: Go writes nil slices that way.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// One extra route of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination prefix; empty means the default route of the gateway's family.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub dst: String,
    /// Next hop; empty means on-link.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub gw: String,
}

/// Resolver settings of a network configuration, as the CNI specification has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers, in order of preference.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Local domain.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// The body of ADD and DEL. Every contract field is always written, empty or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniRequest {
    /// `type` of the network configuration: [`PLUGIN_TYPE`], or the plugin that delegates its IPAM to us.
    #[serde(deserialize_with = "null_as_default")]
    pub cni_type: String,
    /// `K8S_POD_NAME`. May be empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub pod_name: String,
    /// `K8S_POD_NAMESPACE`. May be empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub pod_namespace: String,
    /// `CNI_CONTAINERID`: the sandbox.
    #[serde(deserialize_with = "null_as_default")]
    pub container_id: String,
    /// `CNI_NETNS`: path of the pod's network namespace. May be empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub net_ns: String,
    /// `CNI_IFNAME`: the interface's name inside the pod.
    #[serde(deserialize_with = "null_as_default")]
    pub if_name: String,
    /// Provider of the attachment; [`DEFAULT_PROVIDER`] for the cluster's network.
    #[serde(deserialize_with = "null_as_default")]
    pub provider: String,
    /// Extra routes from the network configuration. Empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub routes: Vec<Route>,
    /// Resolver settings from the network configuration. Empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub dns: Dns,
    /// `vfio-pci` when a virtual function is handed over without a network device. Empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub vf_driver: String,
    /// PCI address of a virtual function.
    #[serde(rename = "deviceID", deserialize_with = "null_as_default")]
    pub device_id: String,
    /// The volume that holds the vhost-user socket; set means a DPDK port.
    #[serde(deserialize_with = "null_as_default")]
    pub vhost_user_socket_volume_name: String,
    /// The socket's file name in that volume. Empty in DEL.
    #[serde(deserialize_with = "null_as_default")]
    pub vhost_user_socket_name: String,
    /// `kubevirt` selects KubeVirt's layout.
    #[serde(deserialize_with = "null_as_default")]
    pub vhost_user_socket_consumption: String,
    /// `K8S_POD_UID`, where the runtime passes it. Weir's addition.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// `name` of the network configuration. Weir's addition: GC is per network.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Addresses that the runtime asks for (`runtimeConfig.ips`), with or without prefix length. Empty in DEL. Weir's
    /// addition.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub runtime_ips: Vec<String>,
    /// The hardware address that the runtime asks for (`runtimeConfig.mac`). Empty in DEL. Weir's addition.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub runtime_mac: String,
}

/// One address of an ADD's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// `IPv4` or `IPv6`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub protocol: String,
    /// The address, without prefix length.
    #[serde(default, deserialize_with = "null_as_default")]
    pub ip: String,
    /// The subnet's prefix; gives the address its prefix length.
    #[serde(default, deserialize_with = "null_as_default")]
    pub cidr: String,
    /// Gateway, only where this interface carries the default route.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// The end of a pod's interface that stays on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostEnd {
    /// Its name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Its hardware address.
    #[serde(deserialize_with = "null_as_default")]
    pub mac: String,
    /// Its MTU in bytes, 0 where unknown.
    #[serde(deserialize_with = "null_as_default")]
    pub mtu: i64,
}

/// The body of ADD's answer, and (with `error` set) of every failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniResponse {
    /// Addresses, none for a pod that gets its address elsewhere.
    #[serde(deserialize_with = "null_as_default")]
    pub ips: Vec<IpConfig>,
    /// The interface's hardware address.
    #[serde(deserialize_with = "null_as_default")]
    pub mac_address: String,
    /// Routes of the interface as the kernel has them.
    #[serde(deserialize_with = "null_as_default")]
    pub routes: Vec<Route>,
    /// The interface's MTU in bytes, 0 where unknown.
    #[serde(deserialize_with = "null_as_default")]
    pub mtu: i64,
    /// The interface's name inside the pod.
    #[serde(deserialize_with = "null_as_default")]
    pub nicname: String,
    /// Resolver settings.
    #[serde(deserialize_with = "null_as_default")]
    pub dns: Dns,
    /// Why it failed; empty on success.
    #[serde(deserialize_with = "null_as_default")]
    pub error: String,
    /// CNI error code of a failure (Weir's addition, 0 = unset: the executable says 11, try again later).
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub code: u32,
    /// What a person can do about the failure (Weir's addition).
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// The end on the host, where there is one. Weir's addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostEnd>,
    /// The same addresses for an executable from before [`CniResponse::ips`].
    #[serde(flatten)]
    pub joined: JoinedAddresses,
}

/// Addresses as Kube-OVN's executables up to 1.8 read them: families joined by commas, IPv4 first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinedAddresses {
    /// `IPv4`, `IPv6` or `Dual`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Addresses, without prefix lengths.
    #[serde(
        rename = "address",
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub addresses: String,
    /// The subnet's prefixes.
    #[serde(rename = "cidr", deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub cidrs: String,
    /// Gateways, only where the interface carries the default route.
    #[serde(
        rename = "gateway",
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gateways: String,
}

impl JoinedAddresses {
    fn of(ips: &[IpConfig]) -> Self {
        let mut ips: Vec<&IpConfig> = ips.iter().collect();
        ips.sort_by_key(|ip| ip.protocol != "IPv4");
        let join = |field: fn(&IpConfig) -> &str| {
            ips.iter().map(|ip| field(ip)).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(",")
        };
        let protocol = match ips.as_slice() {
            [] => String::new(),
            [one] => one.protocol.clone(),
            _ => "Dual".to_owned(),
        };
        Self {
            protocol,
            addresses: join(|ip| &ip.ip),
            cidrs: join(|ip| &ip.cidr),
            gateways: join(|ip| &ip.gateway),
        }
    }

    fn ips(&self) -> Vec<IpConfig> {
        let is_v6 = |text: &str| text.contains(':');
        let of_family = |list: &str, v6: bool| {
            list.split(',')
                .map(str::trim)
                .find(|text| !text.is_empty() && is_v6(text) == v6)
                .unwrap_or_default()
                .to_owned()
        };
        let addresses = self.addresses.split(',').map(str::trim).filter(|ip| !ip.is_empty());
        addresses
            .map(|ip| {
                let v6 = is_v6(ip);
                IpConfig {
                    protocol: if v6 { "IPv6" } else { "IPv4" }.to_owned(),
                    ip: ip.to_owned(),
                    cidr: of_family(&self.cidrs, v6),
                    gateway: of_family(&self.gateways, v6),
                }
            })
            .collect()
    }
}

impl CniResponse {
    /// Says the addresses in the older form too.
    #[must_use]
    pub fn with_joined(mut self) -> Self {
        self.joined = JoinedAddresses::of(&self.ips);
        self
    }

    /// The addresses, in whichever form an agent said them.
    pub fn addresses(&self) -> Vec<IpConfig> {
        if self.ips.is_empty() { self.joined.ips() } else { self.ips.clone() }
    }

    /// A failure with its reason.
    pub fn failure(error: impl Into<String>) -> Self {
        Self { error: error.into(), ..Self::default() }
    }

    /// Adds the CNI error code that the executable shall report.
    #[must_use]
    pub fn with_code(mut self, code: u32) -> Self {
        self.code = code;
        self
    }

    /// Adds what a person can do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The body of CHECK: the attachment, and what ADD had answered the runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRequest {
    /// The attachment, as in ADD.
    #[serde(flatten)]
    pub request: CniRequest,
    /// `prevResult` in the shape of a 1.0 result whatever the configuration's version: addresses with prefix length.
    pub expected: ExpectedState,
}

/// What CHECK has to find in the pod, taken from `prevResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpectedState {
    /// Hardware address of the interface, empty where the result had none.
    pub mac_address: String,
    /// Addresses with prefix length.
    pub addresses: Vec<String>,
    /// Routes.
    pub routes: Vec<Route>,
    /// MTU in bytes, 0 where the result had none (it has one since 1.1.0).
    pub mtu: i64,
}

/// The body of GC: what the runtime still knows of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GcRequest {
    /// `name` of the network configuration.
    pub network: String,
    /// Its `type`.
    pub cni_type: String,
    /// Provider, as in ADD.
    pub provider: String,
    /// Attachments that still exist; everything else of this network may go.
    pub valid_attachments: Vec<Attachment>,
}

/// One attachment by the two keys a runtime knows it by.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// The sandbox.
    pub container_id: String,
    /// The interface's name inside the pod.
    pub if_name: String,
}

/// Whether the agent could serve an ADD now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusResponse {
    /// It could.
    pub ready: bool,
    /// Existing pods may have limited connectivity too (CNI code 51 instead of 50).
    pub limited: bool,
    /// What is missing, in words; empty when ready.
    pub reason: String,
    /// What a person can do about it.
    pub remedy: String,
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
