//! Constraints of the schema, applied to values (RFC 7047 §3.2).

use std::fmt::Debug;

use super::{AtomType, BaseType, ColumnType, UNLIMITED};
use crate::value::{Atom, Value};

impl BaseType {
    /// Checks an atom against type and constraints; the error names the value and
    /// what is wrong with it.
    pub fn check(&self, atom: &Atom) -> Result<(), String> {
        self.check_type(atom)?;
        match atom {
            Atom::Integer(i) => within(*i, self.min_integer, self.max_integer)?,
            Atom::Real(r) => within(r.get(), self.min_real, self.max_real)?,
            Atom::String(s) => {
                let bounded = self.min_length.is_some() || self.max_length.is_some();
                let length = if bounded { s.chars().count() } else { 0 };
                within(length, self.min_length, self.max_length)
                    .map_err(|problem| format!("{atom:?} has a length that does not fit: {problem}"))?;
            }
            Atom::Boolean(_) | Atom::Uuid(_) | Atom::Named(_) => {}
        }
        match &self.one_of {
            Some(allowed) if !allowed.contains(atom) => Err(format!("{atom:?} is not one of {allowed:?}")),
            _ => Ok(()),
        }
    }

    /// Checks only that the atom has the type, and is something that servers take.
    pub fn check_type(&self, atom: &Atom) -> Result<(), String> {
        match (self.atom, atom) {
            // Servers refuse the whole message.
            (AtomType::String, Atom::String(s)) if s.contains('\0') => {
                Err(format!("{atom:?} contains a null character"))
            }
            (AtomType::Integer, Atom::Integer(_))
            | (AtomType::Real, Atom::Real(_))
            | (AtomType::Boolean, Atom::Boolean(_))
            | (AtomType::String, Atom::String(_))
            | (AtomType::Uuid, Atom::Uuid(_) | Atom::Named(_)) => Ok(()),
            (wanted, _) => Err(format!("{atom:?} is not of type {}", wanted.name())),
        }
    }
}

fn within<T: PartialOrd + Debug>(value: T, min: Option<T>, max: Option<T>) -> Result<(), String> {
    let low = min.as_ref().is_some_and(|min| value < *min);
    let high = max.as_ref().is_some_and(|max| value > *max);
    match (low || high, min, max) {
        (false, ..) => Ok(()),
        (true, Some(min), Some(max)) => Err(format!("{value:?} is not within {min:?} to {max:?}")),
        (true, Some(min), None) => Err(format!("{value:?} is less than {min:?}")),
        (true, None, Some(max)) => Err(format!("{value:?} is more than {max:?}")),
        (true, None, None) => Ok(()),
    }
}

impl ColumnType {
    /// Checks a value against shape, number of elements, types and constraints.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let shaped = self.check_shape(value)?;
        let count = match &shaped {
            Value::Atom(_) => 1,
            Value::Set(set) => set.len(),
            Value::Map(map) => map.len(),
        };
        if count < self.min || count > self.max {
            let most = if self.max == UNLIMITED { "any number".to_owned() } else { self.max.to_string() };
            return Err(format!("{count} elements, allowed are {} to {most}", self.min));
        }
        self.atoms(&shaped, BaseType::check)
    }

    /// Checks shape and types alone: what operands of conditions and removals are
    /// held to. Returns the value in the column's shape.
    pub(crate) fn check_shape(&self, value: &Value) -> Result<Value, String> {
        let what = match (self.is_scalar(), self.is_map()) {
            (_, true) => "a map",
            (true, _) => "one value",
            _ => "a set",
        };
        let shaped = value.clone().shaped(self).ok_or_else(|| format!("{value:?} is not {what}"))?;
        self.atoms(&shaped, BaseType::check_type)?;
        Ok(shaped)
    }

    fn atoms(
        &self,
        shaped: &Value,
        check: impl Fn(&BaseType, &Atom) -> Result<(), String>,
    ) -> Result<(), String> {
        match (shaped, &self.value) {
            (Value::Map(map), Some(value)) => map.iter().try_for_each(|(k, v)| {
                check(&self.key, k).map_err(|problem| format!("key {problem}"))?;
                check(value, v).map_err(|problem| format!("value of key {k:?}: {problem}"))
            }),
            _ => shaped.atoms().try_for_each(|atom| check(&self.key, atom)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::value::AtomSet;

    fn base(atom: AtomType, edit: impl FnOnce(&mut BaseType)) -> BaseType {
        let mut base = BaseType::plain(atom);
        edit(&mut base);
        base
    }

    #[rstest]
    #[case::integer(base(AtomType::Integer, |b| { b.min_integer = Some(1); b.max_integer = Some(9) }), 0i64.into(), 9i64.into(), "0 is not within 1 to 9")]
    #[case::least(base(AtomType::Integer, |b| b.min_integer = Some(1)), 0i64.into(), i64::MAX.into(), "0 is less than 1")]
    #[case::greatest(base(AtomType::Integer, |b| b.max_integer = Some(1)), 2i64.into(), i64::MIN.into(), "2 is more than 1")]
    #[case::real(base(AtomType::Real, |b| b.max_real = Some(0.5)), 0.75.into(), 0.5.into(), "0.75 is more than 0.5")]
    #[case::length(base(AtomType::String, |b| b.max_length = Some(2)), "abc".into(), "éé".into(), "\"abc\" has a length that does not fit: 3 is more than 2")]
    #[case::one_of(base(AtomType::String, |b| b.one_of = Some(AtomSet::from(["a".into(), "b".into()]))), "c".into(), "a".into(), "\"c\" is not one of {\"a\", \"b\"}")]
    #[case::null(BaseType::plain(AtomType::String), "a\0".into(), "a".into(), "\"a\\0\" contains a null character")]
    #[case::type_(BaseType::plain(AtomType::Boolean), "true".into(), true.into(), "\"true\" is not of type boolean")]
    fn constraints_name_the_value_and_the_bound(
        #[case] base: BaseType,
        #[case] bad: Atom,
        #[case] good: Atom,
        #[case] problem: &str,
    ) {
        assert_eq!(base.check(&bad).unwrap_err(), problem);
        assert_eq!(base.check(&good), Ok(()));
    }

    #[test]
    fn numbers_of_elements_and_shapes() {
        let string = || BaseType::plain(AtomType::String);
        let pair = ColumnType { key: string(), value: None, min: 1, max: 2 };
        assert_eq!(pair.check(&Value::empty_set()).unwrap_err(), "0 elements, allowed are 1 to 2");
        assert_eq!(
            pair.check(&Value::strings(["a", "b", "c"])).unwrap_err(),
            "3 elements, allowed are 1 to 2"
        );
        assert_eq!(pair.check(&"a".into()), Ok(()));
        let map = ColumnType::map(string(), BaseType::plain(AtomType::Integer));
        assert_eq!(map.check(&"a".into()).unwrap_err(), "\"a\" is not a map");
        let bad = Value::string_map([("k", "v")]);
        assert_eq!(map.check(&bad).unwrap_err(), "value of key \"k\": \"v\" is not of type integer");
        assert_eq!(ColumnType::scalar(string()).check(&bad).unwrap_err(), "{\"k\": \"v\"} is not one value");
    }
}
