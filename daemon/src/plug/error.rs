//! Why an ADD or DEL failed, in terms of the contract.

use cni::api::CniResponse;

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
    /// The MTU is not known.
    Mtu,
    /// The address of the subnet's tunnels on this node.
    EncapIp,
    /// The interface itself.
    ConfigureNic,
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
            Self::Mtu => "mtu",
            Self::EncapIp => "encap-ip",
            Self::ConfigureNic => "configure-nic",
            Self::RemoveDefaultRoute => "remove-default-route",
            Self::DeleteNic => "delete-nic",
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
}
