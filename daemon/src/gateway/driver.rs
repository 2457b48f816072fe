//! Reads the host, compares, writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use super::inputs::Inputs;
use super::rules;
use super::state::{HostChanges, HostState, Observed};
use crate::firewall::{
    Backend, Family, Learned, Result, Tools, diff, legacy_tables_in_use, parse_rules, parse_save, render,
};
use crate::netlink::Netlink;

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was written; empty on a quiet host.
    pub changes: HostChanges,
    /// What could not be made right, in words with a remedy; empty when all is well.
    pub problems: Vec<String>,
    /// Something failed that may succeed soon. Without it, problems stand until somebody acts on them: the next pass
    /// can wait for a change or the verification.
    pub retry: bool,
    /// Chains that this host's iptables prints in another notation than ours (for the log, once).
    pub learned: Vec<String>,
}

impl Report {
    fn failed(&mut self, error: &dyn std::error::Error) {
        self.problems.push(error.to_string());
        self.retry = true;
    }
}

/// Keeps one host's gateway state. One instance per host; calls are made one after the other.
#[derive(Debug)]
pub struct Gateway {
    tools: Tools,
    netlink: Option<Netlink>,
    backend: Backend,
    learned: BTreeMap<Family, Learned>,
    /// The other kind of iptables was looked through for rules of ours.
    other_cleaned: bool,
    legacy_in_use: bool,
    proxy_sets: BTreeSet<String>,
    /// Tables of external egress gateways that this agent has filled.
    tables: BTreeSet<u32>,
    /// The firewall is somebody else's.
    routes_only: bool,
}

const BOTH: [Family; 2] = [Family::V4, Family::V6];

impl Gateway {
    /// Finds out which iptables the host uses. `netlink` is of the host's namespace; without it routes are left alone.
    ///
    /// # Errors
    /// When the iptables programs can't be run.
    pub async fn new(tools: Tools, netlink: Option<Netlink>) -> Result<Self> {
        let legacy_in_use = legacy_tables_in_use(Path::new("/proc/net"));
        let backend = Backend::detect(&tools, &BOTH, legacy_in_use).await?;
        let mut gateway = Self::with_backend(tools, netlink, backend);
        gateway.legacy_in_use = legacy_in_use;
        gateway.proxy_sets = gateway.read_sets().await?.1;
        Ok(gateway)
    }

    /// The same with the kind of iptables given.
    pub fn with_backend(tools: Tools, netlink: Option<Netlink>, backend: Backend) -> Self {
        Self {
            tools,
            netlink,
            backend,
            learned: BTreeMap::new(),
            other_cleaned: false,
            legacy_in_use: true,
            proxy_sets: BTreeSet::new(),
            tables: BTreeSet::new(),
            routes_only: false,
        }
    }

    /// Non-primary mode: rules and sets of ours go, and none is made any more. Routes to pods are kept as ever: without
    /// them nobody on this node reaches a pod of ours.
    ///
    /// # Errors
    /// When a program fails; call it again.
    pub async fn leave_firewall(&mut self) -> Result<()> {
        self.remove_firewall().await?;
        self.remove_sets().await?;
        self.routes_only = true;
        self.other_cleaned = true;
        Ok(())
    }

    fn wanted(&self, inputs: &Inputs, observed: &Observed) -> HostState {
        let wanted = HostState::wanted(inputs);
        // Rules need their sets: they wait for them.
        if self.routes_only || observed.sets_unread { wanted.without_firewall() } else { wanted }
    }

    /// The kind of iptables in use.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Sets of kube-proxy's ipvs mode that the last pass saw; they belong into the next [`Inputs`].
    pub fn proxy_sets(&self) -> &BTreeSet<String> {
        &self.proxy_sets
    }

    /// What a pass would do, without doing it.
    ///
    /// # Errors
    /// When the host can't be read.
    pub async fn pending(&mut self, inputs: &Inputs) -> Result<HostChanges> {
        let observed = self.observe(inputs).await?;
        match observed.unread.first() {
            Some(error) => Err(error.clone()),
            None => Ok(self.wanted(inputs, &observed).changes(&observed, &self.learned)),
        }
    }

    /// Makes the host agree with the inputs. Idempotent: on a host that agrees nothing is written.
    ///
    /// # Errors
    /// When the host can't be read. What can't be written is in [`Report::problems`]; the rest is done nevertheless.
    pub async fn reconcile(&mut self, inputs: &Inputs) -> Result<Report> {
        let observed = self.observe(inputs).await?;
        Ok(self.apply(&observed, inputs).await)
    }

    /// [`reconcile`](Self::reconcile) with what was [observed](Self::observe) before: inputs gathered afterwards know the
    /// pod of every rule that a running ADD made until then.
    pub async fn apply(&mut self, observed: &Observed, inputs: &Inputs) -> Report {
        let wanted = self.wanted(inputs, observed);
        let changes = wanted.changes(observed, &self.learned);
        let mut report = Report::default();
        for error in &observed.unread {
            report.failed(error);
        }
        report.problems.extend(changes.sets.conflicts.iter().map(ToString::to_string));
        report.problems.extend(changes.route_conflicts.iter().map(|net| {
            format!(
                "another link has a route to {net}; remedy: remove that route or change the Subnet's CIDR"
            )
        }));

        self.restore_sets(&changes.sets.before, &mut report).await;
        for family in inputs.families() {
            self.restore_rules(&wanted, family, &changes, &mut report).await;
        }
        self.restore_sets(&changes.sets.after, &mut report).await;
        report.problems.extend(wanted.policies.problems.iter().cloned());
        if let Some(netlink) = self.netlink.clone() {
            self.route_policies(&netlink, &wanted, &changes, &mut report).await;
            for route in &changes.routes_set {
                if let Err(error) = netlink.replace_route(&route.to_netlink()).await {
                    report.failed(&error);
                }
            }
            for route in &changes.delete {
                if let Err(error) = netlink.delete_route(route).await {
                    report.failed(&error);
                }
            }
        }
        if !self.other_cleaned {
            match self.clean_other().await {
                Ok(()) => self.other_cleaned = true,
                Err(error) => report.failed(&error),
            }
        }
        report.changes = changes;
        report
    }

    async fn remove_firewall(&self) -> Result<()> {
        self.clean(self.backend).await?;
        if self.backend != Backend::Legacy || self.legacy_in_use {
            self.clean(self.backend.other()).await?;
        }
        Ok(())
    }

    async fn remove_sets(&self) -> Result<()> {
        let ours = self.read_sets().await?.0.ours;
        let script: String = ours.keys().map(|name| format!("destroy {name}\n")).collect();
        if !script.is_empty() {
            self.tools.run("ipset", &["restore"], Some(&script)).await?;
        }
        Ok(())
    }

    /// Takes all rules, chains and sets of ours off the host, in both kinds of iptables, and rules of policy routing.
    ///
    /// # Errors
    /// When a program fails; call it again.
    pub async fn remove(&mut self) -> Result<()> {
        self.remove_firewall().await?;
        if let Some(netlink) = self.netlink.clone() {
            let mut report = Report::default();
            let observed = self.observe(&Inputs::default()).await?;
            let nothing = HostState::default();
            let changes = nothing.changes(&observed, &BTreeMap::new());
            self.route_policies(&netlink, &nothing, &changes, &mut report).await;
            if let Some(problem) = report.problems.pop() {
                return Err(crate::firewall::Error::Failed { program: "netlink".into(), message: problem });
            }
        }
        self.remove_sets().await
    }

    /// Routes before the rules that lead to them; rules go before the routes that they led to.
    async fn route_policies(
        &mut self,
        netlink: &Netlink,
        wanted: &HostState,
        changes: &HostChanges,
        report: &mut Report,
    ) {
        for route in &changes.policy_routes {
            if let Err(error) = netlink.replace_route(&route.to_netlink()).await {
                report.problems.push(format!(
                    "table {}: the external egress gateway {} can't be used: {error}; remedy: a Subnet's \
                     spec.externalEgressGateway has to be in a network that this node is connected to",
                    route.table, route.gateway
                ));
                report.retry = true;
            }
        }
        self.tables.extend(wanted.policies.routes.iter().map(|route| route.table));
        for rule in &changes.policy_rules {
            if let Err(error) = netlink.add_rule(&rule.to_netlink()).await {
                report.failed(&error);
            }
        }
        for rule in &changes.delete_rules {
            if let Err(error) = netlink.delete_rule(rule).await {
                report.failed(&error);
            }
        }
        for route in &changes.delete_policy_routes {
            if let Err(error) = netlink.delete_route(route).await {
                report.failed(&error);
            }
        }
    }

    /// Whether the host has no chain, rule or set of ours, in either kind of iptables.
    ///
    /// # Errors
    /// When the host can't be read.
    pub async fn is_clean(&self) -> Result<bool> {
        if !self.read_sets().await?.0.ours.is_empty() {
            return Ok(false);
        }
        for backend in [Backend::Nft, Backend::Legacy] {
            if backend == Backend::Legacy && !self.legacy_in_use {
                continue;
            }
            for family in BOTH {
                let Ok(saved) = self.tools.run(&backend.program(family, "save"), &[], None).await else {
                    continue;
                };
                if !diff(&rules::unwanted(family), &parse_rules(&saved), &Learned::default()).is_empty() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads the host, rules of the families of `inputs`. What of the firewall can't be read is in [`Observed::unread`]:
    /// one family without its tools keeps nobody from the other.
    ///
    /// # Errors
    /// When the host's routes can't be read.
    pub async fn observe(&mut self, inputs: &Inputs) -> Result<Observed> {
        let mut observed = Observed { known_tables: self.tables.clone(), ..Observed::default() };
        if !self.routes_only {
            match self.read_sets().await {
                Ok((sets, proxy_sets)) => (observed.sets, self.proxy_sets) = (sets, proxy_sets),
                Err(error) => {
                    observed.sets_unread = true;
                    observed.unread.push(error);
                }
            }
            for family in inputs.families() {
                match self.tools.run(&self.backend.program(family, "save"), &[], None).await {
                    Ok(saved) => drop(observed.rules.insert(family, parse_rules(&saved))),
                    Err(error) => observed.unread.push(error),
                }
            }
        }
        let failed = |error: crate::netlink::Error| crate::firewall::Error::Failed {
            program: "netlink".into(),
            message: error.to_string(),
        };
        if let Some(netlink) = &self.netlink {
            observed.routes = netlink.routes().await.map_err(failed)?;
            observed.policy_rules = netlink.rules().await.map_err(failed)?;
        }
        Ok(observed)
    }

    async fn read_sets(&self) -> Result<(crate::firewall::SavedSets, BTreeSet<String>)> {
        let sets = parse_save(&self.tools.run("ipset", &["save"], None).await?);
        sets.count();
        let proxy = sets.others.iter().filter(|name| name.starts_with("KUBE-")).cloned().collect();
        Ok((sets, proxy))
    }

    async fn restore_sets(&self, script: &str, report: &mut Report) {
        if script.is_empty() {
            return;
        }
        if let Err(error) = self.tools.run("ipset", &["restore"], Some(script)).await {
            report.failed(&error);
        }
    }

    async fn restore_rules(
        &mut self,
        wanted: &HostState,
        family: Family,
        changes: &HostChanges,
        report: &mut Report,
    ) {
        let (changes, Some(wanted)) = (changes.rules(family), wanted.rules(family)) else { return };
        // A table that is refused keeps none of the others from being right.
        let mut written = Vec::new();
        for change in changes {
            match self.restore(self.backend, family, &render(std::slice::from_ref(change))).await {
                Ok(()) => written.push(change.clone()),
                Err(error) => report.failed(&error),
            }
        }
        if written.iter().all(|change| change.chains.is_empty()) {
            return;
        }
        match self.tools.run(&self.backend.program(family, "save"), &[], None).await {
            Ok(saved) => {
                let learned = self.learned.entry(family).or_default();
                report.learned.extend(learned.learn(wanted, &parse_rules(&saved), &written));
            }
            Err(error) => report.failed(&error),
        }
    }

    /// Waits for the lock that all users of iptables share, at most 30 s.
    async fn restore(&self, backend: Backend, family: Family, batch: &str) -> Result<()> {
        let program = backend.program(family, "restore");
        self.tools.run(&program, &["--noflush", "-w", "30"], Some(batch)).await.map(drop)
    }

    /// Rules of ours in the kind of iptables that the host does not use: left by an earlier agent, they would act twice.
    async fn clean_other(&self) -> Result<()> {
        if self.backend == Backend::Nft && !self.legacy_in_use {
            return Ok(());
        }
        self.clean(self.backend.other()).await
    }

    async fn clean(&self, backend: Backend) -> Result<()> {
        for family in BOTH {
            let saved = match self.tools.run(&backend.program(family, "save"), &[], None).await {
                Ok(saved) => parse_rules(&saved),
                // A host without this kind, or without IPv6, has nothing of ours in it.
                Err(_) if backend != self.backend || family == Family::V6 => continue,
                Err(error) => return Err(error),
            };
            let changes = diff(&rules::unwanted(family), &saved, &Learned::default());
            if !changes.is_empty() {
                self.restore(backend, family, &render(&changes)).await?;
            }
        }
        Ok(())
    }
}
