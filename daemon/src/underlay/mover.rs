//! Carries addresses and routes from one link to another, and waits for what the switch makes of the database.

use std::time::Duration;

use super::journal::{Journal, Load, boot_id};
use super::run::Underlay;
use super::{host_failed, not_yet, ovs_failed};
use crate::netlink::{ExactRoute, Link, Placed};
use crate::node::NotYet;
use crate::ovs::plan;

/// How long ovs-vswitchd may take to make an interface, or to let go of one.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many times a NIC is read again that somebody is configuring while it is emptied.
const MEANWHILE: usize = 5;
/// Who configures a NIC is done when nothing has come for this long.
const LULL: Duration = Duration::from_secs(2);
/// Pause before a look at the kernel; the switch makes a link in milliseconds.
const LOOK: Duration = Duration::from_millis(10);

impl Underlay {
    /// What a link carries now.
    pub(super) async fn load(&self, link: u32) -> Result<Load, NotYet> {
        let carried = self.parts.host.netlink.carried().await.map_err(|error| host_failed(&error))?;
        Ok(Load::of(&carried, link))
    }

    /// Puts addresses and routes on a link that it does not have yet; says what. A route that the kernel refuses, because
    /// what it speaks of is gone (its source, another of its hops), keeps no other one away: it is told once, and tried
    /// again by the next pass. Those routes.
    pub(super) async fn place(
        &self,
        link: &Link,
        load: &Load,
        placed: Placed,
    ) -> Result<Vec<ExactRoute>, NotYet> {
        let host = &self.parts.host.netlink;
        let missing = load.beyond(&self.load(link.index).await?);
        // The kernel puts the newest IPv6 address first.
        let (v4, v6) = (missing.family(false).addresses, missing.family(true).addresses);
        for address in v4.iter().chain(v6.iter().rev()) {
            tracing::info!(%address, link = link.name, "gives a link its address");
            host.place_address(link.index, address, placed).await.map_err(|error| host_failed(&error))?;
        }
        if load.routes.is_empty() {
            return Ok(Vec::new());
        }
        let carried = host.carried().await.map_err(|error| host_failed(&error))?;
        // Some came with the addresses.
        let mut left = missing.beyond(&Load::of(&carried, link.index)).routes;
        let refused = loop {
            let mut refused = Vec::new();
            for route in &left {
                match host.place_route(link.index, route, &carried).await {
                    Ok(()) => tracing::info!(%route, link = link.name, "gives a link its route"),
                    Err(error) if self.is_refused(link, &error).await? => {
                        refused.push((route.clone(), error.to_string()));
                    }
                    Err(error) => return Err(host_failed(&error)),
                }
            }
            // One may lead to another one's gateway.
            if refused.is_empty() || refused.len() == left.len() {
                break refused;
            }
            left = refused.into_iter().map(|(route, _)| route).collect();
        };
        let (refused, reasons): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
        for reason in self.lines.news(&link.name, reasons) {
            tracing::warn!(link = link.name, reason, "the kernel refuses a route; it stays recorded");
        }
        Ok(refused)
    }

    /// Whether a route could not be placed for its own sake. A link that is down itself takes no route at all.
    async fn is_refused(&self, link: &Link, error: &crate::netlink::Error) -> Result<bool, NotYet> {
        match error.errno() {
            Some(libc::EINVAL | libc::ENETUNREACH | libc::EHOSTUNREACH) => Ok(true),
            Some(libc::ENODEV | libc::ENETDOWN) => {
                let now = self.link(&link.name).await?;
                Ok(now.is_some_and(|now| now.index == link.index && now.up))
            }
            _ => Ok(false),
        }
    }

    /// Takes addresses and routes off a link: routes first, addresses from the last to the first.
    pub(super) async fn take(&self, link: &Link, load: &Load) -> Result<(), NotYet> {
        if load.is_empty() {
            return Ok(());
        }
        let host = &self.parts.host.netlink;
        let carried = host.carried().await.map_err(|error| host_failed(&error))?;
        for route in load.routes.iter().rev() {
            tracing::info!(%route, link = link.name, "takes a route off a link");
            host.take_route(link.index, route, &carried).await.map_err(|error| host_failed(&error))?;
        }
        // So that one that is put back by a successor is where it was.
        let (v4, v6) = (load.family(false).addresses, load.family(true).addresses);
        for address in v4.iter().rev().chain(&v6) {
            tracing::info!(%address, link = link.name, "takes an address off a link");
            host.take_address(link.index, address).await.map_err(|error| host_failed(&error))?;
        }
        Ok(())
    }

    /// Carries a load from a NIC to its bridge, with the NIC becoming a port (`attach`) in between. The NIC has it still
    /// ([`Self::clear`]). The routes that the kernel refuses the bridge.
    pub(super) async fn carry_over(
        &self,
        bridge: &Link,
        load: &Load,
        attach: impl Future<Output = Result<(), NotYet>>,
    ) -> Result<Vec<ExactRoute>, NotYet> {
        // IPv4 first: neighbours that ask the bridge get an answer as soon as it hears them. Of IPv6 the address alone,
        // for the kernel would choose among two links with one prefix.
        let early = Load { routes: Vec::new(), ..load.clone() };
        self.place(bridge, &early, Placed::Elsewhere).await?;
        attach.await?;
        // Behind the NIC's own, which then go.
        self.place(bridge, load, Placed::Elsewhere).await
    }

    /// Takes off a NIC what its bridge has, all but the `refused` routes. What somebody has put on it meanwhile is recorded (under `key`) and carried
    /// first: an address that no record knows would be lost, and the last address takes routes with it.
    pub(super) async fn clear(
        &self,
        key: &str,
        (nic, bridge): (&Link, &Link),
        mut refused: Vec<ExactRoute>,
        journal: &mut Journal,
    ) -> Result<(), NotYet> {
        let mut left = self.load(nic.index).await?;
        for _ in 0..MEANWHILE {
            if left.beyond(&journal.load).is_empty() {
                break;
            }
            *journal = std::mem::take(journal).next(&left, &boot_id());
            self.record(key, journal).await?;
            refused = self.place(bridge, &journal.load, Placed::Elsewhere).await?;
            left = self.load(nic.index).await?;
        }
        // What comes from now on stays where it is until the next pass, which its event brings.
        let mut staying = left.beyond(&journal.load);
        staying.routes.extend(refused);
        self.take(nic, &left.beyond(&staying)).await?;
        // The kernel dropped what hung on the last address; nothing else is in the way now.
        self.place(bridge, &journal.load, Placed::Elsewhere).await.map(drop)
    }

    /// Silences a NIC that has moved. Switching IPv6 off takes off what somebody has just put on, and who switches it on is
    /// about to put something on: it is left alone until it is quiet.
    pub(super) async fn silence(&self, nic: &Link, journal: &Journal) -> Result<(), NotYet> {
        let host = &self.parts.host;
        let mut ipv6 = !journal.load.family(true).addresses.is_empty();
        if ipv6 && (journal.moved || journal.renewing) && journal.settings.is_ipv6_on(host, &nic.name).await {
            tokio::time::sleep(LULL).await;
        }
        // The event of what came meanwhile brings another pass.
        ipv6 = ipv6 && self.load(nic.index).await?.family(true).is_empty();
        let silenced = journal.settings.silence(host, &nic.name, ipv6).await;
        silenced.map_err(|error| not_yet(format!("settings of {}: {error}", nic.name), ""))
    }

    /// A link by its name.
    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>, NotYet> {
        let found = self.parts.host.netlink.link(name).await.map_err(|error| host_failed(&error))?;
        // The kernel looks among second names too.
        Ok(found.filter(|link| link.name == name))
    }

    /// Waits for the interface of a bridge or an internal port.
    pub(super) async fn wait_link(&self, name: &str) -> Result<Link, NotYet> {
        let wait = async {
            loop {
                if let Some(link) = self.link(name).await? {
                    return Ok::<Link, NotYet>(link);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
            Err(not_yet(format!("ovs-vswitchd has not made interface {name}"), "is ovs-vswitchd running?"))
        })
    }

    /// Waits until the switch serves an interface: that of the userspace datapath outlives its process, and hears nothing.
    pub(super) async fn wait_served(&self, name: &str) -> Result<(), NotYet> {
        let wait = async {
            while !self.link(name).await?.is_some_and(|link| link.running) {
                tokio::time::sleep(LOOK).await;
            }
            Ok::<(), NotYet>(())
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
            let reason = format!("ovs-vswitchd does not serve interface {name}");
            Err(not_yet(reason, "is ovs-vswitchd running?"))
        })
    }

    /// Waits until a link that the switch made is gone.
    pub(super) async fn wait_gone(&self, name: &str, index: u32) -> Result<(), NotYet> {
        let wait = async {
            while self.link(name).await?.is_some_and(|link| link.index == index) {
                tokio::time::sleep(LOOK).await;
            }
            Ok::<(), NotYet>(())
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
            let reason = format!("ovs-vswitchd still keeps interface {name}, which has left the database");
            Err(not_yet(reason, "is ovs-vswitchd running?"))
        })
    }

    /// Waits until the switch has opened a device.
    pub(super) async fn wait_opened(&self, port: &str) -> Result<(), NotYet> {
        let mut views = self.parts.ovs.subscribe();
        let settled = |view: &crate::ovs::View| {
            view.interface(port).is_some_and(|interface| interface.ofport().is_some_and(|number| number != 0))
        };
        let waited =
            tokio::time::timeout(PATIENCE, views.wait_for(settled)).await.is_ok_and(|view| view.is_ok());
        let interface = self.parts.ovs.view().interface(port);
        match interface.as_ref().and_then(crate::ovs::Interface::ofport) {
            Some(number) if number > 0 => Ok(()),
            _ if !waited => Err(not_yet(
                format!("ovs-vswitchd has not opened {port} within {PATIENCE:?}"),
                "is ovs-vswitchd running?",
            )),
            _ => {
                let why = interface.as_ref().and_then(|i| i.error()).unwrap_or("no reason given").to_owned();
                let reason = format!("ovs-vswitchd can't open {port}: {why}");
                Err(not_yet(reason, "free the device of whatever holds it"))
            }
        }
    }

    /// Makes an interface of the switch's own, and waits until ovs-vswitchd is done with it.
    pub(super) async fn make_inner(
        &self,
        name: &str,
        wish: impl Fn(&crate::ovs::View) -> Result<Vec<ovsdb::Operation>, crate::ovs::PlanError>,
    ) -> Result<Link, NotYet> {
        self.change(|view| plan::and_apply(view, &wish)).await?;
        // Also for what a process before this one asked for.
        crate::node::acted(&self.parts.ovs, super::STEP, name).await?;
        self.wait_link(name).await
    }

    /// Changes the database.
    pub(super) async fn change(
        &self,
        wish: impl Fn(&crate::ovs::View) -> Result<Vec<ovsdb::Operation>, crate::ovs::PlanError>,
    ) -> Result<(), NotYet> {
        self.parts.ovs.apply(wish).await.map_err(|error| ovs_failed(&error))
    }
}
