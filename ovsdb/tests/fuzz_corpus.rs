//! The committed corpus of the fuzzers, on the stable toolchain; see `fuzz/`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod checks;

use std::path::Path;

use rstest::rstest;

#[rstest]
#[case::framer("framer", checks::framer::check)]
#[case::notation("notation", checks::notation::check)]
#[case::delta("delta", checks::delta::check)]
fn the_corpus_of_the_fuzzer_passes(#[case] target: &str, #[case] check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 10, "{} has {} files", directory.display(), files.len());
    for file in files {
        println!("{}", file.display());
        check(&std::fs::read(&file).unwrap());
    }
}
