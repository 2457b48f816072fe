//! Pages that say which test shows what: read, and held to the tests that there are. Used by
//! `controller/tests/checks.rs` (docs/controller-checks.md) and `daemon/tests/checks.rs` (docs/node-checks.md).

use std::collections::BTreeSet;
use std::path::Path;

/// A page of tables `| ids | shown by |`.
pub(crate) struct Page {
    /// Ids of all rows.
    pub(crate) ids: BTreeSet<String>,
    /// Tests that rows name.
    pub(crate) named: Vec<String>,
    /// Rows that name none, and give no reason for that.
    pub(crate) unshown: Vec<String>,
}

impl Page {
    /// Reads a page of the repository.
    pub(crate) fn read(root: &Path, name: &str) -> Self {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        let mut page = Self { ids: BTreeSet::new(), named: Vec::new(), unshown: Vec::new() };
        for row in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---")) {
            let cells: Vec<&str> = row.trim_matches('|').splitn(2, '|').collect();
            for id in cells[0].split(',').map(|id| id.trim().trim_matches('`')) {
                page.ids.insert(id.to_owned());
                // What it is about may stand behind the id.
                page.ids.extend(id.split(' ').next().map(str::to_owned));
            }
            // Or the reason why there is nothing to show.
            let begins = cells[1].trim();
            let excused = begins.starts_with("nothing to do: ") || begins.starts_with('D');
            if !begins.starts_with('`') && !excused && begins != "shown by" {
                page.unshown.push(row.to_owned());
            }
            // Chains and paths are written that way too.
            let test =
                |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            page.named.extend(cells[1].split('`').skip(1).step_by(2).filter(test).map(str::to_owned));
        }
        page
    }

    /// Every test that the page names exists below one of the folders, every row names one,
    /// and of the list that the page is about no id is missing.
    pub(crate) fn hold(&self, root: &Path, folders: &[&str], list: impl IntoIterator<Item = String>) {
        let mut known = BTreeSet::new();
        for folder in folders {
            functions(&root.join(folder), &mut known);
        }
        let missing: Vec<_> = self.named.iter().filter(|name| !known.contains(*name)).collect();
        assert!(missing.is_empty(), "not there, or no test: {missing:#?}");
        assert!(self.unshown.is_empty(), "rows without a test: {:#?}", self.unshown);
        assert!(self.named.len() > 100, "the table was not read: {}", self.named.len());
        let lost: Vec<String> = list.into_iter().filter(|id| !self.ids.contains(id)).collect();
        assert!(lost.is_empty(), "without a row: {lost:?}");
    }
}

/// Names of all tests below a folder.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines() {
                let attribute = line.trim();
                if ["#[test]", "#[tokio::test", "#[rstest]"].iter().any(|begin| attribute.starts_with(begin))
                {
                    is_test = true;
                }
                let Some((before, name)) = line.split_once("fn ") else { continue };
                let is_item = before.trim().is_empty() || before.trim().ends_with("async");
                if is_item && std::mem::take(&mut is_test) {
                    found.insert(name.split(['(', '<']).next().unwrap().to_owned());
                }
            }
        }
    }
}
