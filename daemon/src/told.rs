//! Lines of loops that look at everything again and again: each is told once until it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// What was told, by what it is about.
#[derive(Debug, Default)]
pub struct Told(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl Told {
    /// Those of `lines`, which are all that is to be said about `what` now, that were not there the last time. One that was
    /// left out in between is told again.
    pub fn news(&self, what: &str, lines: impl IntoIterator<Item = String>) -> Vec<String> {
        let lines: BTreeSet<String> = lines.into_iter().collect();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match lines.is_empty() {
            true => told.remove(what),
            false => told.insert(what.to_owned(), lines.clone()),
        };
        lines.difference(&before.unwrap_or_default()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_once_until_it_changes() {
        let told = Told::default();
        let say = |what: &str, lines: &[&str]| told.news(what, lines.iter().map(|line| (*line).to_owned()));
        assert_eq!(say("a", &["x", "y"]), ["x", "y"]);
        assert_eq!(say("a", &["x", "z"]), ["z"]);
        assert_eq!(say("b", &["x"]), ["x"], "another matter");
        assert!(say("a", &["x", "z"]).is_empty() && say("a", &[]).is_empty());
        assert_eq!(say("a", &["x"]), ["x"], "it was well in between");
    }
}
