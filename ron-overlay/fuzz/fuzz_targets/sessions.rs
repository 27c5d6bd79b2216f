//! See the body. Try `cargo +nightly fuzz run sessions -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/sessions.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::sessions(data));
