//! The OVS port of a pod's interface, and waiting for the switch.

use std::collections::BTreeMap;
use std::time::Duration;

use cni::api::CniRequest;

use super::add::failed;
use super::error::PlugError;
use super::target::Target;
use super::wanted::NicKind;
use super::{CONTAINER_ID, IF_NAME, NETWORK, POD_UID, PROVIDER, Plugger, ROUTES, names, notes};
use crate::ovs::{BR_INT, Installed, PortSpec, View, plan};

/// The wish for the port.
pub(super) fn spec(target: &Target<'_>) -> PortSpec {
    let (request, wanted) = (target.request, target.wanted);
    let mut ids = BTreeMap::from([
        ("iface-id".to_owned(), wanted.port_name.clone()),
        ("vendor".to_owned(), crds::keys::VENDOR.to_owned()),
        ("pod_name".to_owned(), request.pod_name.clone()),
        ("pod_namespace".to_owned(), request.pod_namespace.clone()),
        (POD_UID.to_owned(), wanted.pod_uid.clone()),
        (PROVIDER.to_owned(), wanted.provider.clone()),
    ]);
    // A port made ready ahead of ADD has no container yet.
    if !request.container_id.is_empty() {
        ids.extend([
            ("pod_netns".to_owned(), request.net_ns.clone()),
            (CONTAINER_ID.to_owned(), request.container_id.clone()),
            (IF_NAME.to_owned(), wanted.if_name.clone()),
        ]);
    }
    let mut absent = Vec::new();
    let mut optional = |key: &str, value: Option<String>| match value {
        Some(value) => drop(ids.insert(key.to_owned(), value)),
        None => absent.push(key.to_owned()),
    };
    optional(NETWORK, Some(request.network.clone()).filter(|network| !network.is_empty()));
    let ips: Vec<String> = wanted.addresses.iter().map(|net| net.addr().to_string()).collect();
    optional("ip", (!ips.is_empty()).then(|| ips.join(",")));
    optional("encap-ip", target.encap_ip.map(|ip| ip.to_string()));
    let internal = wanted.nic == NicKind::Internal;
    let routes = (!request.routes.is_empty()).then(|| serde_json::to_string(&request.routes));
    optional(ROUTES, routes.and_then(Result::ok));
    PortSpec {
        bridge: BR_INT.to_owned(),
        name: target.port.clone(),
        kind: if internal { "internal" } else { "" }.to_owned(),
        external_ids: ids,
        absent_external_ids: absent,
        mtu_request: target.interface.mtu.filter(|_| internal),
        qos: Some(wanted.qos.clone()),
        ..PortSpec::default()
    }
}

impl Plugger {
    /// Whether the port's name is this interface's to use.
    ///
    /// # Errors
    /// The row of that name is another interface's.
    pub(super) fn is_free(&self, target: &Target<'_>) -> Result<(), PlugError> {
        let request = target.request;
        let row = self.ovs.view().interface(&target.port);
        let anothers =
            row.filter(|row| names::is_anothers(row, &request.container_id, &target.wanted.if_name));
        let Some(row) = anothers else { return Ok(()) };
        let mark = |key| row.external_id(key).unwrap_or_default();
        let message = format!(
            "OVS port {} is interface {} of pod {}/{}, container {}",
            target.port,
            mark(IF_NAME),
            mark("pod_namespace"),
            mark("pod_name"),
            mark(CONTAINER_ID)
        );
        Err(failed(message).remedy("the runtime tries again, and the interface gets another name"))
    }

    /// Makes the port, or makes it as wanted.
    pub(super) async fn ensure_port(&self, target: &Target<'_>) -> Result<(), PlugError> {
        self.is_free(target)?;
        let spec = spec(target);
        self.own.makes(&spec.name);
        self.ovs.apply(|view| plan::ensure_port(view, &spec)).await.map_err(failed)
    }

    /// The interface is whole: nothing has to be made again.
    pub(super) async fn forget_notes(&self, request: &CniRequest) -> Result<(), PlugError> {
        let noted =
            |view: &View| notes::of(view, &request.container_id, &request.if_name).collect::<Vec<_>>();
        if noted(&self.ovs.view()).is_empty() {
            return Ok(());
        }
        let wish = |view: &View| Ok(notes::erase(view, noted(view).iter().map(String::as_str)));
        self.ovs.apply(wish).await.map_err(failed)
    }

    /// Takes the port out of the switch ([`crate::ovs::Ovs::forget_port`]).
    pub(super) async fn forget_port(&self, port: &str) -> Result<(), PlugError> {
        if self.ovs.forget_port(port).await.map_err(failed)? {
            return Ok(());
        }
        Err(failed(format!("ovs-vswitchd has not let go of {port} yet"))
            .remedy("look at ovs-vswitchd's log on this node"))
    }

    /// Waits for ovn-controller to have installed the port's flows.
    pub(super) async fn wait_installed(&self, port: &str, patience: Duration) -> Result<(), PlugError> {
        let waited = self.wait_port(port, patience, |view| match view.installed(port) {
            Installed::Yes => Progress::Done,
            Installed::Missing => Progress::Never("the OVS port was removed while ADD waited".into()),
            Installed::Waiting => Progress::NotYet("ovn-controller has not installed it".into()),
            Installed::Broken(error) => Progress::NotYet(format!("ovs-vswitchd can't use it: {error}")),
        });
        waited.await.map_err(|error| {
            error.remedy("look at ovn-controller's log on this node and at the logical switch port")
        })
    }

    /// Waits for ovs-vswitchd to have opened the port's device.
    pub(super) async fn wait_opened(&self, port: &str, patience: Duration) -> Result<(), PlugError> {
        let waited = self.wait_port(port, patience, |view| match view.interface(port) {
            None => Progress::Never("the OVS port was removed while ADD waited".into()),
            Some(interface) if interface.ofport() > Some(0) => Progress::Done,
            Some(interface) => Progress::NotYet(match interface.error() {
                Some(error) => format!("ovs-vswitchd can't use it: {error}"),
                None => "ovs-vswitchd has not opened it".into(),
            }),
        });
        waited.await.map_err(|error| error.remedy("look at ovs-vswitchd's log on this node"))
    }

    /// Waits for the patch port by which an underlay subnet reaches the
    /// physical network: before, questions about its addresses go nowhere.
    pub(super) async fn wait_localnet(&self, patch: &str, patience: Duration) -> Result<(), PlugError> {
        let waited = self.wait_port(patch, patience, |view| match view.interface(patch) {
            Some(_) => Progress::Done,
            None => Progress::NotYet("ovn-controller has not made it".into()),
        });
        waited.await.map_err(|error| {
            error.remedy("is the subnet's provider network ready on this node, with its bridge mapped?")
        })
    }

    async fn wait_port(
        &self,
        port: &str,
        patience: Duration,
        look: impl Fn(&View) -> Progress,
    ) -> Result<(), PlugError> {
        let mut views = self.ovs.subscribe();
        let mut why = String::new();
        let wait = async {
            loop {
                match look(&views.borrow_and_update()) {
                    Progress::Done => return Ok(()),
                    Progress::Never(reason) => return Err(failed(reason)),
                    Progress::NotYet(reason) => why = reason,
                }
                if views.changed().await.is_err() {
                    return Err(failed("the OVS session ended"));
                }
            }
        };
        match tokio::time::timeout(patience, wait).await {
            Ok(result) => result,
            Err(_) => {
                Err(failed(format!("the OVS interface {port} is not ready after {patience:.1?}: {why}")))
            }
        }
    }
}

/// How far the switch is with a port.
enum Progress {
    Done,
    NotYet(String),
    Never(String),
}
