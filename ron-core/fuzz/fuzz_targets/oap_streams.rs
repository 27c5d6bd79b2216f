//! See the body. Try `cargo +nightly fuzz run oap_streams -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/oap_streams.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::oap_streams(data));
