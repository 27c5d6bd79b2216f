//! What the documents of the repository show as Rust, compiled and run as documentation tests of this library; it has nothing
//! else in it.

/// `README.md`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

/// `docs/embedding.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
pub mod embedding {}
