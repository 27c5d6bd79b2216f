//! See the body. Try `cargo +nightly fuzz run records -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/records.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::records(data));
