//! See the body. Try `cargo +nightly fuzz run note -- -malloc_limit_mb=64`.
#![no_main]

#[path = "../bodies/note.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::note(data));
