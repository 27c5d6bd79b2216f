//! See the body. Try `cargo +nightly fuzz run b3_path -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/b3_path.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::b3_path(data));
