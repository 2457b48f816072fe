//! Why an ADD or DEL failed, in terms of the contract.

use cni::api::{CniRequest, CniResponse};

/// Where it failed (node contract §8, Events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request itself.
    ValidateRequest,
    /// The provider has no subnet.
    Provider,
    /// The pod is not known.
    GetPod,
    /// Addresses in the annotations.
    ParseAddress,
    /// Routes in the annotations.
    ParseRoutes,
    /// No address in time.
    WaitAddress,
    /// Not routed in time.
    WaitRoute,
    /// The subnet is not known.
    GetSubnet,
    /// The subnet's address between underlay and overlay is not known.
    U2oAddress,
    /// This node is not known, whose label has the MTU of a provider network.
    GetNode,
    /// The MTU is not known.
    Mtu,
    /// The address of the subnet's tunnels on this node.
    EncapIp,
    /// The interface itself.
    ConfigureNic,
    /// Routing rules of the subnet's egress gateway.
    Egress,
    /// The default route of a delegating plugin.
    RemoveDefaultRoute,
    /// Removal of the interface.
    DeleteNic,
}

impl Stage {
    /// The stage's name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ValidateRequest => "validate-request",
            Self::Provider => "provider",
            Self::GetPod => "get-pod",
            Self::ParseAddress => "parse-address",
            Self::ParseRoutes => "parse-routes",
            Self::WaitAddress => "wait-address",
            Self::WaitRoute => "wait-route",
            Self::GetSubnet => "get-subnet",
            Self::U2oAddress => "u2o-address",
            Self::GetNode => "get-node",
            Self::Mtu => "mtu",
            Self::EncapIp => "encap-ip",
            Self::ConfigureNic => "configure-nic",
            Self::Egress => "egress",
            Self::RemoveDefaultRoute => "remove-default-route",
            Self::DeleteNic => "delete-nic",
        }
    }

    /// What helps where the failure itself knows nothing better.
    fn remedy(self, request: &CniRequest) -> String {
        let pod = format!("-n {} get pod {}", request.pod_namespace, request.pod_name);
        match self {
            Self::ValidateRequest => "this is the container runtime's call: see its CNI configuration and log".into(),
            Self::Provider => "see `kubectl get subnets`: one of them must have this spec.provider".into(),
            Self::GetPod => format!(
                "see whether `kubectl {pod} -o wide` shows it on this node; if it does, the node agent's watch lags \
                 behind: see its log"
            ),
            Self::ParseAddress | Self::ParseRoutes => {
                format!("correct the annotations that `kubectl {pod} -o yaml` shows, or make the pod anew")
            }
            Self::WaitAddress | Self::WaitRoute => {
                "see the pod's events and `kubectl -n kube-system logs deploy/kube-ovn-controller`".into()
            }
            Self::GetSubnet | Self::U2oAddress => {
                "see `kubectl get subnets` and the annotation logical_switch of the pod".into()
            }
            Self::GetNode => {
                "see whether `kubectl get nodes` shows this node under the agent's NODE_NAME, and the agent's log".into()
            }
            Self::Mtu | Self::EncapIp => "see `weir status` of the node agent, or its /readyz".into(),
            Self::ConfigureNic | Self::Egress | Self::RemoveDefaultRoute | Self::DeleteNic => {
                "the runtime tries again; if it stays, see the logs of kube-ovn-cni and ovs-vswitchd on this node".into()
            }
        }
    }

    /// HTTP status of a failure here.
    pub fn status(self) -> u16 {
        match self {
            Self::ValidateRequest | Self::Provider => 400,
            _ => 500,
        }
    }
}

/// A failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {message}", stage.as_str())]
pub struct PlugError {
    /// Where.
    pub stage: Stage,
    /// Why.
    pub message: String,
    /// CNI error code; 0 leaves it to the executable (11, try again later).
    pub code: u32,
    /// What a person can do about it; may be empty.
    pub remedy: String,
}

impl PlugError {
    /// A failure that a retry may cure.
    pub fn new(stage: Stage, message: impl Into<String>) -> Self {
        Self { stage, message: message.into(), code: 0, remedy: String::new() }
    }

    /// Sets the CNI error code.
    #[must_use]
    pub fn code(mut self, code: u32) -> Self {
        self.code = code;
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The same as the caller has to read it: with the interface and the pod that it is about, and never without a
    /// remedy. For the answer; an event hangs on its pod.
    #[must_use]
    pub fn about(mut self, request: &CniRequest) -> Self {
        if self.remedy.is_empty() {
            self.remedy = self.stage.remedy(request);
        }
        let pod = match request.pod_name.as_str() {
            // DEL need not know more.
            "" => format!("container {}", request.container_id),
            name => format!("pod {}/{name}", request.pod_namespace),
        };
        let interface = match request.if_name.as_str() {
            "" => String::new(),
            name => format!(" interface {name}"),
        };
        self.message = format!("{pod}{interface}: {}", self.message);
        self
    }

    /// As [`PlugError::about`], for a call that is about a whole network.
    #[must_use]
    pub fn about_network(mut self, network: &str) -> Self {
        if self.remedy.is_empty() {
            self.remedy = self.stage.remedy(&CniRequest::default());
        }
        self.message = format!("network {network}: {}", self.message);
        self
    }

    /// The body of the answer.
    pub fn response(&self) -> CniResponse {
        CniResponse::failure(&self.message).with_code(self.code).with_remedy(&self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_144_only_what_the_caller_got_wrong_is_its_fault() {
        for (stage, status) in [
            (Stage::ValidateRequest, 400),
            (Stage::Provider, 400),
            (Stage::GetPod, 500),
            (Stage::WaitAddress, 500),
            (Stage::WaitRoute, 500),
            (Stage::ConfigureNic, 500),
            (Stage::DeleteNic, 500),
        ] {
            assert_eq!(stage.status(), status, "{}", stage.as_str());
        }
        let answer = PlugError::new(Stage::Provider, "no such").code(7).remedy("make it").response();
        assert!(answer.error.contains("no such") && !answer.error.is_empty(), "K146: never an empty answer");
    }

    #[test]
    fn every_failure_names_its_pod_and_a_remedy() {
        let request = CniRequest {
            pod_name: "web-0".into(),
            pod_namespace: "shop".into(),
            container_id: "c1".into(),
            if_name: "eth0".into(),
            ..CniRequest::default()
        };
        for stage in [
            Stage::ValidateRequest,
            Stage::Provider,
            Stage::GetPod,
            Stage::ParseAddress,
            Stage::ParseRoutes,
            Stage::WaitAddress,
            Stage::WaitRoute,
            Stage::GetSubnet,
            Stage::U2oAddress,
            Stage::GetNode,
            Stage::Mtu,
            Stage::EncapIp,
            Stage::ConfigureNic,
            Stage::Egress,
            Stage::RemoveDefaultRoute,
            Stage::DeleteNic,
        ] {
            let error = PlugError::new(stage, "it broke").about(&request);
            assert_eq!(error.message, "pod shop/web-0 interface eth0: it broke");
            assert!(!error.remedy.is_empty(), "{}", stage.as_str());
        }
        let unknown = PlugError::new(Stage::GetPod, "not known").about(&request);
        assert!(unknown.remedy.contains("kubectl -n shop get pod web-0"), "{}", unknown.remedy);
        let own = PlugError::new(Stage::GetPod, "x").remedy("do this").about(&request);
        assert_eq!(own.remedy, "do this", "who failed knows better");
        let bare = CniRequest { container_id: "c1".into(), ..CniRequest::default() };
        assert_eq!(PlugError::new(Stage::DeleteNic, "x").about(&bare).message, "container c1: x");
    }
}
