//! See the body. Try `cargo +nightly fuzz run dto_json -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/dto_json.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::dto_json(data));
