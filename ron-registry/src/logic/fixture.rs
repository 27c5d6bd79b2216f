//! What the tests of the logic share: a few signers, and a log they decide about.

use std::sync::Arc;

use bytes::Bytes;
use ron_core::net::{Identity, PublicKey};

use super::{
    policy::{Policy, Signer},
    proposal::{Action, Content, Proposal},
};

pub(crate) const ORIGIN: &str = "example.com/registry";

/// When all of it begins, in milliseconds.
pub(crate) const START: u64 = 1_000_000;

/// Long after everything else.
pub(crate) const LATER: u64 = START + 1_000_000;

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed(&[seed + 1; 32])
}

pub(crate) fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

pub(crate) fn signer(seed: u8) -> Signer {
    Signer { name: format!("s{seed}"), key: key(seed), expires: None }
}

pub(crate) fn policy(needed: u32, signers: u8) -> Policy {
    Policy::of(needed, (0..signers).map(signer).collect()).unwrap()
}

pub(crate) fn propose(epoch: u64, action: Action) -> Proposal {
    Proposal::new(ORIGIN, epoch, LATER, action, None).unwrap()
}

pub(crate) fn bind(epoch: u64, name: &str, prior: u64, payload: &str) -> Proposal {
    let content = Content::Payload(Bytes::copy_from_slice(payload.as_bytes()));
    propose(epoch, Action::Bind { name: name.parse().unwrap(), content, prior })
}

pub(crate) fn retire(epoch: u64, name: &str, prior: u64) -> Proposal {
    propose(epoch, Action::Retire { name: name.parse().unwrap(), prior })
}

pub(crate) fn rotate(epoch: u64, policy: Policy) -> Proposal {
    propose(epoch, Action::Rotate { policy: Arc::new(policy) })
}
