//! RFC 7047 notation of values (§5.1), both ways.
//!
//! Reading is directed by the schema, since the notation alone is ambiguous: a
//! set of one element may be written as a bare atom, `1` may be a real. Values
//! are read straight from the text of a message, without a tree in between, and
//! short strings (keys of maps above all) are shared through an [`Interner`].

mod read;

use std::sync::Arc;

use serde::de::DeserializeSeed;
use serde::ser::{SerializeSeq, SerializeTuple};
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::schema::ColumnType;
use crate::value::{Atom, AtomSet, Value};

pub(crate) use read::{UuidSeed, ValueSeed};

/// Shares equal short strings. Bounded: a slot per hash, the newest stays.
pub struct Interner {
    slots: Vec<Option<Arc<str>>>,
}

const SLOTS: usize = 8192;
const LONGEST: usize = 48;

impl Default for Interner {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS] }
    }
}

impl Interner {
    /// One that shares nothing and costs nothing.
    pub fn off() -> Self {
        Self { slots: Vec::new() }
    }

    /// An `Arc` of this text, shared with an earlier equal one if it is still known.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if text.len() > LONGEST || self.slots.is_empty() {
            return text.into();
        }
        // FNV-1a: a few nanoseconds for short keys, and nothing hostile gains
        // by collisions in a cache.
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let at = (hash ^ (hash >> 29)) as usize % self.slots.len();
        let slot = &mut self.slots[at];
        match slot {
            Some(known) if &**known == text => known.clone(),
            _ => {
                let new: Arc<str> = text.into();
                *slot = Some(new.clone());
                new
            }
        }
    }
}

impl Value {
    /// Reads a value from its notation, in the shape that `ty` prescribes.
    pub fn from_json(json: &serde_json::Value, ty: &ColumnType) -> Result<Self, serde_json::Error> {
        ValueSeed { ty: Some(ty), interner: &mut Interner::off() }.deserialize(json)
    }

    /// Reads a value from text, in the shape that `ty` prescribes (without one, in
    /// that of the notation): what an update's values go through. Short strings are
    /// shared through the interner.
    pub fn from_text(
        text: &str,
        ty: Option<&ColumnType>,
        interner: &mut Interner,
    ) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = ValueSeed { ty, interner }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }

    /// Reads a value without a schema: the shape is what the notation says.
    pub fn from_json_untyped(json: &serde_json::Value) -> Result<Self, serde_json::Error> {
        ValueSeed { ty: None, interner: &mut Interner::off() }.deserialize(json)
    }

    /// The notation as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        // Only strings, numbers and arrays come out of `Serialize` below.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The same value in the shape that a column type prescribes: an atom becomes
    /// a set for a set column, a set of one an atom for a scalar column.
    /// `None` if the value cannot have that shape.
    pub fn shaped(self, ty: &ColumnType) -> Option<Value> {
        match (self, ty.is_scalar(), ty.is_map()) {
            (Value::Atom(atom), true, _) => Some(Value::Atom(atom)),
            (Value::Atom(atom), false, false) => Some(Value::Set(AtomSet::from([atom]))),
            (Value::Set(set), true, _) if set.len() == 1 => set.first().cloned().map(Value::Atom),
            (Value::Set(set), false, false) => Some(Value::Set(set)),
            // `["set", []]` is also how an empty map may be written.
            (Value::Set(set), _, true) if set.is_empty() => Some(Value::empty_map()),
            (Value::Map(map), _, true) => Some(Value::Map(map)),
            (Value::Map(map), false, false) if map.is_empty() => Some(Value::empty_set()),
            _ => None,
        }
    }
}

impl Serialize for Atom {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Atom::Integer(i) => s.serialize_i64(*i),
            Atom::Real(r) => s.serialize_f64(r.get()),
            Atom::Boolean(b) => s.serialize_bool(*b),
            Atom::String(text) => s.serialize_str(text),
            Atom::Named(name) => tagged(s, "named-uuid", &**name),
            Atom::Uuid(u) => tagged(s, "uuid", &u.as_hyphenated().encode_lower(&mut Uuid::encode_buffer())),
        }
    }
}

fn tagged<S: Serializer, T: Serialize + ?Sized>(s: S, tag: &str, content: &T) -> Result<S::Ok, S::Error> {
    let mut pair = s.serialize_tuple(2)?;
    pair.serialize_element(tag)?;
    pair.serialize_element(content)?;
    pair.end()
}

struct Items<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Items<I> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(None)?;
        for item in self.0.clone() {
            seq.serialize_element(&item)?;
        }
        seq.end()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Atom(atom) => atom.serialize(s),
            Value::Set(set) => match (set.len(), set.first()) {
                (1, Some(atom)) => atom.serialize(s),
                _ => tagged(s, "set", &Items(set.iter())),
            },
            Value::Map(map) => tagged(s, "map", &Items(map.iter())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::schema::{AtomType, BaseType};
    use crate::value::AtomMap;

    /// Any atom of a type.
    pub(crate) fn atom(ty: AtomType) -> BoxedStrategy<Atom> {
        match ty {
            AtomType::Integer => prop_oneof![any::<i64>(), -3..3i64].prop_map(Atom::Integer).boxed(),
            AtomType::Real => (-1e12..1e12f64).prop_map(Atom::from).boxed(),
            AtomType::Boolean => any::<bool>().prop_map(Atom::Boolean).boxed(),
            AtomType::String => prop_oneof!["[a-c]{0,2}", "[\\[\\]{}\"\\\\\u{0}-\u{7f}ö€]{0,60}", ".{0,8}"]
                .prop_map(Atom::from)
                .boxed(),
            AtomType::Uuid => {
                prop_oneof![any::<u128>(), 0..4u128].prop_map(|u| Atom::Uuid(Uuid::from_u128(u))).boxed()
            }
        }
    }

    fn atom_type() -> impl Strategy<Value = AtomType> {
        use AtomType::{Boolean, Integer, Real, String, Uuid};
        prop::sample::select(vec![Integer, Real, Boolean, String, Uuid])
    }

    /// Any column type.
    pub(crate) fn column_type() -> impl Strategy<Value = ColumnType> {
        (atom_type(), prop::option::of(atom_type()), 0..3u8).prop_map(|(key, value, size)| {
            let key = BaseType::plain(key);
            match (value, size) {
                (Some(value), _) => ColumnType::map(key, BaseType::plain(value)),
                (None, 0) => ColumnType::scalar(key),
                (None, 1) => ColumnType::optional(key),
                (None, _) => ColumnType::set(key),
            }
        })
    }

    /// Any value of a column type.
    pub(crate) fn value(ty: &ColumnType) -> BoxedStrategy<Value> {
        let key = atom(ty.key.atom);
        if ty.is_scalar() {
            return key.prop_map(Value::Atom).boxed();
        }
        let size = 0..ty.max.min(5) + 1;
        match &ty.value {
            Some(value) => prop::collection::vec((key, atom(value.atom)), size)
                .prop_map(|pairs| Value::Map(pairs.into_iter().collect::<AtomMap>()))
                .boxed(),
            None => {
                prop::collection::vec(key, size).prop_map(|v| Value::Set(v.into_iter().collect())).boxed()
            }
        }
    }

    proptest! {
        #[test]
        fn values_survive_the_round_trip(
            (ty, value) in column_type().prop_flat_map(|ty| { let v = value(&ty); (Just(ty), v) })
        ) {
            // As a tree and as text, with and without sharing of strings.
            prop_assert_eq!(&Value::from_json(&value.to_json(), &ty).unwrap(), &value);
            let text = serde_json::to_string(&value).unwrap();
            let mut interner = Interner::default();
            for _ in 0..2 {
                let seed = ValueSeed { ty: Some(&ty), interner: &mut interner };
                let mut deserializer = serde_json::Deserializer::from_str(&text);
                prop_assert_eq!(&seed.deserialize(&mut deserializer).unwrap(), &value);
            }
            // Without a schema it is at least the same after shaping.
            if ty.key.atom != AtomType::Real && ty.value.as_ref().is_none_or(|v| v.atom != AtomType::Real) {
                let untyped = Value::from_json_untyped(&value.to_json()).unwrap();
                prop_assert_eq!(untyped.shaped(&ty), Some(value));
            }
        }
    }

    #[test]
    fn notation_is_rfc_7047() {
        let set = ColumnType::set(BaseType::plain(AtomType::String));
        for (json, strings) in [
            (json!("a"), vec!["a"]),
            (json!(["set", []]), vec![]),
            (json!(["set", ["b", "a"]]), vec!["a", "b"]),
            (json!(["set", ["a"]]), vec!["a"]),
        ] {
            assert_eq!(Value::from_json(&json, &set).unwrap(), Value::strings(strings));
        }
        assert_eq!(Value::strings(["a"]).to_json(), json!("a"));
        assert_eq!(Value::strings(["b", "a"]).to_json(), json!(["set", ["a", "b"]]));
        assert_eq!(Value::empty_map().to_json(), json!(["map", []]));
        assert_eq!(Value::string_map([("k", "v")]).to_json(), json!(["map", [["k", "v"]]]));
        let uuid = Uuid::from_u128(0xab);
        assert_eq!(Value::uuid(uuid).to_json(), json!(["uuid", "00000000-0000-0000-0000-0000000000ab"]));
        // An integer where a real is due is one.
        let real = ColumnType::scalar(BaseType::plain(AtomType::Real));
        assert_eq!(Value::from_json(&json!(3), &real).unwrap(), Value::from(3.0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let string = ColumnType::scalar(BaseType::plain(AtomType::String));
        let map = ColumnType::map(BaseType::plain(AtomType::String), BaseType::plain(AtomType::Integer));
        for (json, ty) in [
            (json!(1), &string),
            (json!(["set", []]), &string),
            (json!(["set", ["a", "b"]]), &string),
            (json!(["set", ["a"], 1]), &string),
            (json!(["uuid", "nonsense"]), &string),
            (json!({}), &string),
            (json!(null), &string),
            (json!("a"), &map),
            (json!(["map", [["a", "b"]]]), &map),
            (json!(["map", [["a"]]]), &map),
            (json!(["map", [["a", 1, 2]]]), &map),
            (json!(["bag", []]), &map),
            (json!([]), &map),
        ] {
            assert!(Value::from_json(&json, ty).is_err(), "{json} as {ty:?}");
        }
    }

    #[test]
    fn interner_shares_short_strings() {
        let mut interner = Interner::default();
        let (a, b) = (interner.get("namespace"), interner.get("namespace"));
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(&*interner.get(&"x".repeat(100)), "x".repeat(100));
    }
}
