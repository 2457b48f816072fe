//! Requests of pods that this version can't fulfil. A pod that makes one gets no
//! address and a message, rather than an address or a port that is not what was
//! asked for (a port without its security groups would be an open one).

use std::sync::Arc;

use crds::keys;

use super::request::Error;
use crate::objects::StringMap;

/// Annotations of contract §2.1 that change the address or the port.
const ANNOTATIONS: &[&str] = &[keys::EIP, keys::SNAT, keys::SECURITY_GROUPS];

/// Why a pod that has no address yet gets none: it asks for something that is not
/// there, or it runs a virtual machine (`owner` is kind and name). `None` when
/// everything it asks for is understood.
pub fn unsupported(requests: &StringMap, owner: Option<&(Arc<str>, Arc<str>)>) -> Option<Error> {
    if let Some((kind, name)) = owner
        && is_machine(kind)
    {
        return Some(Error::Unsupported(format!(
            "the pod runs virtual machine {name}: addresses that belong to a machine are not supported by this \
             version of Weir yet; use a version that does, or run the workload as a plain pod"
        )));
    }
    let key =
        ANNOTATIONS.iter().find(|key| requests.get(**key).is_some_and(|value| !value.trim().is_empty()))?;
    Some(Error::Unsupported(format!(
        "annotation {key} is not supported by this version of Weir yet, so the pod gets no address; remove it \
         and create the pod again"
    )))
}

/// The owner kind whose ports are named by the machine, not by the pod.
pub(crate) fn is_machine(kind: &str) -> bool {
    kind == "VirtualMachineInstance"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_was_asked_for() {
        let requests = |key: &str, value: &str| StringMap::from([(key.into(), value.into())]);
        assert_eq!(unsupported(&requests(keys::IP_ADDRESS, "10.16.0.5"), None), None);
        assert_eq!(unsupported(&requests(keys::EIP, " "), None), None);
        let error = unsupported(&requests(keys::EIP, "p1"), None).unwrap();
        assert!(error.to_string().contains(keys::EIP), "{error}");
        assert_eq!(error.reason(), "AcquireAddressFailed");
        let machine = ("VirtualMachineInstance".into(), "vm-1".into());
        assert!(unsupported(&StringMap::new(), Some(&machine)).unwrap().to_string().contains("vm-1"));
        assert_eq!(unsupported(&StringMap::new(), Some(&("StatefulSet".into(), "a".into()))), None);
    }
}
