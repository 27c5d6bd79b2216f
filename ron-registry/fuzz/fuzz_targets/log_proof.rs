//! See the body. Try `cargo +nightly fuzz run log_proof -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/log_proof.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::log_proof(data));
