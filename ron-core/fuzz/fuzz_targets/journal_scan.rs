//! Arbitrary bytes as the segments of a journal. Try `cargo +nightly fuzz run journal_scan -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/journal_scan.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::journal_scan(data));
