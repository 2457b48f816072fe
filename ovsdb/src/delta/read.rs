//! Reading updates from their notation, straight into columns by position.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use uuid::Uuid;

use super::{RowDelta, TableDelta};
use crate::notation::{Interner, UuidSeed, ValueSeed};
use crate::replica::{Replica, TableLayout};
use crate::value::Value;

/// How row updates are written.
#[derive(Clone, Copy)]
pub(super) enum Notation {
    /// `initial`, `insert`, `modify`, `delete`, with differences.
    Differences,
    /// `old` and `new` rows.
    Plain,
}

/// Reads updates by table.
pub(super) fn tables(
    json: &str,
    replica: &Replica,
    interner: &mut Interner,
    notation: Notation,
) -> Result<Vec<TableDelta>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let deltas = TablesSeed { replica, interner, notation }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(deltas)
}

struct TablesSeed<'a> {
    replica: &'a Replica,
    interner: &'a mut Interner,
    notation: Notation,
}

impl<'de> DeserializeSeed<'de> for TablesSeed<'_> {
    type Value = Vec<TableDelta>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TablesSeed<'_> {
    type Value = Vec<TableDelta>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("updates by table")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut deltas = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let table = self.replica.position(&name);
            let table = table.ok_or_else(|| A::Error::custom(format!("table {name} is not monitored")))?;
            let layout = self.replica.table_at(table).layout();
            let rows = map.next_value_seed(RowsSeed {
                layout,
                interner: &mut *self.interner,
                notation: self.notation,
            })?;
            deltas.push(TableDelta { table, rows });
        }
        Ok(deltas)
    }
}

struct RowsSeed<'a> {
    layout: &'a TableLayout,
    interner: &'a mut Interner,
    notation: Notation,
}

impl<'de> DeserializeSeed<'de> for RowsSeed<'_> {
    type Value = Vec<(Uuid, RowDelta)>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowsSeed<'_> {
    type Value = Vec<(Uuid, RowDelta)>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("row updates by UUID")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut rows = Vec::new();
        while let Some(uuid) = map.next_key_seed(UuidSeed)? {
            let (layout, interner) = (self.layout, &mut *self.interner);
            let row = map.next_value_seed(RowSeed { layout, interner, notation: self.notation })?;
            rows.push((uuid, row));
        }
        Ok(rows)
    }
}

struct RowSeed<'a> {
    layout: &'a TableLayout,
    interner: &'a mut Interner,
    notation: Notation,
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = RowDelta;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<RowDelta, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_> {
    type Value = RowDelta;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row update")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RowDelta, A::Error> {
        match self.notation {
            Notation::Differences => self.differences(map),
            Notation::Plain => self.plain(map),
        }
    }
}

impl RowSeed<'_> {
    fn differences<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<RowDelta, A::Error> {
        let kind: String = map.next_key()?.ok_or_else(|| A::Error::custom("empty row update"))?;
        let columns = ColumnsSeed { layout: self.layout, interner: self.interner };
        let delta = match kind.as_str() {
            "initial" | "insert" => {
                let values = with_defaults(self.layout, map.next_value_seed(columns)?);
                RowDelta::Present { initial: kind == "initial", values }
            }
            "modify" => RowDelta::Modify(map.next_value_seed(columns)?),
            "delete" => {
                map.next_value::<IgnoredAny>()?;
                RowDelta::Delete
            }
            other => return Err(A::Error::custom(format!("unknown row update {other}"))),
        };
        match map.next_key::<IgnoredAny>()? {
            None => Ok(delta),
            Some(_) => Err(A::Error::custom("row update with two kinds")),
        }
    }

    fn plain<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<RowDelta, A::Error> {
        let (mut old, mut new) = (false, None);
        while let Some(side) = map.next_key::<String>()? {
            let columns = ColumnsSeed { layout: self.layout, interner: &mut *self.interner };
            match side.as_str() {
                "old" if !old => {
                    map.next_value::<IgnoredAny>()?;
                    old = true;
                }
                "new" if new.is_none() => new = Some(map.next_value_seed(columns)?),
                other => return Err(A::Error::custom(format!("unknown or second {other} in a row update"))),
            }
        }
        match (old, new) {
            (false, Some(new)) => {
                Ok(RowDelta::Present { initial: false, values: with_defaults(self.layout, new) })
            }
            (true, Some(new)) => Ok(RowDelta::Rewrite(new)),
            (true, None) => Ok(RowDelta::Delete),
            (false, None) => Err(A::Error::custom("empty row update")),
        }
    }
}

fn with_defaults(layout: &TableLayout, columns: Vec<(usize, Value)>) -> Box<[Value]> {
    let mut values = layout.defaults();
    for (position, value) in columns {
        values[position] = value;
    }
    values
}

struct ColumnsSeed<'a> {
    layout: &'a TableLayout,
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for ColumnsSeed<'_> {
    type Value = Vec<(usize, Value)>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ColumnsSeed<'_> {
    type Value = Vec<(usize, Value)>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("columns")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut columns = Vec::with_capacity(self.layout.columns().len());
        while let Some(position) = map.next_key_seed(PositionSeed(self.layout))? {
            let ty = Some(&self.layout.columns()[position].1);
            columns.push((position, map.next_value_seed(ValueSeed { ty, interner: &mut *self.interner })?));
        }
        Ok(columns)
    }
}

/// A column's name, read as its position.
struct PositionSeed<'a>(&'a TableLayout);

impl<'de> DeserializeSeed<'de> for PositionSeed<'_> {
    type Value = usize;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<usize, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for PositionSeed<'_> {
    type Value = usize;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a monitored column")
    }
    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<usize, E> {
        self.0.position(name).ok_or_else(|| E::custom(format!("column {name} is not monitored")))
    }
}
