#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ovsdb_fuzz::notation::check(data));
