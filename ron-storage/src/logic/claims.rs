//! Which objects are wanted, by whom, and how firmly: claims, and what many of them together say.
//!
//! An object lives while a claim on it lives. A claim is the word of one owner about one object, signed, with a version; of
//! two by the same owner about the same object the higher version counts, and of two with the same version the one that
//! deletes, then the one with the greater bytes. That is a total order, and what is known is the greatest of each owner. So it
//! does not matter in which order claims arrive, how often, or over which node: all who have heard the same know the same.
//!
//! A delete is a claim like any other, and stays when the object is gone: whoever comes back with an older claim is told that
//! it is over. It can be forgotten when nobody is known to have a copy and its retention has passed since somebody had one.

use std::{collections::BTreeMap, fmt, str::FromStr};

use bytes::Bytes;
use minicbor::Decoder;
use ron_core::{
    ContentId, NodeId,
    net::{
        Identity, PublicKey, Signature, SignatureError,
        cbor::{self, CborFault, read_array, read_only_map, required},
    },
};

/// Bytes of the longest claim. One with a manifest makes 230; the rest is for later versions.
pub const CLAIM_BYTES_MAX: usize = 512;

/// Most copies that a policy may ask for.
pub const COPIES_MAX: u8 = 16;

/// Most shards, data and parity together, that a policy may ask for.
pub const SHARDS_MAX: u8 = 32;

/// Owners of one object. More are refused: each costs memory on every node that has a copy.
pub const OWNERS_MAX: usize = 64;

/// Claims that a node knows, unless it is told otherwise: each takes some 700 bytes of memory, and one with a manifest 2 KiB.
pub const CLAIMS_MAX: usize = 2_000_000;

/// Claims of one owner, unless told otherwise: half of all, so that none keeps the others out.
pub const OWNER_CLAIMS_MAX: usize = CLAIMS_MAX / 2;

/// The shortest time that a delete is remembered after the last copy was seen: a day, so that a node that was away for the
/// night is still told.
pub const RETENTION_MIN: u64 = 24 * 3600;

/// The longest, ten years: whoever wants it remembered for longer says it again.
pub const RETENTION_MAX: u64 = 3650 * 24 * 3600;

/// How long a delete is remembered unless its owner says otherwise.
pub const RETENTION_DEFAULT: u64 = 30 * 24 * 3600;

/// What signatures are for.
const DOMAIN: &str = "ron-storage claim 1";

const SIGNATURE_BYTES: usize = 64;

const OWNER: u64 = 0;
const OBJECT: u64 = 1;
const VERSION: u64 = 2;
const LEN: u64 = 3;
const MADE: u64 = 4;
const COPIES: u64 = 5;
const DATA: u64 = 6;
const PARITY: u64 = 7;
const MANIFEST: u64 = 8;
const PIN: u64 = 9;
const RETENTION: u64 = 10;

/// How an object is kept so that it survives losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// So many whole copies on as many nodes.
    Copies(u8),
    /// `data` shards that together are the object and `parity` more, each on a node of its own: any `data` of them are enough.
    Erasure {
        /// Shards that the object is cut into.
        data: u8,
        /// Shards that may be lost.
        parity: u8,
    },
}

impl Policy {
    /// Two copies: what an object has unless its owner says otherwise.
    pub const DEFAULT: Policy = Policy::Copies(2);

    /// Six shards and three more: survives three losses at one and a half times the size.
    pub const ERASURE: Policy = Policy::Erasure { data: 6, parity: 3 };

    /// Whether it asks for something that can be done.
    ///
    /// # Errors
    /// [`ClaimError::OutOfRange`] naming what cannot.
    pub fn check(self) -> Result<Self, ClaimError> {
        match self {
            Policy::Copies(copies) if (1..=COPIES_MAX).contains(&copies) => Ok(self),
            Policy::Copies(_) => Err(ClaimError::OutOfRange { what: "copies" }),
            Policy::Erasure { data: 0, .. } => Err(ClaimError::OutOfRange { what: "data shards" }),
            Policy::Erasure { parity: 0, .. } => Err(ClaimError::OutOfRange { what: "parity shards" }),
            Policy::Erasure { data, parity } if u16::from(data) + u16::from(parity) > SHARDS_MAX.into() => {
                Err(ClaimError::OutOfRange { what: "shards" })
            }
            Policy::Erasure { .. } => Ok(self),
        }
    }

    /// How many nodes may be lost at once without losing the object.
    #[must_use]
    pub fn survives(self) -> u8 {
        match self {
            Policy::Copies(copies) => copies.saturating_sub(1),
            Policy::Erasure { parity, .. } => parity,
        }
    }

    /// How many copies the object is as safe as if exactly these nodes have it: any one node fewer than that may be lost and it can
    /// still be read. List a node once for a copy, and once for each shard it has. 0 if they cannot rebuild it.
    #[must_use]
    pub fn worth(self, nodes: &[NodeId]) -> usize {
        let mut shares: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for node in nodes {
            *shares.entry(node).or_default() += 1;
        }
        let Policy::Erasure { data, .. } = self else { return shares.len() };
        let mut shares: Vec<usize> = shares.into_values().collect();
        // Whoever has most is lost first.
        shares.sort_unstable();
        let mut left: usize = shares.iter().sum();
        let mut worth = 0;
        while left >= usize::from(data.max(1)) {
            worth += 1;
            left -= shares.pop().unwrap_or(left);
        }
        worth
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy::DEFAULT
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Copies(1) => f.write_str("1 copy"),
            Policy::Copies(copies) => write!(f, "{copies} copies"),
            Policy::Erasure { data, parity } => write!(f, "{data}+{parity}"),
        }
    }
}

impl FromStr for Policy {
    type Err = ClaimError;

    /// A number of copies, as in `2` or `2 copies`, or shards, as in `6+3`.
    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let number = |text: &str, what| text.trim().parse().map_err(|_| ClaimError::OutOfRange { what });
        match text.split_once('+') {
            Some((data, parity)) => Policy::Erasure {
                data: number(data, "data shards")?,
                parity: number(parity, "parity shards")?,
            },
            None => {
                let copies =
                    text.strip_suffix("copies").or_else(|| text.strip_suffix("copy")).unwrap_or(text);
                Policy::Copies(number(copies, "copies")?)
            }
        }
        .check()
    }
}

/// How an object is cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coding {
    /// Shards that the object is cut into.
    pub data: u8,
    /// Shards that may be lost.
    pub parity: u8,
    /// The object that says which shards these are.
    pub manifest: ContentId,
}

/// What an owner says about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// Keep so many copies.
    Copies(u8),
    /// Keep it as shards.
    Erasure(Coding),
    /// Keep the copies there are, wherever they are.
    Pin,
    /// It is not wanted any more. Remembered for so many seconds after the last copy was seen.
    Tombstone {
        /// Seconds.
        retention: u64,
    },
}

impl Word {
    /// Whether it ends the owner's interest.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        matches!(self, Word::Tombstone { .. })
    }

    /// The policy that it asks for, if it asks for one.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        match self {
            Word::Copies(copies) => Some(Policy::Copies(*copies)),
            Word::Erasure(Coding { data, parity, .. }) => {
                Some(Policy::Erasure { data: *data, parity: *parity })
            }
            Word::Pin | Word::Tombstone { .. } => None,
        }
    }

    fn check(self) -> Result<Self, ClaimError> {
        if let Some(policy) = self.policy() {
            policy.check()?;
        }
        match self {
            Word::Tombstone { retention } if !(RETENTION_MIN..=RETENTION_MAX).contains(&retention) => {
                Err(ClaimError::OutOfRange { what: "retention" })
            }
            word => Ok(word),
        }
    }
}

/// Why a claim is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Longer than a claim may be.
    #[error("a claim of {len} bytes, and {CLAIM_BYTES_MAX} are allowed")]
    TooLarge {
        /// Its length.
        len: usize,
    },
    /// Not what a claim looks like.
    #[error("not a claim")]
    Malformed,
    /// Something that every claim has is not there.
    #[error("a claim without entry {key}")]
    Missing {
        /// Its key.
        key: u64,
    },
    /// A value that is not allowed.
    #[error("{what} out of range{}", allowed(what))]
    OutOfRange {
        /// Which value.
        what: &'static str,
    },
    /// Its owner did not sign it.
    #[error("the owner did not sign this")]
    Signature(#[source] SignatureError),
    /// It names a manifest that is not known here.
    #[error("the manifest {id} is not known here")]
    NoManifest {
        /// Which.
        id: ContentId,
    },
    /// The manifest is not that of the object, or has other numbers of shards.
    #[error("the manifest {id} is not what the claim says")]
    ForeignManifest {
        /// Which.
        id: ContentId,
    },
    /// The object has as many owners as it may have.
    #[error("the object has {OWNERS_MAX} owners already")]
    TooManyOwners,
    /// This node knows as many claims as it may. Those that are known may still change.
    #[error("{limit} claims are known already")]
    TooMany {
        /// How many that is: `claims_max`.
        limit: usize,
    },
    /// This node knows as many claims of this owner as it may. Those that are known may still change.
    #[error("{limit} claims of this owner are known already")]
    TooManyOfOwner {
        /// How many that is: `owner_claims_max`.
        limit: usize,
    },
}

/// What would be in range, for what people choose.
fn allowed(what: &str) -> String {
    match what {
        "copies" => format!(": 1 to {COPIES_MAX}"),
        "data shards" | "parity shards" => format!(": at least 1, and {SHARDS_MAX} of both together"),
        "shards" => format!(": {SHARDS_MAX} in all at most"),
        "ack" => format!(": local, or 1 to {SHARDS_MAX} nodes"),
        "retention" => format!(": {RETENTION_MIN} to {RETENTION_MAX} seconds"),
        _ => String::new(),
    }
}

impl From<CborFault> for ClaimError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::Malformed => ClaimError::Malformed,
            CborFault::Missing { key } => ClaimError::Missing { key },
            CborFault::TooMany { what } | CborFault::OutOfRange { what } => ClaimError::OutOfRange { what },
        }
    }
}

impl From<minicbor::decode::Error> for ClaimError {
    fn from(_: minicbor::decode::Error) -> Self {
        ClaimError::Malformed
    }
}

/// The word of an owner about an object. Kept and sent as it was signed.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who says it.
    pub owner: PublicKey,
    /// About which object.
    pub object: ContentId,
    /// Which of the owner's words about it this is; the highest counts.
    pub version: u64,
    /// The object's length, as its owner says; nobody relies on it before having seen the object.
    pub len: u64,
    /// When, in seconds since 1970 by the owner's clock. For people to read: nothing is decided by it.
    pub made: u64,
    /// What.
    pub word: Word,
    encoded: Bytes,
}

impl Claim {
    /// Makes a claim.
    ///
    /// # Errors
    /// [`ClaimError::OutOfRange`] for a policy or a retention that is not allowed.
    pub fn sign(
        identity: &Identity,
        (object, len): (ContentId, u64),
        version: u64,
        made: u64,
        word: Word,
    ) -> Result<Verified, ClaimError> {
        let word = word.check()?;
        let owner = identity.public_key();
        let body = cbor::encode(192, |cbor| {
            let own = match word {
                Word::Copies(_) | Word::Pin | Word::Tombstone { .. } => 1,
                Word::Erasure(_) => 3,
            };
            cbor.map(5 + own)?.u64(OWNER)?.bytes(owner.as_bytes())?;
            cbor.u64(OBJECT)?.bytes(object.as_bytes())?;
            cbor.u64(VERSION)?.u64(version)?;
            cbor.u64(LEN)?.u64(len)?;
            cbor.u64(MADE)?.u64(made)?;
            match word {
                Word::Copies(copies) => cbor.u64(COPIES)?.u8(copies)?.ok(),
                Word::Erasure(Coding { data, parity, manifest }) => {
                    cbor.u64(DATA)?.u8(data)?.u64(PARITY)?.u8(parity)?;
                    cbor.u64(MANIFEST)?.bytes(manifest.as_bytes())?.ok()
                }
                Word::Pin => cbor.u64(PIN)?.bool(true)?.ok(),
                Word::Tombstone { retention } => cbor.u64(RETENTION)?.u64(retention)?.ok(),
            }
        });
        let signature = identity.sign(DOMAIN, &body);
        let encoded = [&signature.as_bytes()[..], &body].concat().into();
        Ok(Verified(Claim { owner, object, version, len, made, word, encoded }))
    }

    /// Reads a claim and checks its form. The proof is for [`verify`](Self::verify).
    ///
    /// # Errors
    /// A [`ClaimError`] that says what is wrong with it.
    pub fn decode(encoded: &[u8]) -> Result<Self, ClaimError> {
        if encoded.len() > CLAIM_BYTES_MAX {
            return Err(ClaimError::TooLarge { len: encoded.len() });
        }
        let body = encoded.get(SIGNATURE_BYTES..).ok_or(ClaimError::Malformed)?;
        let (mut owner, mut object, mut version, mut len, mut made) = (None, None, None, None, None);
        let (mut copies, mut data, mut parity, mut manifest) = (None, None, None, None);
        let (mut pin, mut retention) = (None, None);
        read_only_map::<ClaimError>(body, |key, cbor: &mut Decoder<'_>| {
            match key {
                OWNER => owner = Some(PublicKey::from_bytes(read_array(cbor, "owner")?)),
                OBJECT => object = Some(ContentId::from_bytes(read_array(cbor, "object")?)),
                VERSION => version = Some(cbor.u64()?),
                LEN => len = Some(cbor.u64()?),
                MADE => made = Some(cbor.u64()?),
                COPIES => copies = Some(cbor.u8()?),
                DATA => data = Some(cbor.u8()?),
                PARITY => parity = Some(cbor.u8()?),
                MANIFEST => manifest = Some(ContentId::from_bytes(read_array(cbor, "manifest")?)),
                PIN => pin = Some(cbor.bool()?),
                RETENTION => retention = Some(cbor.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let word = match (copies, data, pin, retention) {
            (Some(copies), None, None, None) => Word::Copies(copies),
            (None, Some(data), None, None) => Word::Erasure(Coding {
                data,
                parity: required(parity, PARITY)?,
                manifest: required(manifest, MANIFEST)?,
            }),
            (None, None, Some(true), None) => Word::Pin,
            (None, None, None, Some(retention)) => Word::Tombstone { retention },
            // It says nothing, or two things.
            _ => return Err(ClaimError::OutOfRange { what: "word" }),
        };
        Ok(Claim {
            owner: required(owner, OWNER)?,
            object: required(object, OBJECT)?,
            version: required(version, VERSION)?,
            len: required(len, LEN)?,
            made: required(made, MADE)?,
            word: word.check()?,
            encoded: Bytes::copy_from_slice(encoded),
        })
    }

    /// Checks that its owner signed it.
    ///
    /// # Errors
    /// [`ClaimError::Signature`].
    pub fn verify(self) -> Result<Verified, ClaimError> {
        let (signature, body) = self.encoded.split_first_chunk().ok_or(ClaimError::Malformed)?;
        let signature = Signature::from_bytes(*signature);
        self.owner.verify_strict(DOMAIN, body, &signature).map_err(ClaimError::Signature)?;
        Ok(Verified(self))
    }

    /// For what was verified before.
    pub(crate) fn trusted(self) -> Verified {
        Verified(self)
    }

    /// The claim as it is kept and sent.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Its own name, for comparing what two nodes know.
    #[must_use]
    pub fn digest(&self) -> ContentId {
        ContentId::of(&self.encoded)
    }

    /// What decides between two of one owner about one object: the greater counts.
    fn rank(&self) -> (u64, bool, &[u8]) {
        (self.version, self.word.is_tombstone(), &self.encoded)
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?} of {:?}, {}: {:?})", self.object, self.owner, self.version, self.word)
    }
}

/// A claim whose owner signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified(Claim);

impl Verified {
    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.0
    }
}

/// What became of a claim that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// It says more than was known.
    New,
    /// It was known.
    Same,
    /// A later word of its owner is known, which whoever brought it should be told.
    Older,
}

/// What all claims on an object say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has said anything about it.
    Unclaimed,
    /// Somebody wants it.
    Live(Wanted),
    /// Somebody wanted it, and nobody does any more.
    Deleted,
}

/// What is wanted of an object that lives: what the strongest of its claims ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Whole copies.
    pub copies: u8,
    /// Ways in which it is cut into shards, in order, each once.
    pub codings: Vec<Coding>,
    /// Whether the copies there are have to stay.
    pub is_pinned: bool,
    /// Its length, as far as anybody said.
    pub len: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    claim: Verified,
    /// When there was last a reason to think that somebody has a copy or an older claim, in unix seconds of this node.
    seen: u64,
}

/// How many claims are taken from whoever brings them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimits {
    /// In all.
    pub claims: usize,
    /// Of one owner.
    pub of_owner: usize,
}

impl Default for ClaimLimits {
    fn default() -> Self {
        ClaimLimits { claims: CLAIMS_MAX, of_owner: OWNER_CLAIMS_MAX }
    }
}

/// The claims that a node knows.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    objects: BTreeMap<ContentId, BTreeMap<PublicKey, Kept>>,
    /// Which objects are cut up as a manifest says. A manifest belongs to one object, but an owner may say otherwise.
    manifests: BTreeMap<ContentId, BTreeMap<ContentId, usize>>,
    owners: BTreeMap<PublicKey, usize>,
    count: usize,
}

impl Claims {
    /// What [`merge`](Self::merge) would say, and whether there is room for it. Asked before a claim is written down, so that what
    /// is not kept costs no disk either, however often it is brought.
    ///
    /// # Errors
    /// [`ClaimError::TooManyOwners`], [`ClaimError::TooMany`], [`ClaimError::TooManyOfOwner`].
    pub fn weigh(&self, claim: &Claim, limits: ClaimLimits) -> Result<Merged, ClaimError> {
        let owners = self.objects.get(&claim.object);
        if let Some(known) = owners.and_then(|owners| owners.get(&claim.owner)) {
            return Ok(match claim.rank().cmp(&known.claim.0.rank()) {
                std::cmp::Ordering::Equal => Merged::Same,
                std::cmp::Ordering::Less => Merged::Older,
                std::cmp::Ordering::Greater => Merged::New,
            });
        }
        if owners.is_some_and(|owners| owners.len() >= OWNERS_MAX) {
            return Err(ClaimError::TooManyOwners);
        }
        if self.count >= limits.claims {
            return Err(ClaimError::TooMany { limit: limits.claims });
        }
        if self.owners.get(&claim.owner).is_some_and(|count| *count >= limits.of_owner) {
            return Err(ClaimError::TooManyOfOwner { limit: limits.of_owner });
        }
        Ok(Merged::New)
    }

    /// Takes a claim in, heard at `now` in unix seconds.
    ///
    /// # Errors
    /// [`ClaimError::TooManyOwners`].
    pub fn merge(&mut self, claim: Verified, now: u64) -> Result<Merged, ClaimError> {
        let Claim { object, owner, .. } = claim.0;
        let owners = self.objects.get_mut(&object);
        let full = owners.as_ref().is_some_and(|owners| owners.len() >= OWNERS_MAX);
        let Some(known) = owners.and_then(|owners| owners.get_mut(&owner)) else {
            if full {
                return Err(ClaimError::TooManyOwners);
            }
            self.note(&claim.0, true);
            self.count += 1;
            *self.owners.entry(owner).or_default() += 1;
            let kept = Kept { claim, seen: now };
            self.objects.entry(object).or_default().insert(owner, kept);
            return Ok(Merged::New);
        };
        match claim.0.rank().cmp(&known.claim.0.rank()) {
            std::cmp::Ordering::Equal => Ok(Merged::Same),
            std::cmp::Ordering::Less => {
                // Whoever says this has not heard of the later word, and may have a copy.
                known.seen = known.seen.max(now);
                Ok(Merged::Older)
            }
            std::cmp::Ordering::Greater => {
                let seen = known.seen.max(now);
                let old = std::mem::replace(known, Kept { claim: claim.clone(), seen });
                self.note(&old.claim.0, false);
                self.note(&claim.0, true);
                Ok(Merged::New)
            }
        }
    }

    fn note(&mut self, claim: &Claim, is_there: bool) {
        let Word::Erasure(Coding { manifest, .. }) = claim.word else { return };
        let objects = self.manifests.entry(manifest).or_default();
        let count = objects.entry(claim.object).or_default();
        if is_there {
            *count += 1;
        } else {
            *count = count.saturating_sub(1);
            if *count == 0 {
                objects.remove(&claim.object);
            }
            if objects.is_empty() {
                self.manifests.remove(&manifest);
            }
        }
    }

    /// What is said about an object.
    #[must_use]
    pub fn standing(&self, object: &ContentId) -> Standing {
        let Some(owners) = self.objects.get(object) else { return Standing::Unclaimed };
        let mut wanted = Wanted::default();
        let mut lives = false;
        for claim in owners.values().map(|kept| &kept.claim.0) {
            match claim.word {
                Word::Copies(copies) => wanted.copies = wanted.copies.max(copies),
                Word::Erasure(coding) => wanted.codings.push(coding),
                Word::Pin => wanted.is_pinned = true,
                Word::Tombstone { .. } => continue,
            }
            lives = true;
            wanted.len = wanted.len.max(claim.len);
        }
        wanted.codings.sort_unstable();
        wanted.codings.dedup();
        match lives {
            true => Standing::Live(wanted),
            false => Standing::Deleted,
        }
    }

    /// Whether somebody wants an object that is cut up as this manifest says.
    #[must_use]
    pub fn wants_manifest(&self, manifest: &ContentId) -> bool {
        self.manifests.contains_key(manifest)
    }

    /// The word of one owner about an object.
    #[must_use]
    pub fn of(&self, object: &ContentId, owner: &PublicKey) -> Option<&Claim> {
        self.objects.get(object)?.get(owner).map(|kept| &kept.claim.0)
    }

    /// All words about an object, by owner.
    pub fn about(&self, object: &ContentId) -> impl Iterator<Item = &Claim> {
        self.objects.get(object).into_iter().flat_map(|owners| owners.values().map(|kept| &kept.claim.0))
    }

    /// Objects about which something is said, behind `after`, in order.
    pub fn objects(&self, after: Option<&ContentId>) -> impl Iterator<Item = &ContentId> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.objects.range::<ContentId, _>((from, Bound::Unbounded)).map(|(id, _)| id)
    }

    /// Everything that is known, by object and owner, with the time at which it was last of use.
    pub fn iter(&self) -> impl Iterator<Item = (&Claim, u64)> {
        self.objects.values().flat_map(|owners| owners.values().map(|kept| (&kept.claim.0, kept.seen)))
    }

    /// How many claims are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Notes that somebody has a copy of an object, or was away and may have one: deletes of it are remembered for their
    /// retention from now on.
    pub fn on_copy(&mut self, object: &ContentId, now: u64) {
        for kept in self.objects.get_mut(object).into_iter().flat_map(BTreeMap::values_mut) {
            kept.seen = kept.seen.max(now);
        }
    }

    /// Forgets deletes of objects of which no copy was seen for their retention and of which `has_copy` knows none, present or
    /// away. Says how many.
    pub fn forget(&mut self, now: u64, has_copy: impl Fn(&ContentId) -> bool) -> usize {
        let before = self.count;
        self.objects.retain(|object, owners| {
            let is_over = |kept: &Kept| match kept.claim.0.word {
                Word::Tombstone { retention } => kept.seen.saturating_add(retention) <= now,
                _ => false,
            };
            if owners.values().any(is_over) && !has_copy(object) {
                owners.retain(|owner, kept| {
                    let stays = !is_over(kept);
                    if !stays {
                        self.count -= 1;
                        if let Some(count) = self.owners.get_mut(owner) {
                            *count -= 1;
                            if *count == 0 {
                                self.owners.remove(owner);
                            }
                        }
                    }
                    stays
                });
            }
            !owners.is_empty()
        });
        before - self.count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = RETENTION_MIN;

    #[test]
    fn an_object_is_worth_as_many_copies_as_losses_it_survives_and_one() {
        let check = |policy: Policy, numbers: &[u8], worth: usize| {
            let nodes: Vec<NodeId> = numbers.iter().map(|number| NodeId::from_bytes([*number; 32])).collect();
            assert_eq!(policy.worth(&nodes), worth, "{policy} on {numbers:?}");
        };
        check(Policy::Copies(3), &[], 0);
        check(Policy::Copies(3), &[1, 2], 2);
        check(Policy::Copies(3), &[1, 1], 1);
        check(Policy::ERASURE, &[1, 2, 3, 4, 5], 0);
        check(Policy::ERASURE, &[1, 2, 3, 4, 5, 6], 1);
        check(Policy::ERASURE, &[1, 2, 3, 4, 5, 6, 7], 2);
        check(Policy::ERASURE, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 4);
        // Three each: with one node three shards go.
        check(Policy::ERASURE, &[1, 1, 1, 2, 2, 2, 3, 3, 3], 2);
        check(Policy::ERASURE, &[1, 1, 1, 2, 2, 2, 3, 4, 5], 2);
        check(Policy::Erasure { data: 1, parity: 1 }, &[1, 1], 1);
    }

    fn owner(number: u8) -> Identity {
        Identity::from_seed(&[number + 1; 32])
    }

    fn object(number: u8) -> ContentId {
        ContentId::of(&[number])
    }

    fn claim(by: u8, about: u8, version: u64, word: Word) -> Verified {
        Claim::sign(&owner(by), (object(about), 10), version, 0, word).unwrap()
    }

    fn words() -> Vec<Word> {
        let coding = Coding { data: 6, parity: 3, manifest: object(9) };
        let tombstone = Word::Tombstone { retention: DAY };
        vec![Word::Copies(2), Word::Copies(3), Word::Erasure(coding), Word::Pin, tombstone]
    }

    fn known(claims: &Claims) -> Vec<ContentId> {
        claims.iter().map(|(claim, _)| claim.digest()).collect()
    }

    fn heard(claims: &[Verified]) -> Claims {
        let mut known = Claims::default();
        for claim in claims {
            known.merge(claim.clone(), 0).unwrap();
        }
        known
    }

    #[test]
    fn a_claim_comes_back_as_it_was_signed_and_nothing_else_is_one() {
        for word in words() {
            let signed = claim(0, 1, 7, word);
            let encoded = signed.claim().encoded().clone();
            let read = Claim::decode(&encoded).unwrap();
            assert_eq!(&read, signed.claim());
            assert_eq!(read.verify().unwrap(), signed);
            for at in 0..encoded.len() {
                let mut bytes = encoded.to_vec();
                bytes[at] ^= 1;
                assert!(Claim::decode(&bytes).and_then(Claim::verify).is_err(), "byte {at}");
                assert!(Claim::decode(&encoded[..at]).is_err());
            }
        }
        let long = vec![0; CLAIM_BYTES_MAX + 1];
        assert_eq!(Claim::decode(&long), Err(ClaimError::TooLarge { len: CLAIM_BYTES_MAX + 1 }));
        assert_eq!(Claim::decode(b"x"), Err(ClaimError::Malformed));
    }

    #[test]
    fn what_cannot_be_done_is_not_signed() {
        let coding = |data, parity| Word::Erasure(Coding { data, parity, manifest: object(0) });
        let cases = [
            (Word::Copies(0), "copies"),
            (Word::Copies(COPIES_MAX + 1), "copies"),
            (coding(0, 3), "data shards"),
            (coding(6, 0), "parity shards"),
            (coding(200, 200), "shards"),
            (Word::Tombstone { retention: 0 }, "retention"),
            (Word::Tombstone { retention: u64::MAX }, "retention"),
        ];
        for (word, what) in cases {
            let signed = Claim::sign(&owner(0), (object(0), 0), 1, 0, word);
            let refused = signed.unwrap_err();
            assert_eq!(refused, ClaimError::OutOfRange { what });
            assert!(refused.to_string().contains(" out of range: "), "{refused}");
        }
    }

    #[test]
    fn an_object_lives_while_one_claim_does() {
        let gone = Word::Tombstone { retention: DAY };
        let mut claims = heard(&[claim(0, 1, 1, Word::Copies(2)), claim(1, 1, 1, Word::Copies(3))]);
        let Standing::Live(wanted) = claims.standing(&object(1)) else { panic!("two want it") };
        assert_eq!(wanted.copies, 3);
        claims.merge(claim(1, 1, 2, gone), 0).unwrap();
        let Standing::Live(wanted) = claims.standing(&object(1)) else { panic!("one wants it") };
        assert_eq!(wanted.copies, 2);
        claims.merge(claim(0, 1, 2, gone), 0).unwrap();
        assert_eq!(claims.standing(&object(1)), Standing::Deleted);
        assert_eq!(claims.standing(&object(2)), Standing::Unclaimed);
    }

    #[test]
    fn a_manifest_is_wanted_while_a_claim_names_it() {
        let coding = Coding { data: 6, parity: 3, manifest: object(9) };
        let mut claims =
            heard(&[claim(0, 1, 1, Word::Erasure(coding)), claim(1, 1, 1, Word::Erasure(coding))]);
        claims.merge(claim(0, 1, 2, Word::Copies(2)), 0).unwrap();
        assert!(claims.wants_manifest(&object(9)));
        claims.merge(claim(1, 1, 2, Word::Pin), 0).unwrap();
        assert!(!claims.wants_manifest(&object(9)));
    }

    #[test]
    fn a_delete_is_forgotten_only_when_every_copy_has_been_gone_for_its_retention() {
        let mut claims = Claims::default();
        let (old, gone) =
            (claim(0, 1, 1, Word::Copies(2)), claim(0, 1, 2, Word::Tombstone { retention: DAY }));
        claims.merge(old.clone(), 0).unwrap();
        claims.merge(gone, 100).unwrap();
        assert_eq!(claims.forget(99 + DAY, |_| false), 0);
        // A node that is away has a copy.
        assert_eq!(claims.forget(100 + DAY, |_| true), 0);
        // Somebody who has not heard of it says something older: nothing comes back, and the time begins anew.
        assert_eq!(claims.merge(old, 5 * DAY), Ok(Merged::Older));
        assert_eq!(claims.standing(&object(1)), Standing::Deleted);
        assert_eq!(claims.forget(6 * DAY - 1, |_| false), 0);
        claims.on_copy(&object(1), 7 * DAY);
        assert_eq!(claims.forget(8 * DAY - 1, |_| false), 0);
        assert_eq!(claims.forget(8 * DAY, |_| false), 1);
        assert!(claims.is_empty() && claims.standing(&object(1)) == Standing::Unclaimed);
    }

    #[test]
    fn owners_are_bounded() {
        let mut claims = Claims::default();
        for number in 0..OWNERS_MAX as u8 {
            claims.merge(claim(number, 1, 1, Word::Pin), 0).unwrap();
        }
        let more = claim(200, 1, 1, Word::Pin);
        assert_eq!(claims.merge(more, 0), Err(ClaimError::TooManyOwners));
        // Who is one may still change their mind.
        assert_eq!(claims.merge(claim(0, 1, 2, Word::Copies(2)), 0), Ok(Merged::New));
        assert_eq!(claims.len(), OWNERS_MAX);
    }

    /// Whoever may bring claims may bring any number of them, of owners that it made up: what is kept is bounded, in all and for
    /// each owner, and what is known may always change, so a delete is heard also when there is no more room.
    #[test]
    fn claims_are_bounded_in_all_and_for_each_owner() {
        let limits = ClaimLimits { claims: 5, of_owner: 3 };
        let mut claims = Claims::default();
        let hear = |claims: &mut Claims, claim: Verified| {
            claims.weigh(claim.claim(), limits)?;
            claims.merge(claim, 0)
        };
        for about in 0..3 {
            hear(&mut claims, claim(0, about, 1, Word::Pin)).unwrap();
        }
        let more = claim(0, 9, 1, Word::Pin);
        assert_eq!(hear(&mut claims, more), Err(ClaimError::TooManyOfOwner { limit: 3 }));
        for by in [1, 2] {
            hear(&mut claims, claim(by, 9, 1, Word::Pin)).unwrap();
        }
        assert_eq!(hear(&mut claims, claim(3, 9, 1, Word::Pin)), Err(ClaimError::TooMany { limit: 5 }));
        let gone = Word::Tombstone { retention: DAY };
        assert_eq!(hear(&mut claims, claim(0, 1, 2, gone)), Ok(Merged::New));
        assert_eq!(hear(&mut claims, claim(0, 1, 1, Word::Pin)), Ok(Merged::Older));
        // What is forgotten makes room.
        assert_eq!(claims.forget(DAY, |_| false), 1);
        assert_eq!(hear(&mut claims, claim(0, 9, 1, Word::Pin)), Ok(Merged::New));
        assert_eq!(claims.len(), 5);
    }

    /// Signing takes its time, so all claims of the properties are made once: 2 owners, 2 objects, 3 versions, 5 words.
    static MADE: LazyLock<Vec<Verified>> = LazyLock::new(|| {
        let mut made = Vec::new();
        for (by, about) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for version in 1..=3 {
                made.extend(words().into_iter().map(|word| claim(by, about, version, word)));
            }
        }
        made
    });

    fn some() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0..60_usize, 0..24)
    }

    fn picked(which: &[usize]) -> Vec<Verified> {
        which.iter().map(|at| MADE[*at].clone()).collect()
    }

    proptest! {
        #[test]
        fn order_and_repetition_do_not_matter(which in some(), again in some(), seed: u64) {
            let mut other = [which.clone(), again.iter().filter(|at| which.contains(at)).copied().collect()].concat();
            fastrand::Rng::with_seed(seed).shuffle(&mut other);
            prop_assert_eq!(known(&heard(&picked(&which))), known(&heard(&picked(&other))));
        }

        #[test]
        fn joining_is_associative(a in some(), b in some(), c in some()) {
            let join = |one: &Claims, other: &Claims| {
                let mut both = one.clone();
                for (claim, _) in other.iter() {
                    both.merge(Verified(claim.clone()), 0).unwrap();
                }
                both
            };
            let [a, b, c] = [a, b, c].map(|which| heard(&picked(&which)));
            prop_assert_eq!(known(&join(&join(&a, &b), &c)), known(&join(&a, &join(&b, &c))));
            prop_assert_eq!(known(&join(&a, &b)), known(&join(&b, &a)));
            prop_assert_eq!(known(&join(&a, &a)), known(&a));
        }

        /// Whoever comes back with whatever they knew before, an owner's last word stands.
        #[test]
        fn a_delete_stays_deleted(before in some(), after in some()) {
            let mut claims = heard(&picked(&before));
            for by in 0..2 {
                claims.merge(claim(by, 0, 9, Word::Tombstone { retention: DAY }), 0).unwrap();
            }
            for claim in picked(&after) {
                claims.merge(claim, 0).unwrap();
            }
            prop_assert_eq!(claims.standing(&object(0)), Standing::Deleted);
        }
    }
}
