//! See the body. Try `cargo +nightly fuzz run entry -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/entry.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::entry(data));
