//! A node on the wire: who it is, and how it speaks.

mod identity;

pub use identity::{Identity, IdentityError, PublicKey, Signature, SignatureError};
