//! See the body. Try `cargo +nightly fuzz run oap_frame -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/oap_frame.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::oap_frame(data));
