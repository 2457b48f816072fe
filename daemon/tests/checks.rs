//! Holds `docs/node-checks.md` to the code: every test that it names exists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../tests/pages/mod.rs"]
mod pages;

use std::path::Path;

#[test]
fn every_check_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = [
        "daemon/src",
        "daemon/tests",
        "secure/src",
        "cni/src",
        "cni/tests",
        "controller/src",
        "tests/e2e/tests",
    ];
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
    let list = c.chain(galaxy).chain(k).chain(sections).chain(["§0".to_owned()]);
    pages::Page::read(root, "docs/node-checks.md").hold(root, &folders, list);
}
