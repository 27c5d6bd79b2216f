//! See the body. Try `cargo +nightly fuzz run requests -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/requests.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::requests(data));
