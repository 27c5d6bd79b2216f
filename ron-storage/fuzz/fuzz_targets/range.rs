//! See the body. Try `cargo +nightly fuzz run range -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/range.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::range(data));
