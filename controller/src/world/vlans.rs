//! Vlans (contract §1.6): which of two with one id of one physical network counts, and who
//! uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::renew::renew_all;
use super::{ByName, ReadKey, World};
use crate::objects::Vlan;
use crate::view::VlanView;

/// All Vlans.
#[derive(Default)]
pub(super) struct Vlans {
    pub(super) objects: ByName<Arc<Vlan>>,
    pub(super) views: ByName<Arc<VlanView>>,
    /// Something has changed since they were projected.
    pub(super) stale: bool,
}

/// Id and physical network, also where they stand under their old names.
pub(super) fn place(vlan: &Vlan) -> (i32, Arc<str>) {
    let spec = &vlan.spec;
    let id = if spec.id == 0 { spec.vlan_id } else { spec.id };
    let provider = if spec.provider.is_empty() { &spec.provider_interface_name } else { &spec.provider };
    (id, provider.as_str().into())
}

impl World {
    pub(super) fn set_vlan(&mut self, vlan: Arc<Vlan>) {
        let old = self.vlans.objects.insert(vlan.meta.name.clone(), vlan.clone());
        let decides = |vlan: &Vlan| (place(vlan), vlan.meta.uid.clone(), vlan.meta.deleting_at.is_some());
        let news = old.is_none_or(|old| decides(&old) != decides(&vlan));
        self.vlans.stale |= news;
        self.providers.stale |= news;
    }

    pub(super) fn remove_vlan(&mut self, name: &Arc<str>) {
        self.vlans.objects.remove(name);
        self.vlans.stale = true;
        self.providers.stale = true;
    }

    /// Projects all if something has changed: one's standing depends on the others. Of two
    /// that want the same the older one has it.
    pub(super) fn project_vlans(&mut self) {
        if !std::mem::take(&mut self.vlans.stale) {
            return;
        }
        let mut users: BTreeMap<&str, BTreeSet<Arc<str>>> = BTreeMap::new();
        for (name, subnet) in self.subnets.iter().filter(|(_, subnet)| !subnet.spec.vlan.is_empty()) {
            users.entry(&subnet.spec.vlan).or_default().insert(name.clone());
        }
        let mut all: Vec<&Arc<Vlan>> = self.vlans.objects.values().collect();
        all.sort_by_key(|vlan| (vlan.meta.created_at, vlan.meta.uid.clone(), vlan.meta.name.clone()));
        let mut taken: BTreeMap<(i32, Arc<str>), Arc<str>> = BTreeMap::new();
        let mut views: ByName<VlanView> = BTreeMap::new();
        for vlan in all {
            let (id, provider) = place(vlan);
            let name = &vlan.meta.name;
            let first = taken.entry((id, provider.clone())).or_insert_with(|| name.clone());
            let conflict = Some(first.clone()).filter(|first| first != name && id != 0);
            let subnets = users.get(&**name).into_iter().flatten().cloned().collect();
            let (uid, deleting) = (vlan.meta.uid.clone(), vlan.meta.deleting_at.is_some());
            views.insert(name.clone(), VlanView { uid, deleting, id, provider, conflict, subnets });
        }
        renew_all(&mut self.vlans.views, &mut self.changed, ReadKey::Vlan, views);
    }
}
