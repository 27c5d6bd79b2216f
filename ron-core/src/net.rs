//! A node on the wire: who it is, and how it speaks.

mod identity;
pub mod oap;

pub use identity::{Identity, IdentityError, PublicKey, Signature, SignatureError};
