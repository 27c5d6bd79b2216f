//! See the body. Try `cargo +nightly fuzz run lanes -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/lanes.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::lanes(data));
