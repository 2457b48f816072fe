//! Filling `${NAME}` into YAML.
//!
//! A line whose name has no value is left out; one whose name has several values
//! is repeated. Values are put inside double quotes in the templates, and escaped
//! for that. Comments are left out.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// Values by name.
pub(super) type Values = BTreeMap<&'static str, Vec<String>>;

/// The template with all values in place.
///
/// # Errors
/// A name without an entry, more than one name on a line, a value that can't stand
/// in YAML.
pub(super) fn fill(template: &str, values: &Values) -> Result<String> {
    let mut out = String::with_capacity(template.len());
    for line in template.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((before, rest)) = line.split_once("${") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let (name, after) = rest.split_once('}').with_context(|| format!("unclosed name in {line:?}"))?;
        ensure!(!after.contains("${"), "two names in {line:?}");
        for value in values.get(name).with_context(|| format!("no value for {name}"))? {
            ensure!(!value.contains(char::is_control), "{name} can't hold {value:?}");
            out.push_str(before);
            out.push_str(&value.replace('\\', "\\\\").replace('"', "\\\""));
            out.push_str(after);
            out.push('\n');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_and_multiply() {
        let values = Values::from([
            ("NONE", vec![]),
            ("ONE", vec!["a\"b\\".to_owned()]),
            ("TWO", vec!["x".to_owned(), "y".to_owned()]),
        ]);
        let template = "# ${NONE}\nk: \"${ONE}\"\nl:\n  - \"--n=${NONE}\"\n  - \"${TWO}\"\n";
        assert_eq!(fill(template, &values).unwrap(), "k: \"a\\\"b\\\\\"\nl:\n  - \"x\"\n  - \"y\"\n");
    }

    #[test]
    fn mistakes_are_refused() {
        let values = Values::from([("A", vec!["1\n2".to_owned()])]);
        fill("${A}", &values).unwrap_err();
        fill("${B}", &values).unwrap_err();
        fill("${A", &values).unwrap_err();
        fill("${A} ${A}", &values).unwrap_err();
    }
}
