//! From open groups to a wave of transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ovsdb::{Operation, Schema, Uuid, Value};

use super::build::Builder;
use super::diff;
use super::index::{MEMBER_COLUMNS, child_column};
use super::pending::{Group, Item, Phase};
use super::{Commit, Flight, epoch};
use crate::desired::Desired;
use crate::facts::{Column, MemberFact, RowFact, RowKey, Table};
use crate::io::Output;

/// Rows per transaction: enough to spread northd's and the server's fixed costs,
/// small enough that nobody waits long.
const ROWS_PER_TRANSACTION: usize = 100;
/// Operations (or rows, where one operation changes many) per wave, and of these
/// the share that bulk repair may take: a new pod waits at most for one wave.
const WAVE: usize = 2000;
const BULK_OF_WAVE: usize = 600;
/// More groups than this that wait for one row are checked for being still there.
const FORGET_BLOCKED: usize = 1024;
/// Transactions of isolated groups per wave.
const ISOLATED_PER_WAVE: usize = 20;

#[derive(Default)]
struct Draft {
    builder: Builder,
    groups: Vec<Group>,
    rows: usize,
    class: u8,
    after: BTreeSet<usize>,
}

impl Draft {
    fn size(&self) -> usize {
        self.rows.max(self.builder.operations_len())
    }
}

struct Planner<'a> {
    commit: &'a mut Commit,
    desired: &'a Desired,
    schema: Arc<Schema>,
    drafts: Vec<Draft>,
    current: Draft,
    /// Rows that this wave inserts, and by which draft.
    placed: BTreeMap<RowKey, (Uuid, usize)>,
    /// Rows that the transaction under construction will insert: groups that need each
    /// other's rows go together, so each may be referred to before its turn.
    reserved: BTreeMap<RowKey, Uuid>,
    done: BTreeSet<Group>,
    members: BTreeSet<MemberFact>,
    size: usize,
    /// Groups for which there was nothing to write.
    idle: Vec<Group>,
}

impl Commit {
    /// Takes ready groups and makes transactions of them.
    pub(super) fn plan_wave(&mut self, desired: &Desired, token: &str) -> Vec<Output> {
        let Some(schema) = self.schema.clone() else { return Vec::new() };
        let isolated: Vec<Vec<Group>> = {
            let count = self.isolate.len().min(ISOLATED_PER_WAVE);
            self.isolate.drain(..count).collect()
        };
        let mut planner = Planner {
            commit: self,
            desired,
            schema,
            drafts: Vec::new(),
            current: Draft::default(),
            placed: BTreeMap::new(),
            reserved: BTreeMap::new(),
            done: BTreeSet::new(),
            members: BTreeSet::new(),
            size: 0,
            idle: Vec::new(),
        };
        for groups in isolated {
            for group in groups {
                planner.group(&group);
            }
            planner.cut();
        }
        planner.queue();
        planner.cut();
        let Planner { drafts, idle, .. } = planner;
        // What they were opened for is over, which no change of a row of theirs told: or they would stay for ever.
        for group in &idle {
            self.judge_again(desired, group);
        }
        self.send(drafts, token)
    }

    fn send(&mut self, drafts: Vec<Draft>, token: &str) -> Vec<Output> {
        let first = self.tag + 1;
        let mut outputs = Vec::new();
        for draft in drafts {
            self.tag += 1;
            for group in &draft.groups {
                self.pending.set_phase(group, Phase::InFlight);
            }
            let mut operations: Vec<Operation> = vec![epoch::fence(token)];
            operations.extend(draft.builder.finish());
            self.counters.transactions += 1;
            self.counters.operations += operations.len() as u64 - 1;
            let after = draft.after.iter().map(|place| first + *place as u64).collect();
            self.flights.insert(self.tag, Flight { groups: draft.groups, after });
            outputs.push(Output::Transact { tag: self.tag, operations });
        }
        outputs
    }
}

impl Planner<'_> {
    fn queue(&mut self) {
        let mut place = (0, 0);
        let mut bulk = 0;
        while let Some((next, group)) = self.commit.pending.next_ready(place) {
            place = next;
            let used = self.size + self.current.size();
            if used >= WAVE {
                return;
            }
            if next.0 > 0 {
                if self.current.class == 0 {
                    self.cut();
                    self.current.class = 1;
                    bulk = self.size;
                }
                if used.saturating_sub(bulk) >= BULK_OF_WAVE {
                    return;
                }
            }
            self.group(&group);
            if self.current.rows >= ROWS_PER_TRANSACTION {
                self.cut();
            }
        }
    }

    /// Ends the current transaction.
    fn cut(&mut self) {
        let class = self.current.class;
        let draft = std::mem::replace(&mut self.current, Draft { class, ..Draft::default() });
        if !draft.builder.is_empty() {
            self.size += draft.size();
            self.drafts.push(draft);
        } else {
            self.idle.extend(draft.groups);
        }
    }

    /// Adds a group, after the groups that make rows it refers to, all to the same
    /// transaction. Groups that need each other's rows are no problem by that. Those
    /// that can't be sent now wait for what they lack.
    fn group(&mut self, group: &Group) {
        if self.done.contains(group) || !self.sendable(group) {
            return;
        }
        let mut together = Vec::new();
        if let Err(lacking) = self.closure(group, &mut BTreeSet::new(), &mut together) {
            for (group, key) in lacking {
                self.block(&group, key);
            }
            return;
        }
        for group in &together {
            for item in self.commit.pending.items(group) {
                if let Item::Row(key) = item
                    && let Some(fact) = self.desired.row(&key)
                    && self.commit.choose(&fact).is_none()
                {
                    let uuid = self.commit.fresh_uuid(&key);
                    self.reserved.insert(key, uuid);
                }
            }
        }
        for group in together {
            self.done.insert(group.clone());
            self.current.groups.push(group.clone());
            for item in self.commit.pending.items(&group) {
                match item {
                    Item::Row(key) => self.row(&key),
                    Item::Member(member) => self.member(member),
                    Item::Stray(table, uuid) => self.stray(table, uuid),
                }
            }
        }
        self.reserved.clear();
    }

    fn sendable(&self, group: &Group) -> bool {
        matches!(self.commit.pending.phase(group), Some(Phase::Ready(..) | Phase::Blocked))
    }

    /// The groups that have to go along, those that others refer to first. `Err` when
    /// a row is lacking: the groups on the way to it, each with the row it lacks.
    fn closure(
        &mut self,
        group: &Group,
        seen: &mut BTreeSet<Group>,
        together: &mut Vec<Group>,
    ) -> Result<(), Vec<(Group, RowKey)>> {
        seen.insert(group.clone());
        let items = self.commit.pending.items(group);
        for key in self.needs(&items) {
            if self.lookup(&key).is_some() {
                continue;
            }
            let maker = self.commit.pending.group_of(&Item::Row(key.clone())).cloned();
            let Some(maker) = maker.filter(|maker| seen.contains(maker) || self.sendable(maker)) else {
                return Err(vec![(group.clone(), key)]);
            };
            // A group of an earlier transaction of this wave has its rows placed.
            if self.done.contains(&maker) {
                return Err(vec![(group.clone(), key)]);
            }
            if !seen.contains(&maker)
                && let Err(mut lacking) = self.closure(&maker, seen, together)
            {
                lacking.push((group.clone(), key));
                return Err(lacking);
            }
        }
        together.push(group.clone());
        Ok(())
    }

    fn block(&mut self, group: &Group, key: RowKey) {
        self.commit.pending.set_phase(group, Phase::Blocked);
        let Commit { blocked_on, pending, .. } = &mut *self.commit;
        let blocked = blocked_on.entry(key).or_default();
        blocked.groups.insert(group.clone());
        if blocked.groups.len() > blocked.checked.max(FORGET_BLOCKED) {
            blocked.groups.retain(|group| pending.phase(group) == Some(Phase::Blocked));
            // Not again before there are twice as many.
            blocked.checked = 2 * blocked.groups.len();
        }
    }

    /// Rows outside of the group that must exist before it can be sent.
    fn needs(&self, items: &[Item]) -> BTreeSet<RowKey> {
        let mut needs = BTreeSet::new();
        let mut own = BTreeSet::new();
        for item in items {
            match item {
                Item::Row(key) => {
                    own.insert(key.clone());
                    if let Some(fact) = self.desired.row(key) {
                        needs.extend(fact.parent.iter().map(|(parent, _)| parent.clone()));
                        needs.extend(fact.columns.values().flat_map(|column| match column {
                            Column::Refs(rows) => rows.clone(),
                            _ => BTreeSet::new(),
                        }));
                    }
                }
                Item::Member(member) if !self.desired.member_owners(member).is_empty() => {
                    needs.insert(member.row.clone());
                    needs.insert(member.element.clone());
                }
                Item::Member(_) | Item::Stray(..) => {}
            }
        }
        needs.retain(|key| !own.contains(key));
        needs
    }

    /// UUID of a row, whether it exists or is about to.
    fn lookup(&mut self, key: &RowKey) -> Option<Uuid> {
        if let Some((uuid, draft)) = self.placed.get(key) {
            if *draft != self.drafts.len() {
                self.current.after.insert(*draft);
            }
            return Some(*uuid);
        }
        let existing = match self.desired.row(key) {
            Some(fact) => self.commit.choose(&fact),
            None => self.commit.index.find(key).next(),
        };
        existing.or_else(|| self.reserved.get(key).copied())
    }

    fn row(&mut self, key: &RowKey) {
        let desired = self.desired;
        let Some(fact) = desired.row(key) else { return };
        self.current.rows += 1;
        match self.commit.choose(&fact) {
            Some(uuid) => self.repair(&fact, uuid),
            None => self.insert(&fact),
        }
    }

    fn repair(&mut self, fact: &RowFact, uuid: Uuid) {
        let table = fact.row.table;
        let Some(row) = self.commit.index.row(table, &uuid).cloned() else { return };
        let schema = self.schema.clone();
        let changes = diff::columns(&schema, fact, &row, &mut |key| self.lookup(key));
        for (column, change) in changes {
            self.current.builder.change(table, uuid, column, change);
        }
        let Some((parent, column)) = &fact.parent else { return };
        let Some(wanted) = self.lookup(parent) else { return };
        let parents = self.commit.index.parents(&uuid).to_vec();
        if !parents.contains(&(parent.table, wanted)) {
            self.current.builder.refer(parent.table, wanted, column, uuid);
        }
        for (other, holder) in parents.into_iter().filter(|p| *p != (parent.table, wanted)) {
            if let Some(column) = child_column(other, table) {
                self.current.builder.drop_reference(other, holder, column, uuid);
            }
        }
    }

    fn insert(&mut self, fact: &RowFact) {
        let key = &fact.row;
        let uuid = self.reserved.get(key).copied().unwrap_or_else(|| self.commit.fresh_uuid(key));
        let schema = self.schema.clone();
        let mut columns = diff::initial(&schema, fact, &mut |key| self.lookup(key));
        // A set that many units fill comes with what exists, not with a mutation each.
        for (_, column, _) in MEMBER_COLUMNS.iter().filter(|(holder, ..)| *holder == key.table) {
            let mut elements = Vec::new();
            for element in self.desired.elements(key, column) {
                if let Some(uuid) = self.lookup(element) {
                    elements.push(uuid);
                    let element = element.clone();
                    self.members.insert(MemberFact { row: key.clone(), column, element });
                }
            }
            if !elements.is_empty() {
                columns.insert(column, Value::uuids(elements));
            }
        }
        self.current.builder.insert(key.table, uuid, columns);
        self.placed.insert(key.clone(), (uuid, self.drafts.len()));
        if let Some((parent, column)) = &fact.parent
            && let Some(holder) = self.lookup(parent)
        {
            self.current.builder.refer(parent.table, holder, column, uuid);
        }
        // Every weak reference to it goes along, whichever unit states it.
        for (row, column) in self.desired.groups_of(key) {
            let member = MemberFact { row: row.clone(), column, element: key.clone() };
            if self.lookup(row).is_some() {
                self.member(member);
            }
        }
    }

    fn member(&mut self, member: MemberFact) {
        if self.members.contains(&member) {
            return;
        }
        let (Some(holder), Some(element)) = (self.lookup(&member.row), self.lookup(&member.element)) else {
            return;
        };
        self.current.rows += 1;
        let table = member.row.table;
        let present = self.commit.index.has((table, &holder), member.column, element);
        let wanted = !self.desired.member_owners(&member).is_empty();
        if wanted && !present {
            self.current.builder.refer(table, holder, member.column, element);
        } else if present && !wanted {
            self.current.builder.drop_reference(table, holder, member.column, element);
        }
        self.members.insert(member);
    }

    fn stray(&mut self, table: Table, uuid: Uuid) {
        self.current.rows += 1;
        self.end_sessions(table, uuid);
        let parents = self.commit.index.parents(&uuid).to_vec();
        if parents.is_empty() && self.commit.index.row(table, &uuid).is_some() {
            self.current.builder.delete(table, uuid);
        }
        for (holder, parent) in parents {
            if let Some(column) = child_column(holder, table) {
                self.current.builder.drop_reference(holder, parent, column, uuid);
            }
        }
    }

    /// BFD sessions of the router ports that go with a row.
    fn end_sessions(&mut self, table: Table, uuid: Uuid) {
        let index = &self.commit.index;
        let ports: Vec<Uuid> = match table {
            Table::LogicalRouterPort => vec![uuid],
            Table::LogicalRouter => {
                let row = index.row(table, &uuid);
                row.and_then(|row| row.get("ports")).into_iter().flat_map(Value::set_uuids).collect()
            }
            _ => return,
        };
        let rows = ports.iter().filter_map(|port| index.row(Table::LogicalRouterPort, port));
        let names: Vec<String> = rows.filter_map(|row| row.str("name")).map(str::to_owned).collect();
        for name in names {
            if !self.desired.states(&RowKey::new(Table::LogicalRouterPort, &*name)) {
                self.current.builder.end_sessions(&name);
            }
        }
    }
}
