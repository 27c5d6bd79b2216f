//! What somebody proposes, and what a signer says about it.
//!
//! A proposal names the state it was made for: the log, the epoch of its policy, and which entry spoke last about the
//! name. So it can be committed once, and whatever was approved is void as soon as something else was decided about the
//! same name. What happens to other names does not touch it. An approval says all of that again, and until when it
//! counts, so that a signer's device can show what is signed without having the proposal.

use std::{fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use minicbor::{Decoder, Encoder};
use ron_core::{
    ContentId,
    net::{
        Identity, PublicKey, Signature, SignatureError,
        cbor::{self, CborFault, read_array, read_bytes, read_only_map, required},
    },
};

use super::{
    chain::{ChainHash, HashTextError, Head},
    checkpoint::is_origin,
    names::{NAME_BYTES_MAX, POLICY_KEY, Place, place_of},
    policy::{POLICY_BYTES_MAX, Policy, PolicyError, Right},
};

/// Bytes of the longest payload that an entry carries itself. Longer ones are named by their hash.
pub const PAYLOAD_BYTES_MAX: usize = 48 << 10;

/// Bytes of the longest proposal. With 64 approvals of 112 bytes it still fits an entry.
pub const PROPOSAL_BYTES_MAX: usize = 56 << 10;

/// Bytes of the longest approval.
pub const APPROVAL_BYTES_MAX: usize = 1 << 10;

/// What an approval is signed for.
const APPROVAL_DOMAIN: &str = "ron-registry approval 1";
const DIGEST: &str = "ron-registry proposal 1";

const ORIGIN: u64 = 0;
const EPOCH: u64 = 1;
const EXPIRES: u64 = 2;
const KIND: u64 = 3;
const NAME: u64 = 4;
const PRIOR: u64 = 5;
const ARTIFACT: u64 = 6;
const PAYLOAD: u64 = 7;
const POLICY: u64 = 8;
const HEAD_VERSION: u64 = 9;
const HEAD_HASH: u64 = 10;

const FOUND: u8 = 0;
const BIND: u8 = 1;
const RETIRE: u8 = 2;
const ROTATE: u8 = 3;

const BY_ORIGIN: u64 = 0;
const BY_EPOCH: u64 = 1;
const BY_PROPOSAL: u64 = 2;
const BY_PRIOR: u64 = 3;
const BY_EXPIRES: u64 = 4;
const BY_KEY: u64 = 5;
const BY_SIGNATURE: u64 = 6;

/// Why bytes or text are not a proposal, an approval or an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// More bytes, or more of something, than there may be.
    #[error("too many {what}: at most {limit}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Not deterministic CBOR of the one form there is.
    #[error("not in the one form there is")]
    Malformed,
    /// Something that is always there is not.
    #[error("lacks field {field}")]
    Missing {
        /// Its number.
        field: u64,
    },
    /// A value that its field does not allow.
    #[error("{what} is out of range")]
    OutOfRange {
        /// Which value.
        what: &'static str,
    },
    /// Not a name: 1 to 255 visible ASCII characters, parts between slashes, none empty, `.` or `..`, no `@` in front.
    #[error("not a name")]
    BadName,
    /// Not a name that a log may have.
    #[error("not the name of a log")]
    BadOrigin,
    /// The policy in it is not valid.
    #[error("the policy is not valid")]
    Policy(#[from] PolicyError),
    /// A format that this version does not know; a newer one may.
    #[error("format {format}")]
    UnknownFormat {
        /// Which.
        format: u64,
    },
}

impl From<CborFault> for FormError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::Malformed => FormError::Malformed,
            CborFault::TooMany { what } => FormError::OutOfRange { what },
            CborFault::Missing { key } => FormError::Missing { field: key },
            CborFault::OutOfRange { what } => FormError::OutOfRange { what },
        }
    }
}

impl From<minicbor::decode::Error> for FormError {
    fn from(_: minicbor::decode::Error) -> Self {
        FormError::Malformed
    }
}

/// A name that content can have, such as `tools/compiler/1.2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Self, FormError> {
        let is_plain = text.len() <= NAME_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_path = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if is_plain && is_path && !text.starts_with('@') {
            Ok(Name(text.into()))
        } else {
            Err(FormError::BadName)
        }
    }
}

/// The hash of a proposal, which is what is approved. Written as 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposalId([u8; 32]);

impl ProposalId {
    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        ProposalId(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ProposalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for ProposalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ProposalId {
    type Err = HashTextError;

    fn from_str(text: &str) -> Result<Self, HashTextError> {
        text.parse::<ChainHash>().map(|hash| ProposalId(*hash.as_bytes()))
    }
}

/// What a name would stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Something elsewhere, by its hash.
    Artifact(ContentId),
    /// Something small, in the entry itself.
    Payload(Bytes),
}

impl Content {
    /// The hash of the content, wherever it is.
    #[must_use]
    pub fn id(&self) -> ContentId {
        match self {
            Content::Artifact(id) => *id,
            Content::Payload(bytes) => ContentId::of(bytes),
        }
    }
}

impl From<ContentId> for Content {
    fn from(id: ContentId) -> Self {
        Content::Artifact(id)
    }
}

/// What a proposal wants to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The log begins, with this policy. Only the first entry does this.
    Found {
        /// Who decides from then on.
        policy: Arc<Policy>,
    },
    /// A name stands for something from then on.
    Bind {
        /// The name.
        name: Name,
        /// What it stands for.
        content: Content,
        /// The version of the entry that spoke last about the name; 0 if none did.
        prior: u64,
    },
    /// A name stands for nothing any more.
    Retire {
        /// The name.
        name: Name,
        /// The version of the entry that bound it.
        prior: u64,
    },
    /// Another policy decides from then on.
    Rotate {
        /// The policy.
        policy: Arc<Policy>,
    },
}

impl Action {
    /// Which rule of the policy is asked. Nobody is asked about a beginning.
    #[must_use]
    pub fn right(&self) -> Option<Right> {
        match self {
            Action::Found { .. } => None,
            Action::Bind { .. } => Some(Right::Bind),
            Action::Retire { .. } => Some(Right::Retire),
            Action::Rotate { .. } => Some(Right::Rotate),
        }
    }

    /// The name it is about, if it is about one.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Action::Bind { name, .. } | Action::Retire { name, .. } => Some(name),
            Action::Found { .. } | Action::Rotate { .. } => None,
        }
    }

    /// Under which key the map of names has what it is about.
    pub(super) fn key(&self) -> &str {
        self.name().map_or(POLICY_KEY, Name::as_str)
    }

    /// Which entry must have spoken last about the name.
    #[must_use]
    pub fn prior(&self) -> u64 {
        match self {
            Action::Bind { prior, .. } | Action::Retire { prior, .. } => *prior,
            Action::Found { .. } | Action::Rotate { .. } => 0,
        }
    }
}

/// What somebody wants the log to say. It is its bytes; everything else follows from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    origin: String,
    epoch: u64,
    expires: u64,
    action: Action,
    expect_head: Option<Head>,
    id: ProposalId,
    /// The hash of what a name shall stand for: made once, by whoever brings the proposal.
    content_id: Option<ContentId>,
    /// Where its name, or the policy, is in the map of names: made once, too.
    place: Place,
    encoded: Bytes,
}

impl Proposal {
    /// Proposes `action` to the log `origin` under the policy of `epoch`. It can be committed before `expires`, in
    /// milliseconds of the Unix epoch, and, with `expect_head`, only directly after that head.
    ///
    /// # Errors
    /// [`FormError::BadOrigin`], [`FormError::TooLarge`], [`FormError::OutOfRange`] for retiring what never was.
    pub fn new(
        origin: &str,
        epoch: u64,
        expires: u64,
        action: Action,
        expect_head: Option<Head>,
    ) -> Result<Self, FormError> {
        if !is_origin(origin) {
            return Err(FormError::BadOrigin);
        }
        match &action {
            Action::Bind { content: Content::Payload(bytes), .. } if bytes.len() > PAYLOAD_BYTES_MAX => {
                return Err(FormError::TooLarge { what: "payload bytes", limit: PAYLOAD_BYTES_MAX });
            }
            Action::Retire { prior: 0, .. } => return Err(FormError::OutOfRange { what: "prior" }),
            _ => {}
        }
        let encoded = Bytes::from(encode(origin, epoch, expires, &action, expect_head.as_ref()));
        let id = ProposalId(blake3::derive_key(DIGEST, &encoded));
        let content_id = match &action {
            Action::Bind { content, .. } => Some(content.id()),
            Action::Found { .. } | Action::Retire { .. } | Action::Rotate { .. } => None,
        };
        let place = place_of(action.key());
        let origin = origin.to_owned();
        Ok(Proposal { origin, epoch, expires, action, expect_head, id, content_id, place, encoded })
    }

    /// Reads a proposal.
    ///
    /// # Errors
    /// A [`FormError`].
    pub fn decode(encoded: &Bytes) -> Result<Self, FormError> {
        if encoded.len() > PROPOSAL_BYTES_MAX {
            return Err(FormError::TooLarge { what: "proposal bytes", limit: PROPOSAL_BYTES_MAX });
        }
        let (mut origin, mut epoch, mut expires, mut kind) = (None, None, None, None);
        let (mut name, mut prior, mut artifact, mut payload) = (None, None, None, None);
        let (mut policy, mut head_version, mut head_hash) = (None, None, None);
        read_only_map(encoded, |key, cbor| {
            match key {
                ORIGIN => origin = Some(cbor.str()?),
                EPOCH => epoch = Some(cbor.u64()?),
                EXPIRES => expires = Some(cbor.u64()?),
                KIND => kind = Some(cbor.u8()?),
                NAME => name = Some(cbor.str()?.parse::<Name>()?),
                PRIOR => prior = Some(cbor.u64()?),
                ARTIFACT => artifact = Some(ContentId::from_bytes(read_array(cbor, "artifact")?)),
                PAYLOAD => {
                    payload = Some(encoded.slice_ref(read_bytes(cbor, ("payload", PAYLOAD_BYTES_MAX))?))
                }
                POLICY => policy = Some(Policy::decode(read_bytes(cbor, ("policy", POLICY_BYTES_MAX))?)?),
                HEAD_VERSION => head_version = Some(cbor.u64()?),
                HEAD_HASH => head_hash = Some(ChainHash::from_bytes(read_array(cbor, "head")?)),
                _ => return Ok::<_, FormError>(false),
            }
            Ok(true)
        })?;
        let policy = || Ok::<_, FormError>(Arc::new(required(policy, POLICY)?));
        let action = match required(kind, KIND)? {
            FOUND => Action::Found { policy: policy()? },
            ROTATE => Action::Rotate { policy: policy()? },
            BIND => {
                let content = match (artifact, payload) {
                    (Some(id), None) => Content::Artifact(id),
                    (None, payload) => Content::Payload(required(payload, PAYLOAD)?),
                    (Some(_), Some(_)) => return Err(FormError::Malformed),
                };
                Action::Bind { name: required(name, NAME)?, content, prior: required(prior, PRIOR)? }
            }
            RETIRE => Action::Retire { name: required(name, NAME)?, prior: required(prior, PRIOR)? },
            _ => return Err(FormError::OutOfRange { what: "kind" }),
        };
        let expect_head = match (head_version, head_hash) {
            (None, None) => None,
            (version, hash) => {
                Some(Head { version: required(version, HEAD_VERSION)?, hash: required(hash, HEAD_HASH)? })
            }
        };
        let (epoch, expires) = (required(epoch, EPOCH)?, required(expires, EXPIRES)?);
        let mut proposal = Proposal::new(required(origin, ORIGIN)?, epoch, expires, action, expect_head)?;
        // Fields that do not belong to this kind, keys that nobody knows, numbers longer than need be: all show here.
        if proposal.encoded != encoded {
            return Err(FormError::Malformed);
        }
        // The bytes that came, so that a payload inside them is not kept twice.
        proposal.encoded = encoded.clone();
        Ok(proposal)
    }

    /// The log it is for.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The epoch of the policy it was made under.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// From when on it can no longer be committed, in milliseconds of the Unix epoch.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// What it wants to change.
    #[must_use]
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// The head it must directly follow, if it must.
    #[must_use]
    pub fn expect_head(&self) -> Option<Head> {
        self.expect_head
    }

    /// Its hash.
    #[must_use]
    pub fn id(&self) -> ProposalId {
        self.id
    }

    /// The hash of what a name shall stand for, if it shall stand for something.
    #[must_use]
    pub fn content_id(&self) -> Option<ContentId> {
        self.content_id
    }

    /// Where what it is about is in the map of names.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Its bytes: deterministic CBOR.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Approves it until `expires`, in milliseconds of the Unix epoch.
    #[must_use]
    pub fn approve(&self, signer: &Identity, expires: u64) -> Approval {
        let statement = self.statement(expires);
        let signature = signer.sign(APPROVAL_DOMAIN, &statement.encode());
        Approval { statement, key: signer.public_key(), signature }
    }

    /// What a signer signs.
    fn statement(&self, expires: u64) -> Statement {
        Statement {
            origin: self.origin.clone(),
            epoch: self.epoch,
            proposal: self.id,
            prior: self.action.prior(),
            expires,
        }
    }
}

fn encode(origin: &str, epoch: u64, expires: u64, action: &Action, expect_head: Option<&Head>) -> Vec<u8> {
    let fields = match action {
        Action::Found { .. } | Action::Rotate { .. } => 1,
        Action::Retire { .. } => 2,
        Action::Bind { .. } => 3,
    };
    cbor::encode(256, |cbor| {
        cbor.map(4 + fields + if expect_head.is_some() { 2 } else { 0 })?;
        cbor.u64(ORIGIN)?.str(origin)?.u64(EPOCH)?.u64(epoch)?.u64(EXPIRES)?.u64(expires)?.u64(KIND)?;
        match action {
            Action::Found { policy } => cbor.u8(FOUND)?.u64(POLICY)?.bytes(policy.encoded())?,
            Action::Rotate { policy } => cbor.u8(ROTATE)?.u64(POLICY)?.bytes(policy.encoded())?,
            Action::Retire { name, prior } => {
                cbor.u8(RETIRE)?.u64(NAME)?.str(name.as_str())?.u64(PRIOR)?.u64(*prior)?
            }
            Action::Bind { name, content, prior } => {
                cbor.u8(BIND)?.u64(NAME)?.str(name.as_str())?.u64(PRIOR)?.u64(*prior)?;
                match content {
                    Content::Artifact(id) => cbor.u64(ARTIFACT)?.bytes(id.as_bytes())?,
                    Content::Payload(bytes) => cbor.u64(PAYLOAD)?.bytes(bytes)?,
                }
            }
        };
        if let Some(head) = expect_head {
            cbor.u64(HEAD_VERSION)?.u64(head.version)?.u64(HEAD_HASH)?.bytes(head.hash.as_bytes())?;
        }
        Ok(())
    })
}

/// What a signer signs: which proposal, and all that it hangs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The log.
    pub origin: String,
    /// The epoch of its policy.
    pub epoch: u64,
    /// The proposal.
    pub proposal: ProposalId,
    /// Which entry must have spoken last about the name.
    pub prior: u64,
    /// From when on it does not count, in milliseconds of the Unix epoch.
    pub expires: u64,
}

impl Statement {
    fn encode(&self) -> Vec<u8> {
        cbor::encode(128, |cbor| self.write(cbor, 5))
    }

    fn write<W: minicbor::encode::Write>(
        &self,
        cbor: &mut Encoder<W>,
        fields: u64,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        cbor.map(fields)?.u64(BY_ORIGIN)?.str(&self.origin)?.u64(BY_EPOCH)?.u64(self.epoch)?;
        cbor.u64(BY_PROPOSAL)?.bytes(self.proposal.as_bytes())?.u64(BY_PRIOR)?.u64(self.prior)?;
        cbor.u64(BY_EXPIRES)?.u64(self.expires)?;
        Ok(())
    }
}

/// A signer's word for a proposal, as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    statement: Statement,
    key: PublicKey,
    signature: Signature,
}

impl Approval {
    /// Its bytes: deterministic CBOR.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        cbor::encode(256, |cbor| {
            self.statement.write(cbor, 7)?;
            cbor.u64(BY_KEY)?.bytes(self.key.as_bytes())?;
            cbor.u64(BY_SIGNATURE)?.bytes(self.signature.as_bytes())?.ok()
        })
    }

    /// Reads what [`encode`](Self::encode) writes, and nothing else. The signature is for [`verify`](Self::verify).
    ///
    /// # Errors
    /// A [`FormError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormError> {
        if bytes.len() > APPROVAL_BYTES_MAX {
            return Err(FormError::TooLarge { what: "approval bytes", limit: APPROVAL_BYTES_MAX });
        }
        let (mut origin, mut epoch, mut proposal, mut prior) = (None, None, None, None);
        let (mut expires, mut key, mut signature) = (None, None, None);
        read_only_map(bytes, |field, cbor| {
            match field {
                BY_ORIGIN => origin = Some(cbor.str()?.to_owned()),
                BY_EPOCH => epoch = Some(cbor.u64()?),
                BY_PROPOSAL => proposal = Some(ProposalId(read_array(cbor, "proposal")?)),
                BY_PRIOR => prior = Some(cbor.u64()?),
                BY_EXPIRES => expires = Some(cbor.u64()?),
                BY_KEY => key = Some(PublicKey::from_bytes(read_array(cbor, "key")?)),
                BY_SIGNATURE => signature = Some(Signature::from_bytes(read_array(cbor, "signature")?)),
                _ => return Ok::<_, FormError>(false),
            }
            Ok(true)
        })?;
        let statement = Statement {
            origin: required(origin, BY_ORIGIN)?,
            epoch: required(epoch, BY_EPOCH)?,
            proposal: required(proposal, BY_PROPOSAL)?,
            prior: required(prior, BY_PRIOR)?,
            expires: required(expires, BY_EXPIRES)?,
        };
        let (key, signature) = (required(key, BY_KEY)?, required(signature, BY_SIGNATURE)?);
        let approval = Approval { statement, key, signature };
        if approval.encode() == bytes { Ok(approval) } else { Err(FormError::Malformed) }
    }

    /// What it says.
    #[must_use]
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// Who says it.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Checks the signature: some fifty microseconds.
    ///
    /// # Errors
    /// A [`SignatureError`].
    pub fn verify(self) -> Result<VerifiedApproval, SignatureError> {
        self.key.verify_strict(APPROVAL_DOMAIN, &self.statement.encode(), &self.signature)?;
        Ok(VerifiedApproval(self))
    }
}

/// An approval whose signature holds. What it is worth is for the policy to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedApproval(Approval);

impl VerifiedApproval {
    /// What it says.
    #[must_use]
    pub fn statement(&self) -> &Statement {
        &self.0.statement
    }

    /// Who says it.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.0.key
    }

    /// As it is kept in an entry, which says the rest itself.
    #[must_use]
    pub fn recorded(&self) -> RecordedApproval {
        RecordedApproval { key: self.0.key, expires: self.0.statement.expires, signature: self.0.signature }
    }

    /// Whether it says yes to this proposal, in every word.
    #[must_use]
    pub fn is_for(&self, proposal: &Proposal) -> bool {
        let Statement { origin, epoch, proposal: id, prior, expires: _ } = &self.0.statement;
        (origin, *epoch, *id, *prior)
            == (&proposal.origin, proposal.epoch, proposal.id, proposal.action.prior())
    }
}

/// An approval beside the proposal it is for, in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedApproval {
    /// Who.
    pub key: PublicKey,
    /// Until when, in milliseconds of the Unix epoch.
    pub expires: u64,
    /// The proof.
    pub signature: Signature,
}

impl RecordedApproval {
    /// Checks that it was given for this proposal.
    ///
    /// # Errors
    /// A [`SignatureError`].
    pub fn verify(&self, proposal: &Proposal) -> Result<(), SignatureError> {
        self.key.verify_strict(APPROVAL_DOMAIN, &proposal.statement(self.expires).encode(), &self.signature)
    }

    pub(crate) fn write<W: minicbor::encode::Write>(
        &self,
        cbor: &mut Encoder<W>,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        cbor.array(3)?.bytes(self.key.as_bytes())?.u64(self.expires)?.bytes(self.signature.as_bytes())?;
        Ok(())
    }

    pub(crate) fn read(cbor: &mut Decoder<'_>) -> Result<Self, FormError> {
        if cbor.array()? != Some(3) {
            return Err(FormError::Malformed);
        }
        let key = PublicKey::from_bytes(read_array(cbor, "key")?);
        let expires = cbor.u64()?;
        let signature = Signature::from_bytes(read_array(cbor, "signature")?);
        Ok(RecordedApproval { key, expires, signature })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::fixture::{ORIGIN, identity, policy};

    fn actions() -> Vec<Action> {
        let (name, policy): (Name, _) = ("a/b".parse().unwrap(), Arc::new(policy(2, 3)));
        let id = ContentId::of(b"x");
        vec![
            Action::Found { policy: Arc::clone(&policy) },
            Action::Bind { name: name.clone(), content: Content::Artifact(id), prior: 0 },
            Action::Bind { name: name.clone(), content: Content::Payload("hello".into()), prior: 70_000 },
            Action::Bind { name: name.clone(), content: Content::Payload(Bytes::new()), prior: 1 },
            Action::Retire { name, prior: 3 },
            Action::Rotate { policy },
        ]
    }

    fn proposals() -> Vec<Proposal> {
        let heads = [None, Some(Head::start(ORIGIN))];
        let with =
            |action: &Action| heads.map(|head| Proposal::new(ORIGIN, 1, 5000, action.clone(), head).unwrap());
        actions().iter().flat_map(with).collect()
    }

    #[test]
    fn a_proposal_survives_its_bytes_and_has_one_spelling() {
        for proposal in proposals() {
            let bytes = proposal.encoded().clone();
            assert_eq!(Proposal::decode(&bytes), Ok(proposal));
            for cut in 0..bytes.len() {
                assert!(Proposal::decode(&bytes.slice(..cut)).is_err());
            }
            assert!(Proposal::decode(&[&bytes[..], &[0]].concat().into()).is_err());
            // A key that nobody knows, and the same number of entries written longer.
            let more = [&[bytes[0] + 1], &bytes[1..], &[0x18, 0x63, 0x00]].concat();
            assert_eq!(Proposal::decode(&more.into()), Err(FormError::Malformed));
            let long = [&[0xb8, bytes[0] - 0xa0], &bytes[1..]].concat();
            assert_eq!(Proposal::decode(&long.into()), Err(FormError::Malformed));
        }
    }

    #[test]
    fn every_word_of_a_proposal_is_in_its_id() {
        let mut ids: Vec<_> = proposals().iter().map(Proposal::id).collect();
        let action = &actions()[1];
        ids.push(Proposal::new("other", 1, 5000, action.clone(), None).unwrap().id());
        ids.push(Proposal::new(ORIGIN, 2, 5000, action.clone(), None).unwrap().id());
        ids.push(Proposal::new(ORIGIN, 1, 5001, action.clone(), None).unwrap().id());
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_limit() {
        let bind = |payload: usize| Action::Bind {
            name: "a".parse().unwrap(),
            content: Content::Payload(vec![0; payload].into()),
            prior: 0,
        };
        assert!(Proposal::new(ORIGIN, 1, 1, bind(PAYLOAD_BYTES_MAX), None).is_ok());
        assert_eq!(
            Proposal::new(ORIGIN, 1, 1, bind(PAYLOAD_BYTES_MAX + 1), None),
            Err(FormError::TooLarge { what: "payload bytes", limit: PAYLOAD_BYTES_MAX })
        );
        assert_eq!(
            Proposal::decode(&vec![0; PROPOSAL_BYTES_MAX + 1].into()),
            Err(FormError::TooLarge { what: "proposal bytes", limit: PROPOSAL_BYTES_MAX })
        );
        assert_eq!(
            Approval::decode(&[0; APPROVAL_BYTES_MAX + 1]),
            Err(FormError::TooLarge { what: "approval bytes", limit: APPROVAL_BYTES_MAX })
        );
        let retire = Action::Retire { name: "a".parse().unwrap(), prior: 0 };
        assert_eq!(Proposal::new(ORIGIN, 1, 1, retire, None), Err(FormError::OutOfRange { what: "prior" }));
        assert_eq!(Proposal::new("a b", 1, 1, bind(1), None), Err(FormError::BadOrigin));
        assert_eq!(Proposal::decode(&Bytes::from_static(&[0xa0])), Err(FormError::Missing { field: KIND }));
    }

    #[test]
    fn names_are_plain_paths() {
        for good in ["a", "a/b", "tools/compiler/1.2", "x@1", "...", &"n".repeat(255)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "a/./b",
            "..",
            "a/..",
            "@policy",
            "a b",
            "a\n",
            "ü",
            &"n".repeat(256),
        ] {
            assert_eq!(bad.parse::<Name>(), Err(FormError::BadName), "{bad}");
        }
    }

    #[test]
    fn an_approval_is_for_every_word_it_says() {
        let proposals = proposals();
        let approval = proposals[2].approve(&identity(0), 900);
        let bytes = approval.encode();
        assert_eq!(Approval::decode(&bytes), Ok(approval.clone()));
        let verified = approval.clone().verify().unwrap();
        assert!(verified.is_for(&proposals[2]));
        assert!(proposals.iter().enumerate().all(|(at, other)| (at == 2) == verified.is_for(other)));
        assert_eq!(verified.recorded().verify(&proposals[2]), Ok(()));
        assert!(verified.recorded().verify(&proposals[3]).is_err());

        let check = |change: fn(&mut Approval)| {
            let mut forged = approval.clone();
            change(&mut forged);
            assert_eq!(forged.verify(), Err(SignatureError::BadSignature));
        };
        check(|forged| forged.statement.origin.push('x'));
        check(|forged| forged.statement.epoch += 1);
        check(|forged| forged.statement.proposal.0[0] ^= 1);
        check(|forged| forged.statement.prior += 1);
        check(|forged| forged.statement.expires += 1);
        check(|forged| forged.key = identity(1).public_key());
        // A signature for another purpose is none.
        let other = identity(0).sign("ron-registry approval 2", &approval.statement.encode());
        let forged = Approval { signature: other, ..approval.clone() };
        assert_eq!(forged.verify(), Err(SignatureError::BadSignature));
        for cut in 0..bytes.len() {
            assert!(Approval::decode(&bytes[..cut]).is_err());
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>, at in 0usize..400, byte: u8, which in 0usize..12) {
            if let Ok(approval) = Approval::decode(&bytes) {
                prop_assert_eq!(approval.encode(), bytes.clone());
            }
            let _ = Proposal::decode(&bytes.into());
            // What is nearly a proposal is read as what it says, or not at all.
            let mut near = proposals()[which].encoded().to_vec();
            let at = at % near.len();
            near[at] = byte;
            let near = Bytes::from(near);
            if let Ok(proposal) = Proposal::decode(&near) {
                prop_assert_eq!(proposal.encoded(), &near);
            }
        }
    }
}
