//! See the body. Try `cargo +nightly fuzz run ids -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/ids.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::ids(data));
