//! Which subnets the pods of a namespace use (contract §2.2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::keys;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::io::Config;
use crate::objects::StringMap;
use crate::view::{SubnetView, VpcView};

/// Namespaces of the cluster itself stay on the cluster's subnet, whatever VPC
/// names them.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// Subnets of a namespace: the default subnet of the custom VPC that it belongs to,
/// then those bound to it by name or selector, by name; the cluster's default subnet
/// when there is none. A subnet on its way out is no new pod's.
pub(super) fn bound<'a>(
    config: &Config,
    views: &BTreeMap<Arc<str>, Arc<SubnetView>>,
    vpcs: impl Iterator<Item = (&'a Arc<str>, &'a VpcView)>,
    namespace: &str,
    labels: &StringMap,
) -> Vec<Arc<str>> {
    let binds = |view: &SubnetView| {
        !view.deleting
            && view.spec.provider == keys::DEFAULT_PROVIDER
            && (view.spec.namespaces.iter().any(|n| n == namespace)
                || view.spec.namespace_selectors.iter().any(|s| matches(s, labels)))
    };
    let mut names: Vec<Arc<str>> =
        views.iter().filter(|(_, view)| binds(view)).map(|(name, _)| name.clone()).collect();
    if let Some(first) = default_of_vpc(config, views, vpcs, namespace) {
        names.retain(|name| *name != first);
        names.insert(0, first);
    }
    if names.is_empty() { vec![config.default_ls.clone()] } else { names }
}

/// The default subnet of the custom VPC that names the namespace; of several such
/// VPCs the first by name counts.
fn default_of_vpc<'a>(
    config: &Config,
    views: &BTreeMap<Arc<str>, Arc<SubnetView>>,
    vpcs: impl Iterator<Item = (&'a Arc<str>, &'a VpcView)>,
    namespace: &str,
) -> Option<Arc<str>> {
    if namespace == SYSTEM_NAMESPACE {
        return None;
    }
    let mut owners = vpcs.filter(|(name, vpc)| {
        **name != config.cluster_router
            && !vpc.mirrored
            && !vpc.spec.default_subnet.is_empty()
            && vpc.spec.namespaces.iter().any(|n| n == namespace)
    });
    let (name, vpc) = owners.next()?;
    // One that is not there, or in another VPC, would send pods nowhere.
    let (subnet, view) = views.get_key_value(&*vpc.spec.default_subnet)?;
    (*view.spec.vpc == **name && !view.deleting).then(|| subnet.clone())
}

/// Kubernetes label selector semantics; an empty selector selects everything, an
/// unknown operator nothing.
pub(crate) fn matches(selector: &LabelSelector, labels: &StringMap) -> bool {
    let value = |key: &str| labels.get(key).map(|v| &**v);
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| value(k) == Some(v));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let listed = |v: &str| e.values.iter().flatten().collect::<BTreeSet<_>>().contains(&v.to_owned());
            match &*e.operator {
                "In" => value(&e.key).is_some_and(listed),
                "NotIn" => !value(&e.key).is_some_and(listed),
                "Exists" => value(&e.key).is_some(),
                "DoesNotExist" => value(&e.key).is_none(),
                _ => false,
            }
        })
}
