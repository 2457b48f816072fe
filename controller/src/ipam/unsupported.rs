//! Requests of pods that this version can't fulfil. A pod that makes one gets no
//! address and a message, rather than an address or a port that is not what was
//! asked for (a port without its security groups would be an open one).

use crds::keys;

use super::request::Error;
use crate::objects::StringMap;

/// Annotations of contract §2.1 that change the address or the port.
const ANNOTATIONS: &[&str] = &[keys::EIP, keys::SNAT, keys::SECURITY_GROUPS];

/// Why a pod that has no address yet gets none: it asks for something that is not
/// there. `None` when everything it asks for is understood.
pub fn unsupported(requests: &StringMap) -> Option<Error> {
    let key =
        ANNOTATIONS.iter().find(|key| requests.get(key).is_some_and(|value| !value.trim().is_empty()))?;
    Some(Error::Unsupported(format!(
        "annotation {key} is not supported by this version of Weir yet, so the pod gets no address; remove it \
         and create the pod again"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_was_asked_for() {
        let requests = |key: &str, value: &str| StringMap::from([(key.into(), value.into())]);
        assert_eq!(unsupported(&requests(keys::IP_ADDRESS, "10.16.0.5")), None);
        assert_eq!(unsupported(&requests(keys::EIP, " ")), None);
        let error = unsupported(&requests(keys::EIP, "p1")).unwrap();
        assert!(error.to_string().contains(keys::EIP), "{error}");
        assert_eq!(error.reason(), "AcquireAddressFailed");
    }
}
