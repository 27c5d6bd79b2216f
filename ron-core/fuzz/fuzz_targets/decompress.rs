//! Arbitrary bytes as a compressed body. Try `cargo +nightly fuzz run decompress -- -malloc_limit_mb=8`.
#![no_main]

#[path = "../bodies/decompress.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::decompress(data));
