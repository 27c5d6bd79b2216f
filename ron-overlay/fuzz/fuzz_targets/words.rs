//! See the body. Try `cargo +nightly fuzz run words -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/words.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::words(data));
