//! What is kept of a unit takes no more memory than it has to: no spare room, and
//! equal strings once. Compile functions need not think of it.
//!
//! A port's name alone stands in its row, in the row's name, in memberships, in the
//! lease and in the IP object; the names of switches and groups in thousands of units.

use std::sync::Arc;

use ovsdb::{Atom, Value};

use crate::facts::{Column, Facts, ObjectRef, RowKey};
use crate::strings::Shared;

/// Strings shared between units at most.
const SHARED: usize = 32_768;
/// Longest text of a column that is looked for among them.
const WORD: usize = 16;

pub(super) struct Compactor {
    /// Names of rows that others refer to.
    common: Shared<Arc<str>>,
}

impl Default for Compactor {
    fn default() -> Self {
        Self { common: Shared::new(SHARED) }
    }
}

impl Compactor {
    /// Makes a unit's facts compact. `objects` are those that it speaks about.
    pub(super) fn compact(&mut self, objects: &[ObjectRef], facts: &mut Facts) {
        for fact in &mut facts.rows {
            one_of(objects, &mut fact.row.key);
            if let Some((parent, _)) = &mut fact.parent {
                self.common(parent);
            }
            for (name, column) in fact.columns.iter_mut() {
                match column {
                    Column::Whole(Value::Atom(Atom::String(text)))
                        if name == "name" && *text == fact.row.key =>
                    {
                        *text = fact.row.key.clone();
                    }
                    // Actions and types are a few words; names are not.
                    Column::Whole(Value::Atom(Atom::String(text)))
                        if name != "name" && text.len() <= WORD =>
                    {
                        *text = self.common.get(&**text);
                    }
                    _ => {}
                }
            }
        }
        for member in &mut facts.members {
            self.common(&mut member.row);
            one_of(objects, &mut member.element.key);
        }
        facts.rows.shrink_to_fit();
        facts.members.shrink_to_fit();
        facts.keeps.shrink_to_fit();
    }

    fn common(&mut self, key: &mut RowKey) {
        key.key = self.common.get(&*key.key);
    }
}

/// Takes the name of an object that is the same: a port's IP object has its name.
fn one_of(objects: &[ObjectRef], text: &mut Arc<str>) {
    if let Some(object) = objects.iter().find(|object| object.name == *text) {
        *text = object.name.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::rows;
    use crate::facts::{Kind, Table};

    #[test]
    fn names_are_in_memory_once_and_facts_stay_what_they_are() {
        let objects = [ObjectRef::cluster(Kind::Ip, "a-0.web")];
        let (mut compactor, mut made) = (Compactor::default(), Vec::new());
        for _ in 0..2 {
            let mut facts = Facts::default();
            let switch = RowKey::new(Table::LogicalSwitch, "ovn-default");
            rows::named(Table::LogicalSwitchPort, "a-0.web", switch, "ports").ids(&[]).add(&mut facts);
            facts.members.push(rows::member("node.n.1", "a-0.web"));
            let before = facts.clone();
            compactor.compact(&objects, &mut facts);
            assert_eq!(facts, before);
            assert_eq!((facts.rows.capacity(), facts.members.capacity()), (1, 1));
            let row = &facts.rows[0];
            assert!(Arc::ptr_eq(&row.row.key, &objects[0].name));
            assert!(Arc::ptr_eq(&facts.members[0].element.key, &objects[0].name));
            let Column::Whole(Value::Atom(Atom::String(name))) = &row.columns["name"] else { panic!() };
            assert!(Arc::ptr_eq(name, &objects[0].name));
            made.push(facts);
        }
        let parent = |facts: &Facts| facts.rows[0].parent.as_ref().unwrap().0.key.clone();
        assert!(Arc::ptr_eq(&parent(&made[0]), &parent(&made[1])));
        assert!(Arc::ptr_eq(&made[0].members[0].row.key, &made[1].members[0].row.key));
        assert_eq!(made[0].members[0].row, RowKey::new(Table::PortGroup, "node.n.1"));
    }
}
