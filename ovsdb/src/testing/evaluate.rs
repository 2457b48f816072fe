//! Conditions and mutations on values, as a server evaluates them
//! (RFC 7047 §5.1), for the in-memory database.

use crate::error::{TransactError, TransactErrorKind};
use crate::op::{Function, Mutator};
use crate::schema::{AtomType, ColumnType, UNLIMITED};
use crate::value::{Atom, AtomSet, Value};

pub(super) fn other(name: &str, details: impl Into<String>) -> TransactError {
    TransactError::from_wire(name, None, details)
}

pub(super) fn constraint(details: impl Into<String>) -> TransactError {
    TransactError::new(TransactErrorKind::Constraint, details)
}

/// A value as it may be stored in a column: its shape, types and constraints.
pub(super) fn stored(column: &str, value: &Value, ty: &ColumnType) -> Result<Value, TransactError> {
    let value = shaped(column, value, ty)?;
    let count = size(&value);
    if count < ty.min || count > ty.max {
        return Err(other("syntax error", format!("{column}: {count} values")));
    }
    check_atoms(column, &value, ty)?;
    Ok(value)
}

/// A value in the column's shape, of the right types, of any size.
fn shaped(column: &str, value: &Value, ty: &ColumnType) -> Result<Value, TransactError> {
    let mismatch = || other("syntax error", format!("{column}: {value:?} does not fit the column's type"));
    let value = value.clone().shaped(ty).ok_or_else(mismatch)?;
    let matches = |atom: &Atom, ty: AtomType| atom_type(atom) == Some(ty);
    let fits = match (&value, &ty.value) {
        (Value::Map(map), Some(v)) => map.iter().all(|(a, b)| matches(a, ty.key.atom) && matches(b, v.atom)),
        (value, _) => value.atoms().all(|atom| matches(atom, ty.key.atom)),
    };
    if fits { Ok(value) } else { Err(mismatch()) }
}

/// Type of an atom; none for a name, which is no value that can be stored.
fn atom_type(atom: &Atom) -> Option<AtomType> {
    match atom {
        Atom::Integer(_) => Some(AtomType::Integer),
        Atom::Real(_) => Some(AtomType::Real),
        Atom::Boolean(_) => Some(AtomType::Boolean),
        Atom::String(_) => Some(AtomType::String),
        Atom::Uuid(_) => Some(AtomType::Uuid),
        Atom::Named(_) => None,
    }
}

/// Checks the constraints of the base types.
pub(super) fn check_atoms(column: &str, value: &Value, ty: &ColumnType) -> Result<(), TransactError> {
    let failed = |problem: String| constraint(format!("{column}: {problem}"));
    for atom in value.atoms() {
        ty.key.check(atom).map_err(failed)?;
    }
    if let (Value::Map(map), Some(value_type)) = (value, &ty.value) {
        for (key, value) in map {
            ty.key.check(key).map_err(failed)?;
            value_type.check(value).map_err(failed)?;
        }
    }
    Ok(())
}

pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::Atom(_) => 1,
        Value::Set(set) => set.len(),
        Value::Map(map) => map.len(),
    }
}

/// The type that the operand of a condition must have.
pub(super) fn condition_type(
    column: &str,
    function: Function,
    ty: &ColumnType,
) -> Result<ColumnType, TransactError> {
    let mut ty = ty.clone();
    match function {
        // As long as the column itself may be.
        Function::Includes if !ty.is_scalar() => ty.min = 0,
        Function::Excludes if !ty.is_scalar() => {
            ty.min = 0;
            ty.max = UNLIMITED;
        }
        Function::Equal | Function::NotEqual | Function::Includes | Function::Excludes => {}
        _ if is_number(&ty) && ty.max == 1 => ty.min = 1,
        _ => return Err(other("syntax error", format!("{column}: only single numbers are ordered"))),
    }
    Ok(ty)
}

/// Checks the operand of a condition and brings it into shape.
pub(super) fn condition_operand(
    column: &str,
    function: Function,
    operand: &Value,
    ty: &ColumnType,
) -> Result<Value, TransactError> {
    stored(column, operand, &condition_type(column, function, ty)?)
}

fn is_number(ty: &ColumnType) -> bool {
    ty.value.is_none() && matches!(ty.key.atom, AtomType::Integer | AtomType::Real)
}

/// Whether a condition, its operand already checked, holds for a column's value.
pub(super) fn holds(held: &Value, function: Function, operand: &Value) -> bool {
    let ordered = |wanted: fn(std::cmp::Ordering) -> bool| match (held.single(), operand.single()) {
        (Some(held), Some(operand)) => wanted(held.cmp(operand)),
        _ => false,
    };
    match function {
        Function::Equal => held == operand,
        Function::NotEqual => held != operand,
        Function::Includes => includes(held, operand),
        Function::Excludes => excludes(held, operand),
        Function::Less => ordered(std::cmp::Ordering::is_lt),
        Function::LessOrEqual => ordered(std::cmp::Ordering::is_le),
        Function::Greater => ordered(std::cmp::Ordering::is_gt),
        Function::GreaterOrEqual => ordered(std::cmp::Ordering::is_ge),
    }
}

fn includes(held: &Value, operand: &Value) -> bool {
    match (held, operand) {
        (Value::Map(held), Value::Map(operand)) => operand.iter().all(|(k, v)| held.get(k) == Some(v)),
        _ => operand.atoms().all(|atom| has(held, atom)),
    }
}

fn excludes(held: &Value, operand: &Value) -> bool {
    match (held, operand) {
        (Value::Map(held), Value::Map(operand)) => operand.iter().all(|(k, v)| held.get(k) != Some(v)),
        _ => !operand.atoms().any(|atom| has(held, atom)),
    }
}

fn has(held: &Value, atom: &Atom) -> bool {
    match held {
        Value::Atom(a) => a == atom,
        Value::Set(set) => set.contains(atom),
        Value::Map(_) => false,
    }
}

/// The types that the operand of a mutation may have, in the order tried: for a
/// map, `delete` takes pairs or (as a set) keys.
pub(super) fn mutation_types(
    column: &str,
    mutator: Mutator,
    ty: &ColumnType,
) -> Result<Vec<ColumnType>, TransactError> {
    let mismatch =
        |needs| Err(other("syntax error", format!("{column}: {} needs {needs}", mutator.as_str())));
    let mut ty = ty.clone();
    match mutator {
        Mutator::Insert | Mutator::Delete if ty.is_scalar() => mismatch("a set or map"),
        Mutator::Insert => {
            ty.min = 0;
            Ok(vec![ty])
        }
        Mutator::Delete => {
            (ty.min, ty.max) = (0, UNLIMITED);
            let keys = ty.is_map().then(|| ColumnType { value: None, ..ty.clone() });
            Ok([ty].into_iter().chain(keys).collect())
        }
        Mutator::Modulo if ty.key.atom == AtomType::Real => mismatch("integers"),
        _ if is_number(&ty) => Ok(vec![ColumnType::scalar(crate::schema::BaseType::plain(ty.key.atom))]),
        _ => mismatch("numbers"),
    }
}

/// Checks the operand of a mutation and brings it into shape.
pub(super) fn mutation_operand(
    column: &str,
    mutator: Mutator,
    operand: &Value,
    ty: &ColumnType,
) -> Result<Value, TransactError> {
    let mut failed = None;
    for ty in mutation_types(column, mutator, ty)? {
        match stored(column, operand, &ty) {
            Ok(value) => return Ok(value),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| other("syntax error", format!("{column}: no operand"))))
}

/// The value after a mutation whose operand was checked.
pub(super) fn mutated(
    column: &str,
    held: &Value,
    mutator: Mutator,
    operand: &Value,
    ty: &ColumnType,
) -> Result<Value, TransactError> {
    let new = match (mutator, held) {
        (Mutator::Insert, Value::Map(map)) => {
            let mut map = map.clone();
            for (key, value) in operand.as_map().into_iter().flatten() {
                // A key that exists keeps its value.
                if !map.contains_key(key) {
                    map.insert(key.clone(), value.clone());
                }
            }
            Value::Map(map)
        }
        (Mutator::Delete, Value::Map(map)) => {
            let mut map = map.clone();
            for (key, value) in operand.as_map().into_iter().flatten() {
                if map.get(key) == Some(value) {
                    map.remove(key);
                }
            }
            for key in operand.atoms() {
                map.remove(key);
            }
            Value::Map(map)
        }
        (Mutator::Insert | Mutator::Delete, held) => {
            let mut set = held.as_set().cloned().unwrap_or_default();
            for atom in operand.atoms() {
                if mutator == Mutator::Insert {
                    set.insert(atom.clone());
                } else {
                    set.remove(atom);
                }
            }
            Value::Set(set)
        }
        _ => calculate(column, held, mutator, operand)?,
    };
    let count = size(&new);
    if count < ty.min || count > ty.max {
        return Err(constraint(format!("{column}: {count} values after the mutation")));
    }
    check_atoms(column, &new, ty)?;
    Ok(new)
}

fn calculate(column: &str, held: &Value, mutator: Mutator, operand: &Value) -> Result<Value, TransactError> {
    let mismatch = || other("syntax error", format!("{column}: {} needs numbers", mutator.as_str()));
    let operand = operand.single().ok_or_else(mismatch)?;
    let one = |atom: &Atom| -> Result<Atom, TransactError> {
        match (atom, operand) {
            (Atom::Integer(a), Atom::Integer(b)) => integer(*a, mutator, *b).map(Atom::Integer),
            (Atom::Real(a), Atom::Real(b)) => real(a.get(), mutator, b.get()).map(Atom::from),
            _ => Err(mismatch()),
        }
    };
    match held {
        Value::Atom(atom) => one(atom).map(Value::Atom),
        Value::Set(set) => {
            let new = set.iter().map(one).collect::<Result<AtomSet, _>>()?;
            if new.len() == set.len() {
                Ok(Value::Set(new))
            } else {
                Err(constraint(format!("{column}: the mutation makes duplicates")))
            }
        }
        Value::Map(_) => Err(mismatch()),
    }
}

fn integer(a: i64, mutator: Mutator, b: i64) -> Result<i64, TransactError> {
    let result = match mutator {
        Mutator::Add => a.checked_add(b),
        Mutator::Subtract => a.checked_sub(b),
        Mutator::Multiply => a.checked_mul(b),
        _ if b == 0 => return Err(other("domain error", "division by zero")),
        Mutator::Divide => a.checked_div(b),
        _ => a.checked_rem(b),
    };
    result.ok_or_else(|| other("range error", "the result does not fit"))
}

fn real(a: f64, mutator: Mutator, b: f64) -> Result<f64, TransactError> {
    let result = match mutator {
        Mutator::Add => a + b,
        Mutator::Subtract => a - b,
        Mutator::Multiply => a * b,
        Mutator::Divide if b == 0.0 => return Err(other("domain error", "division by zero")),
        Mutator::Divide => a / b,
        _ => return Err(other("syntax error", "%= needs integers")),
    };
    if result.is_finite() { Ok(result) } else { Err(other("range error", "the result does not fit")) }
}
