//! Makes a value of any type with every field set, by deserializing from a source
//! that answers each question with something that is not the default.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

type Error = serde::de::value::Error;

/// A value with no field at its default. Lists and maps have one element.
pub(super) fn filled<T: DeserializeOwned>() -> T {
    T::deserialize(Filler).unwrap()
}

#[derive(Clone, Copy)]
struct Filler;

macro_rules! answers {
    ($($ask:ident => $visit:ident($value:expr);)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Filler {
    type Error = Error;

    answers! {
        deserialize_any => visit_u64(7);
        deserialize_bool => visit_bool(true);
        deserialize_i8 => visit_i8(7);
        deserialize_i16 => visit_i16(7);
        deserialize_i32 => visit_i32(7);
        deserialize_i64 => visit_i64(7);
        deserialize_u8 => visit_u8(7);
        deserialize_u16 => visit_u16(7);
        deserialize_u32 => visit_u32(7);
        deserialize_u64 => visit_u64(7);
        deserialize_f32 => visit_f32(7.0);
        deserialize_f64 => visit_f64(7.0);
        deserialize_char => visit_char('x');
        deserialize_str => visit_str("x");
        deserialize_string => visit_str("x");
        deserialize_identifier => visit_str("x");
        deserialize_ignored_any => visit_str("x");
        deserialize_bytes => visit_bytes(b"x");
        deserialize_byte_buf => visit_bytes(b"x");
        deserialize_option => visit_some(Filler);
        deserialize_seq => visit_seq(One(Some(())));
        deserialize_map => visit_map(Fields { names: &["x"], at: 0 });
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, v: V) -> Result<V::Value, Error> {
        v.visit_unit()
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, v: V) -> Result<V::Value, Error> {
        v.visit_newtype_struct(self)
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One(Some(())))
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(One(Some(())))
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { names, at: 0 })
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(StrDeserializer::new(variants[0]))
    }
}

/// A list of one element.
struct One(Option<()>);

impl<'de> SeqAccess<'de> for One {
    type Error = Error;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|()| seed.deserialize(Filler)).transpose()
    }
}

/// The fields of a struct, or the keys of a map.
struct Fields {
    names: &'static [&'static str],
    at: usize,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let name = self.names.get(self.at);
        self.at += 1;
        name.map(|name| seed.deserialize(StrDeserializer::new(name))).transpose()
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Filler)
    }
}
