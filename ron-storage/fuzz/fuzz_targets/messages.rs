//! See the body. Try `cargo +nightly fuzz run messages -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/messages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::messages(data));
