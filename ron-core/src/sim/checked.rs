//! Signatures that a simulated world has checked before.
//!
//! All its nodes are in one process, and each checks what the others have checked: that took half of the time of a run of
//! whole nodes. Whether a signature holds depends on its bytes alone, so within a world it is computed once.

use std::{cell::RefCell, collections::HashMap};

use crate::net::SignatureError;

/// So many are remembered; then all are forgotten.
const CHECKED_MAX: usize = 1 << 16;

type Checked = HashMap<[u8; 32], Result<(), SignatureError>>;

thread_local! {
    /// Those of the world that runs on this thread.
    static CHECKED: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// While it lives, what is checked on this thread is remembered.
pub(super) struct Remembering(());

impl Remembering {
    pub(super) fn begin() -> Self {
        CHECKED.set(Some(Checked::new()));
        Remembering(())
    }
}

impl Drop for Remembering {
    fn drop(&mut self) {
        CHECKED.set(None);
    }
}

/// What `check` says of a signature by `key`, or said of it before.
pub(crate) fn once(
    key: &[u8; 32],
    signed: &[u8],
    signature: &[u8; 64],
    check: impl FnOnce() -> Result<(), SignatureError>,
) -> Result<(), SignatureError> {
    CHECKED.with_borrow_mut(|checked| {
        let Some(checked) = checked else { return check() };
        // Key and signature have fixed lengths, so nothing else has the same bytes.
        let name = *blake3::Hasher::new().update(key).update(signature).update(signed).finalize().as_bytes();
        if checked.len() >= CHECKED_MAX {
            checked.clear();
        }
        *checked.entry(name).or_insert_with(check)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Identity;

    #[test]
    fn what_is_remembered_is_the_very_signature() {
        let (one, other) = (Identity::from_seed(&[1; 32]), Identity::from_seed(&[2; 32]));
        let signature = one.sign("domain", b"message");
        let verify = |identity: &Identity, message: &[u8]| {
            identity.public_key().verify_strict("domain", message, &signature)
        };
        let _remembering = Remembering::begin();
        for _ in 0..2 {
            assert_eq!(verify(&one, b"message"), Ok(()));
            assert_eq!(verify(&one, b"massage"), Err(SignatureError::BadSignature));
            assert_eq!(verify(&other, b"message"), Err(SignatureError::BadSignature));
        }
        CHECKED.with_borrow(|checked| assert_eq!(checked.as_ref().map(HashMap::len), Some(3)));
    }

    #[test]
    fn outside_of_a_world_nothing_is_remembered() {
        drop(Remembering::begin());
        let one = Identity::from_seed(&[1; 32]);
        let signature = one.sign("domain", b"message");
        assert_eq!(one.public_key().verify_strict("domain", b"message", &signature), Ok(()));
        CHECKED.with_borrow(|checked| assert!(checked.is_none()));
    }
}
