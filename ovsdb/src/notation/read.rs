//! Reading values from their notation, without a tree in between.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use uuid::Uuid;

use super::Interner;
use crate::schema::{AtomType, ColumnType};
use crate::value::{Atom, AtomMap, AtomSet, OrderedReal, Value};

/// Reads one value; with a type, in its shape.
pub(crate) struct ValueSeed<'a> {
    pub(crate) ty: Option<&'a ColumnType>,
    pub(crate) interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        let ty = self.ty;
        let value = d.deserialize_any(ValueVisitor {
            key: ty.map(|t| t.key.atom),
            value: ty.and_then(|t| t.value.as_ref()).map(|b| b.atom),
            interner: self.interner,
        })?;
        match ty {
            None => Ok(value),
            Some(ty) => {
                value.shaped(ty).ok_or_else(|| de::Error::custom("value does not fit the column's type"))
            }
        }
    }
}

struct ValueVisitor<'a> {
    key: Option<AtomType>,
    value: Option<AtomType>,
    interner: &'a mut Interner,
}

impl<'a> ValueVisitor<'a> {
    fn atom(self) -> AtomSeed<'a> {
        AtomSeed { ty: self.key, interner: self.interner }
    }
}

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an OVSDB value")
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Value, E> {
        self.atom().visit_i64(v).map(Value::Atom)
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Value, E> {
        self.atom().visit_u64(v).map(Value::Atom)
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        self.atom().visit_f64(v).map(Value::Atom)
    }
    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Value, E> {
        self.atom().visit_bool(v).map(Value::Atom)
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<Value, E> {
        self.atom().visit_str(v).map(Value::Atom)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let value = match required(seq.next_element_seed(TagSeed)?)? {
            Tag::Uuid => Value::Atom(self.atom().uuid(&mut seq)?),
            Tag::Set => {
                let seed = SetSeed(AtomSeed { ty: self.key, interner: self.interner });
                Value::Set(required(seq.next_element_seed(seed)?)?)
            }
            Tag::Map => {
                let seed = MapSeed { key: self.key, value: self.value, interner: self.interner };
                Value::Map(required(seq.next_element_seed(seed)?)?)
            }
        };
        end(&mut seq)?;
        Ok(value)
    }
}

fn required<T, E: de::Error>(item: Option<T>) -> Result<T, E> {
    item.ok_or_else(|| E::custom("array is too short"))
}

fn end<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    match seq.next_element::<de::IgnoredAny>()? {
        None => Ok(()),
        Some(_) => Err(de::Error::custom("array is too long")),
    }
}

/// The first element of an array in a value.
enum Tag {
    Uuid,
    Set,
    Map,
}

struct TagSeed;

impl<'de> DeserializeSeed<'de> for TagSeed {
    type Value = Tag;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Tag, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for TagSeed {
    type Value = Tag;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"uuid\", \"set\" or \"map\"")
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<Tag, E> {
        match v {
            "uuid" => Ok(Tag::Uuid),
            "set" => Ok(Tag::Set),
            "map" => Ok(Tag::Map),
            _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
        }
    }
}

/// Reads a UUID from its text.
pub(crate) struct UuidSeed;

impl<'de> DeserializeSeed<'de> for UuidSeed {
    type Value = Uuid;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Uuid, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for UuidSeed {
    type Value = Uuid;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a UUID")
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<Uuid, E> {
        Uuid::try_parse(v).map_err(|_| E::invalid_value(de::Unexpected::Str(v), &self))
    }
}

/// Reads one atom; with a type, of that type.
struct AtomSeed<'a> {
    ty: Option<AtomType>,
    interner: &'a mut Interner,
}

impl AtomSeed<'_> {
    fn reborrow(&mut self) -> AtomSeed<'_> {
        AtomSeed { ty: self.ty, interner: self.interner }
    }
    fn wants(&self, ty: AtomType) -> bool {
        self.ty.is_none_or(|t| t == ty)
    }
    fn wrong<E: de::Error>(&self, unexpected: de::Unexpected<'_>) -> E {
        E::invalid_type(unexpected, self)
    }
    /// The rest of `["uuid", "…"]` after the tag.
    fn uuid<'de, A: SeqAccess<'de>>(self, seq: &mut A) -> Result<Atom, A::Error> {
        if !self.wants(AtomType::Uuid) {
            return Err(self.wrong(de::Unexpected::Other("UUID")));
        }
        Ok(Atom::Uuid(required(seq.next_element_seed(UuidSeed)?)?))
    }
}

impl<'de> DeserializeSeed<'de> for AtomSeed<'_> {
    type Value = Atom;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Atom, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AtomSeed<'_> {
    type Value = Atom;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ty {
            None => f.write_str("an OVSDB atom"),
            Some(ty) => write!(f, "an atom of type {ty:?}"),
        }
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Atom, E> {
        match self.ty {
            None | Some(AtomType::Integer) => Ok(Atom::Integer(v)),
            Some(AtomType::Real) => Ok(Atom::Real(OrderedReal::new(v as f64))),
            Some(_) => Err(self.wrong(de::Unexpected::Signed(v))),
        }
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Atom, E> {
        match i64::try_from(v) {
            Ok(v) => self.visit_i64(v),
            Err(_) if self.ty == Some(AtomType::Real) => Ok(Atom::Real(OrderedReal::new(v as f64))),
            Err(_) => Err(self.wrong(de::Unexpected::Unsigned(v))),
        }
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Atom, E> {
        if !self.wants(AtomType::Real) {
            return Err(self.wrong(de::Unexpected::Float(v)));
        }
        Ok(Atom::Real(OrderedReal::new(v)))
    }
    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Atom, E> {
        if !self.wants(AtomType::Boolean) {
            return Err(self.wrong(de::Unexpected::Bool(v)));
        }
        Ok(Atom::Boolean(v))
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<Atom, E> {
        if !self.wants(AtomType::String) {
            return Err(self.wrong(de::Unexpected::Str(v)));
        }
        Ok(Atom::String(self.interner.get(v)))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Atom, A::Error> {
        match required(seq.next_element_seed(TagSeed)?)? {
            Tag::Uuid => {
                let atom = self.uuid(&mut seq)?;
                end(&mut seq)?;
                Ok(atom)
            }
            Tag::Set | Tag::Map => Err(self.wrong(de::Unexpected::Seq)),
        }
    }
}

struct SetSeed<'a>(AtomSeed<'a>);

impl<'de> DeserializeSeed<'de> for SetSeed<'_> {
    type Value = AtomSet;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<AtomSet, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for SetSeed<'_> {
    type Value = AtomSet;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of atoms")
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<AtomSet, A::Error> {
        let mut atoms = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(4096));
        while let Some(atom) = seq.next_element_seed(self.0.reborrow())? {
            atoms.push(atom);
        }
        Ok(atoms.into_iter().collect())
    }
}

struct MapSeed<'a> {
    key: Option<AtomType>,
    value: Option<AtomType>,
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for MapSeed<'_> {
    type Value = AtomMap;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<AtomMap, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MapSeed<'_> {
    type Value = AtomMap;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of pairs")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AtomMap, A::Error> {
        let mut pairs = Vec::new();
        loop {
            let pair = PairSeed { key: self.key, value: self.value, interner: &mut *self.interner };
            match seq.next_element_seed(pair)? {
                Some(pair) => pairs.push(pair),
                None => return Ok(pairs.into_iter().collect()),
            }
        }
    }
}

struct PairSeed<'a> {
    key: Option<AtomType>,
    value: Option<AtomType>,
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for PairSeed<'_> {
    type Value = (Atom, Atom);
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(Atom, Atom), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for PairSeed<'_> {
    type Value = (Atom, Atom);
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair of atoms")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(Atom, Atom), A::Error> {
        let key = AtomSeed { ty: self.key, interner: &mut *self.interner };
        let key = required(seq.next_element_seed(key)?)?;
        let value = AtomSeed { ty: self.value, interner: &mut *self.interner };
        let value = required(seq.next_element_seed(value)?)?;
        end(&mut seq)?;
        Ok((key, value))
    }
}
