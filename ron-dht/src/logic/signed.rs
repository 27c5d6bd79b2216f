//! What a record says, and how it is proven.
//!
//! A record is the bytes that were signed: it travels and is kept exactly as its publisher encoded it, so a signature
//! holds however many nodes pass it on, and an old node passes on what it does not understand. Around the signed
//! bytes is an envelope with one spelling only; otherwise anybody could make a second, different-looking record out
//! of a valid one. Who published follows from the key that signed, so there is no name in it that could be false.
//!
//! Decoding checks form and size, [`ProviderRecord::verify`] and [`Value::verify`] check the proof, which costs some
//! fifty microseconds; what has passed both is [`Verified`], and only that is stored.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use minicbor::Decoder;
use ron_core::{
    ContentId, NodeId,
    net::{
        Identity, PublicKey, Signature, SignatureError,
        cbor::{self, CborFault, read_addrs, read_array, read_bytes, read_only_map, required, write_addrs},
    },
};

use super::Key;

/// Bytes of the longest provider record. Eight IPv6 addresses make 366; the rest is for later versions.
pub const PROVIDER_BYTES_MAX: usize = 1 << 10;

/// Bytes of the longest value.
pub const VALUE_BYTES_MAX: usize = 16 << 10;

/// Bytes of the longest encoded value: the value, a salt, a key, a signature, and room for later versions.
pub const VALUE_RECORD_BYTES_MAX: usize = VALUE_BYTES_MAX + 512;

/// Bytes of the longest salt.
pub const SALT_BYTES_MAX: usize = 64;

/// Addresses in one record, and in one contact. A node has one or two of each family; more is padding.
pub const ADDRS_MAX: usize = 8;

/// The longest life of a record, whatever it asks for.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// How far the clocks of a publisher and of whoever reads its record may be apart. A record is taken from this long before
/// it was signed until this long after its life would be over by its publisher's clock; a replay has no more time.
pub const SKEW_MAX: Duration = Duration::from_secs(24 * 3600);

/// What signatures are for. Bytes signed for one never verify for the other.
const PROVIDER_DOMAIN: &str = "ron-dht provider record 1";
const VALUE_DOMAIN: &str = "ron-dht mutable value 1";

/// The envelope of a signed record.
const ENVELOPE_BODY: u64 = 0;
const ENVELOPE_SIGNATURE: u64 = 1;
/// The envelope of a value that its own hash proves.
const PLAIN_DATA: u64 = 2;
const PLAIN_TTL: u64 = 3;

const PROVIDER_KEY: u64 = 0;
const PROVIDER_PUBLIC_KEY: u64 = 1;
const PROVIDER_ADDRS: u64 = 2;
const PROVIDER_SEQ: u64 = 3;
const PROVIDER_TTL: u64 = 4;
const PROVIDER_WITHDRAWN: u64 = 5;
const PROVIDER_ISSUED: u64 = 6;

const VALUE_PUBLIC_KEY: u64 = 0;
const VALUE_SALT: u64 = 1;
const VALUE_SEQ: u64 = 2;
const VALUE_TTL: u64 = 3;
const VALUE_DATA: u64 = 4;

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// More bytes, or more of something in it, than a record may have.
    #[error("too many {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// Not deterministic CBOR, or the envelope has another spelling than the one there is.
    #[error("not a record")]
    Malformed,
    /// A field that every record has is not there.
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
    /// It is about another key than the one it was given for.
    #[error("belongs to another key")]
    WrongKey,
    /// Its publisher did not sign it.
    #[error("not signed by its publisher")]
    BadSignature(#[source] SignatureError),
    /// It names addresses, and none that the peer who sent it may name.
    #[error("no usable address")]
    NoAddress,
    /// It was signed too long ago, or will be: an old word that somebody repeats, or a clock that is off by a day.
    #[error("signed at another time than it can be of use")]
    Expired,
    /// A newer one is held. Look at that one first.
    #[error("sequence {held} is held")]
    Stale {
        /// The sequence number that is held.
        held: u64,
    },
    /// Another one is held than the writer expected. Read it, and write again on top of it.
    #[error("sequence {held} is held, and another was expected")]
    Conflict {
        /// The sequence number that is held; zero if none.
        held: u64,
    },
    /// The key has as many providers as it may, and the sender's neighbours hold their share of them.
    #[error("the key has enough providers")]
    KeyFull,
    /// The publisher has as many records, or bytes of them, as it may.
    #[error("the publisher has used up its share")]
    PublisherFull,
    /// The store is full, and the sender's neighbours hold their share of it.
    #[error("the store is full")]
    StoreFull,
}

impl RecordError {
    /// The rule in one word, for counters: from a closed set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            RecordError::TooLarge { .. } => "record_too_large",
            RecordError::Malformed | RecordError::Missing { .. } => "record_malformed",
            RecordError::OutOfRange { .. } => "record_out_of_range",
            RecordError::WrongKey => "record_wrong_key",
            RecordError::BadSignature(_) => "record_signature",
            RecordError::NoAddress => "record_address",
            RecordError::Expired => "record_expired",
            RecordError::Stale { .. } => "record_stale",
            RecordError::Conflict { .. } => "record_conflict",
            RecordError::KeyFull => "records_per_key",
            RecordError::PublisherFull => "records_per_publisher",
            RecordError::StoreFull => "records_total",
        }
    }

    /// Whether a limit refused it, and not something about the record itself.
    #[must_use]
    pub const fn is_quota(&self) -> bool {
        matches!(self, RecordError::KeyFull | RecordError::PublisherFull | RecordError::StoreFull)
    }
}

impl From<CborFault> for RecordError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::Malformed => RecordError::Malformed,
            CborFault::TooMany { what } => RecordError::TooLarge { what },
            CborFault::Missing { key } => RecordError::Missing { field: key },
            CborFault::OutOfRange { what } => RecordError::OutOfRange { what },
        }
    }
}

impl From<minicbor::decode::Error> for RecordError {
    fn from(_: minicbor::decode::Error) -> Self {
        RecordError::Malformed
    }
}

/// Somebody's word that they have what a key names, or that they no longer do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    key: Key,
    public_key: PublicKey,
    publisher: NodeId,
    addrs: Vec<SocketAddr>,
    seq: u64,
    ttl_secs: u32,
    is_withdrawn: bool,
    issued: u64,
    encoded: Bytes,
}

/// What a publisher says beside what it provides and where.
struct Word {
    seq: u64,
    issued: u64,
    ttl: Duration,
    is_withdrawn: bool,
}

impl ProviderRecord {
    /// Says, at `issued` in unix seconds, that `identity` provides `key` at the first eight of `addrs`. Each time it is
    /// said, `seq` must be higher: hearing the same again prolongs nothing, or anybody could keep an old record alive.
    #[must_use]
    pub fn sign(
        identity: &Identity,
        key: Key,
        addrs: &[SocketAddr],
        seq: u64,
        issued: u64,
        ttl: Duration,
    ) -> Self {
        let sign = |body: &[u8]| identity.sign(PROVIDER_DOMAIN, body);
        let word = Word { seq, issued, ttl, is_withdrawn: false };
        Self::build(identity.public_key(), sign, key, addrs, word)
    }

    /// Says, at `issued`, that `identity` no longer provides `key`, against every record with this or a lower `seq`.
    #[must_use]
    pub fn withdraw(identity: &Identity, key: Key, seq: u64, issued: u64) -> Self {
        let sign = |body: &[u8]| identity.sign(PROVIDER_DOMAIN, body);
        let word = Word { seq, issued, ttl: TTL_MAX, is_withdrawn: true };
        Self::build(identity.public_key(), sign, key, &[], word)
    }

    fn build(
        public_key: PublicKey,
        sign: impl FnOnce(&[u8]) -> Signature,
        key: Key,
        addrs: &[SocketAddr],
        Word { seq, issued, ttl, is_withdrawn }: Word,
    ) -> Self {
        let addrs: Vec<_> = addrs
            .iter()
            .take(ADDRS_MAX)
            .map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()))
            .collect();
        let ttl_secs = ttl_secs(ttl);
        let body = cbor::encode(256, |cbor| {
            cbor.map(7)?.u64(PROVIDER_KEY)?.bytes(key.as_bytes())?;
            cbor.u64(PROVIDER_PUBLIC_KEY)?.bytes(public_key.as_bytes())?;
            write_addrs(cbor.u64(PROVIDER_ADDRS)?, &addrs)?;
            cbor.u64(PROVIDER_SEQ)?.u64(seq)?;
            cbor.u64(PROVIDER_TTL)?.u32(ttl_secs)?;
            cbor.u64(PROVIDER_WITHDRAWN)?.bool(is_withdrawn)?;
            cbor.u64(PROVIDER_ISSUED)?.u64(issued)?.ok()
        });
        let encoded = envelope(&body, &sign(&body)).into();
        let publisher = public_key.node_id();
        ProviderRecord { key, public_key, publisher, addrs, seq, ttl_secs, is_withdrawn, issued, encoded }
    }

    /// Reads a record and checks its form. The proof is for [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`RecordError::TooLarge`], [`RecordError::Malformed`], [`RecordError::Missing`], [`RecordError::OutOfRange`].
    pub fn decode(encoded: &[u8]) -> Result<Self, RecordError> {
        if encoded.len() > PROVIDER_BYTES_MAX {
            return Err(RecordError::TooLarge { what: "record bytes" });
        }
        let (body, _) = open_envelope(encoded)?;
        let (mut key, mut public_key, mut addrs) = (None, None, None);
        let (mut seq, mut ttl, mut is_withdrawn, mut issued) = (None, None, None, None);
        read_only_map(body, |field, cbor| {
            match field {
                PROVIDER_KEY => key = Some(Key::from_bytes(read_array(cbor, "key")?)),
                PROVIDER_PUBLIC_KEY => public_key = Some(read_array(cbor, "public key")?),
                PROVIDER_ADDRS => addrs = Some(read_addrs(cbor, ADDRS_MAX)?),
                PROVIDER_SEQ => seq = Some(cbor.u64()?),
                PROVIDER_TTL => ttl = Some(read_ttl(cbor)?),
                PROVIDER_WITHDRAWN => is_withdrawn = Some(cbor.bool()?),
                PROVIDER_ISSUED => issued = Some(cbor.u64()?),
                _ => return Ok::<_, RecordError>(false),
            }
            Ok(true)
        })?;
        let public_key = PublicKey::from_bytes(required(public_key, PROVIDER_PUBLIC_KEY)?);
        Ok(ProviderRecord {
            key: required(key, PROVIDER_KEY)?,
            public_key,
            publisher: public_key.node_id(),
            addrs: required(addrs, PROVIDER_ADDRS)?,
            seq: required(seq, PROVIDER_SEQ)?,
            ttl_secs: required(ttl, PROVIDER_TTL)?,
            is_withdrawn: required(is_withdrawn, PROVIDER_WITHDRAWN)?,
            issued: required(issued, PROVIDER_ISSUED)?,
            encoded: Bytes::copy_from_slice(encoded),
        })
    }

    /// Checks that the publisher signed it.
    ///
    /// # Errors
    /// [`RecordError::BadSignature`].
    pub fn verify(self) -> Result<Verified, RecordError> {
        let (body, signature) = open_envelope(&self.encoded)?;
        self.public_key
            .verify_strict(PROVIDER_DOMAIN, body, &signature)
            .map_err(RecordError::BadSignature)?;
        Ok(Verified(Record::Provider(self)))
    }

    /// Whether it is about `key`: to be asked of every record that somebody answers with.
    ///
    /// # Errors
    /// [`RecordError::WrongKey`].
    pub fn is_about(&self, key: &Key) -> Result<(), RecordError> {
        if self.key == *key { Ok(()) } else { Err(RecordError::WrongKey) }
    }

    /// What is provided.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Who provides it: the hash of the key that signed.
    #[must_use]
    pub fn publisher(&self) -> NodeId {
        self.publisher
    }

    /// The key that signed.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// Where the publisher says it can be reached, the best first. Filter before dialling.
    #[must_use]
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Of two records of one publisher for one key the higher number counts.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// How long it asks to be kept, in seconds from when a node receives it.
    #[must_use]
    pub fn ttl_secs(&self) -> u32 {
        self.ttl_secs
    }

    /// When it was signed, in unix seconds by its publisher's clock.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Whether it is of use at `unix_secs`: signed not so long ago that its life must be over, whatever clock is off by
    /// how much of a day. Without that, whoever has seen a record could bring it back for ever, since those who forgot it
    /// and those who never knew it cannot tell.
    ///
    /// # Errors
    /// [`RecordError::Expired`].
    pub fn is_current(&self, unix_secs: u64) -> Result<(), RecordError> {
        let life = u64::from(self.ttl_secs).min(TTL_MAX.as_secs());
        let from = self.issued.saturating_sub(SKEW_MAX.as_secs());
        let until = self.issued.saturating_add(life + SKEW_MAX.as_secs());
        if (from..=until).contains(&unix_secs) { Ok(()) } else { Err(RecordError::Expired) }
    }

    /// Whether it takes back what earlier ones said.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// The record as it travels and is kept.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }
}

/// Bytes under a key: either under their own hash, or under that of whoever may change them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    key: Key,
    data: Bytes,
    ttl_secs: u32,
    signer: Option<Signer>,
    encoded: Bytes,
}

/// Who may change a value, and how often it has been changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The key that signs its versions.
    pub public_key: PublicKey,
    /// Its hash.
    pub publisher: NodeId,
    /// Tells the values of one publisher apart.
    pub salt: Bytes,
    /// Of two versions the one with the higher number counts.
    pub seq: u64,
}

impl Value {
    /// A value that never changes: its key is its hash.
    ///
    /// # Errors
    /// [`RecordError::TooLarge`].
    pub fn immutable(data: &[u8], ttl: Duration) -> Result<Self, RecordError> {
        at_most(data, VALUE_BYTES_MAX, "value bytes")?;
        let ttl_secs = ttl_secs(ttl);
        Self::decode_plain(plain_envelope(data, ttl_secs).into())
    }

    /// A version of a value that `identity` may change. Start with `seq` 1: zero stands for none.
    ///
    /// # Errors
    /// [`RecordError::TooLarge`], [`RecordError::OutOfRange`] for sequence zero.
    pub fn mutable(
        identity: &Identity,
        salt: &[u8],
        seq: u64,
        data: &[u8],
        ttl: Duration,
    ) -> Result<Self, RecordError> {
        let sign = |body: &[u8]| identity.sign(VALUE_DOMAIN, body);
        Self::build(identity.public_key(), sign, salt, seq, data, ttl)
    }

    fn build(
        public_key: PublicKey,
        sign: impl FnOnce(&[u8]) -> Signature,
        salt: &[u8],
        seq: u64,
        data: &[u8],
        ttl: Duration,
    ) -> Result<Self, RecordError> {
        at_most(data, VALUE_BYTES_MAX, "value bytes")?;
        at_most(salt, SALT_BYTES_MAX, "salt bytes")?;
        let ttl_secs = ttl_secs(ttl);
        let body = cbor::encode(data.len() + 128, |cbor| {
            cbor.map(5)?.u64(VALUE_PUBLIC_KEY)?.bytes(public_key.as_bytes())?;
            cbor.u64(VALUE_SALT)?.bytes(salt)?;
            cbor.u64(VALUE_SEQ)?.u64(seq)?;
            cbor.u64(VALUE_TTL)?.u32(ttl_secs)?;
            cbor.u64(VALUE_DATA)?.bytes(data)?.ok()
        });
        Self::decode(&envelope(&body, &sign(&body)))
    }

    /// The key under which the holder of `public_key` keeps what it calls `salt`.
    #[must_use]
    pub fn mutable_key(public_key: &PublicKey, salt: &[u8]) -> Key {
        let mut hash = blake3::Hasher::new();
        hash.update(public_key.as_bytes()).update(salt);
        Key::from_bytes(*hash.finalize().as_bytes())
    }

    /// Reads a value and checks its form. The proof is for [`verify`](Self::verify).
    ///
    /// # Errors
    /// As [`ProviderRecord::decode`].
    pub fn decode(encoded: &[u8]) -> Result<Self, RecordError> {
        if encoded.len() > VALUE_RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge { what: "record bytes" });
        }
        let encoded = Bytes::copy_from_slice(encoded);
        // The second byte is the first field: 2 for a plain value, 0 for a signed one.
        if encoded.get(1) == Some(&(PLAIN_DATA as u8)) {
            return Self::decode_plain(encoded);
        }
        let (body, _) = open_envelope(&encoded)?;
        let (mut public_key, mut salt, mut seq, mut ttl, mut data) = (None, None, None, None, None);
        read_only_map(body, |field, cbor| {
            match field {
                VALUE_PUBLIC_KEY => public_key = Some(read_array(cbor, "public key")?),
                VALUE_SALT => salt = Some(read_bytes(cbor, ("salt bytes", SALT_BYTES_MAX))?),
                VALUE_SEQ => seq = Some(cbor.u64()?),
                VALUE_TTL => ttl = Some(read_ttl(cbor)?),
                VALUE_DATA => data = Some(read_bytes(cbor, ("value bytes", VALUE_BYTES_MAX))?),
                _ => return Ok::<_, RecordError>(false),
            }
            Ok(true)
        })?;
        let public_key = PublicKey::from_bytes(required(public_key, VALUE_PUBLIC_KEY)?);
        let salt = required(salt, VALUE_SALT)?;
        let seq = required(seq, VALUE_SEQ)?;
        if seq == 0 {
            return Err(RecordError::OutOfRange { what: "sequence" });
        }
        let publisher = public_key.node_id();
        Ok(Value {
            key: Self::mutable_key(&public_key, salt),
            data: encoded.slice_ref(required(data, VALUE_DATA)?),
            ttl_secs: required(ttl, VALUE_TTL)?,
            signer: Some(Signer { public_key, publisher, salt: encoded.slice_ref(salt), seq }),
            encoded,
        })
    }

    fn decode_plain(encoded: Bytes) -> Result<Self, RecordError> {
        let (mut data, mut ttl) = (None, None);
        read_only_map(&encoded, |field, cbor| {
            match field {
                PLAIN_DATA => data = Some(read_bytes(cbor, ("value bytes", VALUE_BYTES_MAX))?),
                PLAIN_TTL => ttl = Some(read_ttl(cbor)?),
                _ => return Err(RecordError::Malformed),
            }
            Ok(true)
        })?;
        let (data, ttl_secs) = (required(data, PLAIN_DATA)?, required(ttl, PLAIN_TTL)?);
        if plain_envelope(data, ttl_secs) != encoded {
            return Err(RecordError::Malformed);
        }
        Ok(Value {
            key: ContentId::of(data).into(),
            data: encoded.slice_ref(data),
            ttl_secs,
            signer: None,
            encoded,
        })
    }

    /// Checks that its publisher signed it. A value under its own hash needs no further proof.
    ///
    /// # Errors
    /// [`RecordError::BadSignature`].
    pub fn verify(self) -> Result<Verified, RecordError> {
        if let Some(signer) = &self.signer {
            let (body, signature) = open_envelope(&self.encoded)?;
            let verified = signer.public_key.verify_strict(VALUE_DOMAIN, body, &signature);
            verified.map_err(RecordError::BadSignature)?;
        }
        Ok(Verified(Record::Value(self)))
    }

    /// Whether it belongs under `key`: to be asked of every value that somebody answers with.
    ///
    /// # Errors
    /// [`RecordError::WrongKey`].
    pub fn is_about(&self, key: &Key) -> Result<(), RecordError> {
        if self.key == *key { Ok(()) } else { Err(RecordError::WrongKey) }
    }

    /// Where it belongs.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The bytes themselves.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// How long it asks to be kept, in seconds from when a node receives it.
    #[must_use]
    pub fn ttl_secs(&self) -> u32 {
        self.ttl_secs
    }

    /// Who may change it; nobody if it is under its own hash.
    #[must_use]
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_ref()
    }

    /// The value as it travels and is kept.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }
}

/// A record of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Who has something.
    Provider(ProviderRecord),
    /// The thing itself.
    Value(Value),
}

impl Record {
    /// Whether it takes back what earlier ones said. A value never does.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(self, Record::Provider(record) if record.is_withdrawn())
    }
}

/// A record whose proof was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified(Record);

impl Verified {
    /// The record.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.0
    }

    /// A record as if it had been verified, signed by nobody: tests of what comes after need many of them, and without
    /// optimisation a signature takes milliseconds.
    #[cfg(test)]
    pub(crate) fn unproven(
        who: u64,
        key: Key,
        addrs: &[SocketAddr],
        seq: u64,
        ttl: Duration,
        is_withdrawn: bool,
    ) -> Self {
        let sign = |_: &[u8]| Signature::from_bytes([0; 64]);
        let public_key = unproven_key(who);
        let word = Word { seq, issued: UNPROVEN_ISSUED, ttl, is_withdrawn };
        let record = ProviderRecord::build(public_key, sign, key, addrs, word);
        Verified(Record::Provider(record))
    }

    /// As [`unproven`](Self::unproven), a mutable value.
    #[cfg(test)]
    pub(crate) fn unproven_value(who: u64, salt: &[u8], seq: u64, data: &[u8], ttl: Duration) -> Self {
        let sign = |_: &[u8]| Signature::from_bytes([0; 64]);
        let value = Value::build(unproven_key(who), sign, salt, seq, data, ttl);
        Verified(Record::Value(value.expect("a small value")))
    }

    /// The record, out of its proof.
    #[must_use]
    pub fn into_record(self) -> Record {
        self.0
    }
}

/// When unproven records were signed.
#[cfg(test)]
const UNPROVEN_ISSUED: u64 = 1_800_000_000;

/// The public key of a publisher that only tests have.
#[cfg(test)]
pub(crate) fn unproven_key(who: u64) -> PublicKey {
    PublicKey::from_bytes(*blake3::hash(&who.to_be_bytes()).as_bytes())
}

/// Bytes and a signature over them, in the only spelling there is.
fn envelope(body: &[u8], signature: &Signature) -> Vec<u8> {
    cbor::encode(body.len() + 80, |cbor| {
        cbor.map(2)?.u64(ENVELOPE_BODY)?.bytes(body)?;
        cbor.u64(ENVELOPE_SIGNATURE)?.bytes(signature.as_bytes())?.ok()
    })
}

fn open_envelope(encoded: &[u8]) -> Result<(&[u8], Signature), RecordError> {
    let (mut body, mut signature) = (None, None);
    read_only_map(encoded, |field, cbor| {
        match field {
            ENVELOPE_BODY => body = Some(cbor.bytes()?),
            ENVELOPE_SIGNATURE => signature = Some(read_array(cbor, "signature")?),
            _ => return Err(RecordError::Malformed),
        }
        Ok(true)
    })?;
    let body = required(body, ENVELOPE_BODY)?;
    let signature = Signature::from_bytes(required(signature, ENVELOPE_SIGNATURE)?);
    // A longer spelling of a length would be another record with the same proof.
    if envelope(body, &signature) != encoded {
        return Err(RecordError::Malformed);
    }
    Ok((body, signature))
}

fn plain_envelope(data: &[u8], ttl_secs: u32) -> Vec<u8> {
    cbor::encode(data.len() + 16, |cbor| {
        cbor.map(2)?.u64(PLAIN_DATA)?.bytes(data)?.u64(PLAIN_TTL)?.u32(ttl_secs)?.ok()
    })
}

fn at_most(bytes: &[u8], max: usize, what: &'static str) -> Result<(), RecordError> {
    if bytes.len() > max { Err(RecordError::TooLarge { what }) } else { Ok(()) }
}

/// At least a second: a record that is never kept is not one.
fn ttl_secs(ttl: Duration) -> u32 {
    u32::try_from(ttl.min(TTL_MAX).as_secs()).unwrap_or(u32::MAX).max(1)
}

/// Any number of seconds but none; how long it is really kept is the holder's affair.
fn read_ttl(cbor: &mut Decoder<'_>) -> Result<u32, RecordError> {
    match cbor.u64()? {
        0 => Err(RecordError::OutOfRange { what: "time to live" }),
        secs => Ok(u32::try_from(secs).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use minicbor::Encoder;
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32])
    }

    fn key() -> Key {
        ContentId::of(b"something").into()
    }

    fn addrs(count: usize) -> Vec<SocketAddr> {
        (0..count).map(|at| SocketAddr::new([10, 0, 0, at as u8].into(), 4000 + at as u16)).collect()
    }

    fn record() -> ProviderRecord {
        ProviderRecord::sign(&identity(1), key(), &addrs(2), 7, 9, HOUR)
    }

    /// A body of arbitrary fields under a good signature.
    fn signed(write: impl FnOnce(&mut Encoder<Vec<u8>>)) -> Vec<u8> {
        let mut cbor = Encoder::new(Vec::new());
        write(&mut cbor);
        let body = cbor.into_writer();
        envelope(&body, &identity(1).sign(PROVIDER_DOMAIN, &body))
    }

    #[test]
    fn a_record_comes_back_as_it_was_signed() {
        let record = record();
        let read = ProviderRecord::decode(record.encoded()).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.publisher(), identity(1).node_id());
        assert_eq!(read.is_about(&key()), Ok(()));
        assert_eq!(read.is_about(&Key::from_bytes([9; 32])), Err(RecordError::WrongKey));
        let verified = read.verify().unwrap();
        assert_eq!(verified.record(), &Record::Provider(record));

        let gone = ProviderRecord::withdraw(&identity(1), key(), 8, 9);
        let gone = ProviderRecord::decode(gone.encoded()).unwrap();
        assert!(gone.is_withdrawn() && gone.addrs().is_empty());
        assert!(gone.verify().is_ok());
    }

    #[test]
    fn the_bytes_of_a_record_are_these() {
        let record = ProviderRecord::sign(&identity(1), Key::from_bytes([5; 32]), &addrs(1), 7, 9, HOUR);
        let body = [
            &[0xa7, 0x00, 0x58, 0x20][..],
            &[5; 32],
            &[0x01, 0x58, 0x20],
            identity(1).public_key().as_bytes(),
            &[0x02, 0x81, 0x46, 10, 0, 0, 0, 0x0f, 0xa0],
            &[0x03, 0x07, 0x04, 0x19, 0x0e, 0x10, 0x05, 0xf4, 0x06, 0x09],
        ]
        .concat();
        let signature = identity(1).sign("ron-dht provider record 1", &body);
        let encoded =
            [&[0xa2, 0x00, 0x58, body.len() as u8], &body[..], &[0x01, 0x58, 0x40], signature.as_bytes()]
                .concat();
        assert_eq!(record.encoded()[..], encoded);
        assert_eq!(encoded.len(), 161);
    }

    #[test]
    fn a_record_is_of_use_around_its_life_and_no_longer() {
        let (issued, skew) = (1_800_000_000, SKEW_MAX.as_secs());
        let record = |ttl| ProviderRecord::sign(&identity(1), key(), &addrs(1), 1, issued, ttl);
        for (ttl, life) in [(HOUR, 3600), (TTL_MAX, 24 * 3600), (Duration::MAX, 24 * 3600)] {
            let check = |unix| record(ttl).is_current(unix);
            assert_eq!(
                (check(issued), check(issued - skew), check(issued + life + skew)),
                (Ok(()), Ok(()), Ok(()))
            );
            assert_eq!(check(issued - skew - 1), Err(RecordError::Expired));
            assert_eq!(check(issued + life + skew + 1), Err(RecordError::Expired));
            assert_eq!(check(u64::MAX), Err(RecordError::Expired));
        }
        // Nobody lives for ever by having signed at the end of time.
        let last = ProviderRecord::sign(&identity(1), key(), &addrs(1), 1, u64::MAX, HOUR);
        assert_eq!(last.is_current(issued), Err(RecordError::Expired));
        assert_eq!(ProviderRecord::withdraw(&identity(1), key(), 1, 0).is_current(0), Ok(()));
    }

    #[test]
    fn the_largest_record_fits_and_names_eight_addresses() {
        let many: Vec<SocketAddr> =
            (0..20).map(|at| format!("[2606::{at}]:65535").parse().unwrap()).collect();
        let record = ProviderRecord::sign(&identity(1), key(), &many, u64::MAX, u64::MAX, Duration::MAX);
        assert_eq!(record.addrs(), &many[..ADDRS_MAX]);
        assert_eq!(record.ttl_secs(), 24 * 3600);
        assert!(record.encoded().len() <= 366, "{}", record.encoded().len());
        assert_eq!(ProviderRecord::decode(record.encoded()), Ok(record));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let encoded = record().encoded().to_vec();
        for at in 0..encoded.len() {
            let mut changed = encoded.clone();
            changed[at] ^= 1 << (at % 8);
            let read = ProviderRecord::decode(&changed).and_then(ProviderRecord::verify);
            assert!(read.is_err(), "byte {at}");
        }
        for len in 0..encoded.len() {
            assert!(ProviderRecord::decode(&encoded[..len]).is_err());
        }
    }

    #[test]
    fn nobody_else_can_sign_and_a_signature_is_for_one_purpose() {
        // The body says key 1, the signature is of key 2.
        let encoded = record().encoded().to_vec();
        let (body, _) = open_envelope(&encoded).unwrap();
        let forged = envelope(body, &identity(2).sign(PROVIDER_DOMAIN, body));
        let bad = Err(RecordError::BadSignature(SignatureError::BadSignature));
        assert_eq!(ProviderRecord::decode(&forged).unwrap().verify(), bad);
        let diverted = envelope(body, &identity(1).sign(VALUE_DOMAIN, body));
        assert_eq!(ProviderRecord::decode(&diverted).unwrap().verify(), bad);
    }

    #[test]
    fn an_envelope_has_one_spelling() {
        let encoded = record().encoded().to_vec();
        let (body, signature) = open_envelope(&encoded).unwrap();
        // The same lengths in more bytes, a field more, something behind.
        let mut long = vec![0xa2, 0x00, 0x59, 0x00, body.len() as u8];
        long.extend_from_slice(body);
        long.extend_from_slice(&[0x01, 0x58, 0x40]);
        long.extend_from_slice(signature.as_bytes());
        assert_eq!(ProviderRecord::decode(&long), Err(RecordError::Malformed));
        let mut more = encoded.clone();
        more[0] = 0xa3;
        more.extend_from_slice(&[0x02, 0x00]);
        assert_eq!(ProviderRecord::decode(&more), Err(RecordError::Malformed));
        let behind = [&encoded[..], &[0]].concat();
        assert_eq!(ProviderRecord::decode(&behind), Err(RecordError::Malformed));
    }

    #[test]
    fn a_later_version_may_say_more() {
        let public_key = *identity(1).public_key().as_bytes();
        let encoded = signed(|cbor| {
            cbor.map(8).unwrap().u64(0).unwrap().bytes(key().as_bytes()).unwrap();
            cbor.u64(1).unwrap().bytes(&public_key).unwrap();
            cbor.u64(2).unwrap().array(0).unwrap();
            cbor.u64(3).unwrap().u64(1).unwrap();
            cbor.u64(4).unwrap().u64(u64::MAX).unwrap();
            cbor.u64(5).unwrap().bool(false).unwrap();
            cbor.u64(6).unwrap().u64(9).unwrap();
            cbor.u64(9).unwrap().array(2).unwrap().u8(1).unwrap().str("new").unwrap();
        });
        let record = ProviderRecord::decode(&encoded).unwrap();
        assert_eq!(record.ttl_secs(), u32::MAX);
        let Record::Provider(passed_on) = record.verify().unwrap().into_record() else { unreachable!() };
        assert_eq!(passed_on.encoded()[..], encoded);
    }

    #[test]
    fn what_is_wrong_has_a_name() {
        let check = |encoded: &[u8], error| assert_eq!(ProviderRecord::decode(encoded), Err(error));
        check(&[0; PROVIDER_BYTES_MAX + 1], RecordError::TooLarge { what: "record bytes" });
        check(&[], RecordError::Malformed);
        check(&signed(|cbor| drop(cbor.map(0))), RecordError::Missing { field: 1 });
        check(
            &signed(|cbor| drop(cbor.map(1).unwrap().u64(0).unwrap().bytes(&[1; 31]))),
            RecordError::OutOfRange { what: "key" },
        );
        check(
            &signed(|cbor| drop(cbor.map(1).unwrap().u64(2).unwrap().array(9))),
            RecordError::TooLarge { what: "addresses" },
        );
        check(
            &signed(|cbor| drop(cbor.map(1).unwrap().u64(4).unwrap().u64(0))),
            RecordError::OutOfRange { what: "time to live" },
        );
        let twice = |cbor: &mut Encoder<Vec<u8>>| {
            cbor.map(2).unwrap().u64(3).unwrap().u64(1).unwrap().u64(3).unwrap().u64(2).unwrap();
        };
        check(&signed(twice), RecordError::Malformed);
    }

    #[test]
    fn an_immutable_value_is_under_its_hash() {
        let value = Value::immutable(b"hello world", HOUR).unwrap();
        assert_eq!(value.key(), ContentId::of(b"hello world").into());
        let read = Value::decode(value.encoded()).unwrap();
        assert_eq!((&read, &read.data()[..]), (&value, &b"hello world"[..]));
        assert!(read.signer().is_none() && read.verify().is_ok());
        assert_eq!(
            value.encoded()[..],
            [&[0xa2, 0x02, 0x4b], &b"hello world"[..], &[0x03, 0x19, 0x0e, 0x10]].concat()
        );

        let most = vec![1; VALUE_BYTES_MAX];
        assert_eq!(Value::decode(Value::immutable(&most, HOUR).unwrap().encoded()).unwrap().data()[..], most);
        let too_long = Err(RecordError::TooLarge { what: "value bytes" });
        assert_eq!(Value::immutable(&vec![1; VALUE_BYTES_MAX + 1], HOUR), too_long);
        assert_eq!(Value::decode(&plain_envelope(&vec![1; VALUE_BYTES_MAX + 1], 5)), too_long);
        assert!(Value::immutable(b"", HOUR).is_ok());
    }

    #[test]
    fn a_mutable_value_is_under_its_publisher_and_salt() {
        let value = Value::mutable(&identity(3), b"name", 4, b"data", HOUR).unwrap();
        let joined = [&identity(3).public_key().as_bytes()[..], b"name"].concat();
        assert_eq!(value.key(), ContentId::of(&joined).into());
        let read = Value::decode(value.encoded()).unwrap();
        assert_eq!(read, value);
        let signer = read.signer().unwrap();
        assert_eq!(
            (signer.seq, &signer.salt[..], signer.publisher),
            (4, &b"name"[..], identity(3).node_id())
        );
        assert!(read.verify().is_ok());

        let most = Value::mutable(&identity(3), &[7; 64], u64::MAX, &[1; VALUE_BYTES_MAX], HOUR).unwrap();
        assert!(Value::decode(most.encoded()).unwrap().verify().is_ok());
        let refused =
            |salt: &[u8], seq, data: &[u8]| Value::mutable(&identity(3), salt, seq, data, HOUR).unwrap_err();
        assert_eq!(refused(&[0; 65], 1, b""), RecordError::TooLarge { what: "salt bytes" });
        assert_eq!(refused(b"", 0, b""), RecordError::OutOfRange { what: "sequence" });
        assert_eq!(refused(b"", 1, &[0; VALUE_BYTES_MAX + 1]), RecordError::TooLarge { what: "value bytes" });
    }

    #[test]
    fn a_value_of_somebody_else_does_not_verify() {
        let encoded = Value::mutable(&identity(3), b"", 4, b"data", HOUR).unwrap().encoded().to_vec();
        let (body, _) = open_envelope(&encoded).unwrap();
        let forged = envelope(body, &identity(4).sign(VALUE_DOMAIN, body));
        let bad = Err(RecordError::BadSignature(SignatureError::BadSignature));
        assert_eq!(Value::decode(&forged).unwrap().verify(), bad);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ProviderRecord::decode(&bytes);
            let _ = Value::decode(&bytes);
            let enveloped = envelope(&bytes, &Signature::from_bytes([0; 64]));
            let _ = ProviderRecord::decode(&enveloped);
            let _ = Value::decode(&enveloped);
        }

        #[test]
        fn every_record_comes_back(
            key: [u8; 32],
            ips in prop::collection::vec(any::<([u8; 16], bool, u16)>(), 0..=ADDRS_MAX),
            seq: u64,
            ttl in 1..u64::MAX,
        ) {
            let addr = |(bytes, is_short, port): &([u8; 16], bool, u16)| {
                let [a, b, c, d, ..] = *bytes;
                let ip = if *is_short { [a, b, c, d].into() } else { std::net::IpAddr::from(*bytes) };
                SocketAddr::new(ip.to_canonical(), *port)
            };
            let addrs: Vec<_> = ips.iter().map(addr).collect();
            let key = Key::from_bytes(key);
            let record = Verified::unproven(1, key, &addrs, seq, Duration::from_secs(ttl), false);
            let Record::Provider(record) = record.into_record() else { unreachable!() };
            let read = ProviderRecord::decode(record.encoded()).unwrap();
            prop_assert_eq!(read.addrs(), &addrs[..]);
            prop_assert_eq!(&read, &record);
        }

        #[test]
        fn every_value_comes_back(salt in prop::collection::vec(any::<u8>(), 0..=64), seq in 1u64.., data: Vec<u8>) {
            let value = Verified::unproven_value(1, &salt, seq, &data, HOUR).into_record();
            let Record::Value(value) = value else { unreachable!() };
            prop_assert_eq!(Value::decode(value.encoded()), Ok(value));
            let value = Value::immutable(&data, HOUR).unwrap();
            prop_assert_eq!(Value::decode(value.encoded()), Ok(value));
        }
    }
}
