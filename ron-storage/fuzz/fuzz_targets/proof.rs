//! See the body. Try `cargo +nightly fuzz run proof -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/proof.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::proof(data));
