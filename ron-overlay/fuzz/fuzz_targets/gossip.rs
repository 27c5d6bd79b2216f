//! See the body. Try `cargo +nightly fuzz run gossip -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/gossip.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::gossip(data));
