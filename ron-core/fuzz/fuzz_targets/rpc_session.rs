//! See the body. Try `cargo +nightly fuzz run rpc_session -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/rpc_session.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::rpc_session(data));
