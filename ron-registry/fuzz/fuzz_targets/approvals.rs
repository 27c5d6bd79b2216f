//! See the body. Try `cargo +nightly fuzz run approvals -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/approvals.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::approvals(data));
