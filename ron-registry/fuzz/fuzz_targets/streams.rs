//! See the body. Try `cargo +nightly fuzz run streams -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/streams.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::streams(data));
