//! Holds `docs/node-checks.md` to the code: every test that it names exists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

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

#[test]
fn every_check_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut known = BTreeSet::new();
    let folders = ["daemon/src", "daemon/tests", "cni/src", "cni/tests", "controller/src", "tests/e2e/tests"];
    for folder in folders {
        functions(&root.join(folder), &mut known);
    }
    let page = std::fs::read_to_string(root.join("docs/node-checks.md")).unwrap();
    let (mut named, mut missing, mut ids) = (0, Vec::new(), BTreeSet::new());
    let mut unshown = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---")) {
        let cells: Vec<&str> = row.trim_matches('|').splitn(2, '|').collect();
        ids.extend(cells[0].split(',').map(|id| id.trim().to_owned()));
        // Or the reason why there is nothing to show.
        let begins = cells[1].trim();
        let excused = begins.starts_with("nothing to do: ") || begins.starts_with('D');
        if !begins.starts_with('`') && !excused && cells[1].trim() != "shown by" {
            unshown.push(row.to_owned());
        }
        for name in cells[1].split('`').skip(1).step_by(2) {
            // Chains and paths are written that way too.
            if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                named += 1;
                if !known.contains(name) {
                    missing.push(name.to_owned());
                }
            }
        }
    }
    assert!(missing.is_empty(), "not there, or no test: {missing:#?}");
    assert!(unshown.is_empty(), "rows without a test: {unshown:#?}");
    assert!(named > 100, "the table was not read: {named}");
    // The lists that the page is about, complete.
    let c = [10..=18, 20..=27, 30..=39, 40..=43, 50..=56].into_iter().flatten().map(|n| format!("C{n:03}"));
    let galaxy = (1..=14).map(|n| format!("C-{n:02}"));
    let k = [
        1..=8,
        20..=25,
        37..=38,
        40..=65,
        70..=80,
        90..=102,
        110..=114,
        120..=127,
        130..=134,
        140..=146,
        150..=164,
    ]
    .into_iter()
    .flatten()
    .chain([170, 171, 180, 181, 182, 183])
    .chain(190..=195)
    .map(|n| format!("K{n:03}"));
    // Of the contract what is the node's and not another feature (IPsec, tproxy).
    let sections = [(1, 1..=5), (2, 1..=9), (3, 1..=6), (4, 1..=9), (4, 12..=13), (5, 1..=3), (5, 7..=7)];
    let sections = sections.into_iter().flat_map(|(n, all)| all.map(move |m| format!("§{n}.{m}")));
    let missing: Vec<String> = sections
        .chain(["§0".to_owned()])
        .filter(|section| !ids.iter().any(|id| id.split(' ').next() == Some(section)))
        .collect();
    assert!(missing.is_empty(), "sections without a row: {missing:?}");
    let lost: Vec<String> = c.chain(galaxy).chain(k).filter(|id| !ids.contains(id)).collect();
    assert!(lost.is_empty(), "without a row: {lost:?}");
}
