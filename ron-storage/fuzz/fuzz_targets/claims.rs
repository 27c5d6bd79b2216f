//! See the body. Try `cargo +nightly fuzz run claims -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/claims.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::claims(data));
