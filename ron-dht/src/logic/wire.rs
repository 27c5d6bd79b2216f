//! The messages of `ron/dht/1`: what one node asks another, and what it is answered.
//!
//! Only bodies are here. Which method it is, how long there is to answer, which answer belongs to which question and
//! refusals are the business of the layer that carries them. Bodies are deterministic CBOR maps with integer keys;
//! unknown keys are skipped, and every count is checked before anything is allocated for it. Records travel as the
//! bytes that were signed and are not looked into here, so one bad record costs itself and not its message.

use std::net::SocketAddr;

use bytes::Bytes;
use minicbor::{Decoder, Encoder, data::Type, encode::Error as EncodeError};
use ron_core::{
    NodeId,
    net::cbor::{
        self, CborFault, read_addrs, read_array, read_bytes, read_list, read_map, read_only_map,
        read_shared_addrs, required, write_addrs,
    },
};

use super::{
    Contact, Key,
    records::Inserted,
    signed::{ADDRS_MAX, PROVIDER_BYTES_MAX, RecordError, VALUE_RECORD_BYTES_MAX},
};

/// Bytes of the longest body: half a frame, so that two never have to wait for one.
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;

/// Contacts in an answer: k of the routing table.
pub const CONTACTS_MAX: usize = 20;

/// Records in one PROVIDE. With the usual one or two addresses they have about 170 bytes, 85 KiB in all.
pub const PROVIDE_MAX: usize = 512;

/// Values in one STORE. As many of the largest fit into a body, with room to spare.
pub const STORE_MAX: usize = 24;

/// Providers in one answer. As many of the largest fit into a body beside the contacts.
pub const PROVIDERS_MAX: usize = 256;

const _: () = assert!(STORE_MAX * (VALUE_RECORD_BYTES_MAX + 32) < MESSAGE_BYTES_MAX);
const _: () = assert!(
    PROVIDERS_MAX * (PROVIDER_BYTES_MAX + 3) + CONTACTS_MAX * 256 + VALUE_RECORD_BYTES_MAX
        < MESSAGE_BYTES_MAX
);

/// Methods by number.
pub mod method {
    /// Is anybody there?
    pub const PING: u16 = 1;
    /// Who is close to a key?
    pub const FIND_NODE: u16 = 2;
    /// What is known of a key, and who is close to it?
    pub const FIND_VALUE: u16 = 3;
    /// Keep these provider records.
    pub const PROVIDE: u16 = 4;
    /// Keep these values.
    pub const STORE: u16 = 5;

    /// All of them, for those who register them.
    pub const ALL: [u16; 5] = [PING, FIND_NODE, FIND_VALUE, PROVIDE, STORE];
}

const PING_ADDRS: u64 = 0;
const FIND_KEY: u64 = 0;
const FIND_WANT: u64 = 1;
const FIND_LIMIT: u64 = 2;
const KEEP_RECORDS: u64 = 0;
const ANSWER_CLOSER: u64 = 0;
const ANSWER_PROVIDERS: u64 = 1;
const ANSWER_VALUE: u64 = 2;
const ANSWER_RESULTS: u64 = 0;
const CONTACT_ID: u64 = 0;
const CONTACT_ADDRS: u64 = 1;
const PUT_VALUE: u64 = 0;
const PUT_EXPECTED: u64 = 1;

/// Why a body is not a message. Always the sender's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// More bytes, or more of something, than a message may have.
    #[error("too many {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// Not a deterministic CBOR map, or not only that.
    #[error("not a message")]
    Malformed,
    /// A key that every such message has is not there.
    #[error("lacks key {key}")]
    Missing {
        /// The key.
        key: u64,
    },
    /// A value that its key does not allow.
    #[error("{what} is out of range")]
    OutOfRange {
        /// Which value.
        what: &'static str,
    },
    /// A later version's method, or none at all.
    #[error("unknown method {method}")]
    UnknownMethod {
        /// Its number.
        method: u16,
    },
}

impl WireError {
    /// The rule in one word, for counters: from a closed set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            WireError::TooLarge { .. } => "message_too_large",
            WireError::Malformed | WireError::Missing { .. } => "message_malformed",
            WireError::OutOfRange { .. } => "message_out_of_range",
            WireError::UnknownMethod { .. } => "message_method",
        }
    }
}

impl From<CborFault> for WireError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::Malformed => WireError::Malformed,
            CborFault::TooMany { what } => WireError::TooLarge { what },
            CborFault::Missing { key } => WireError::Missing { key },
            CborFault::OutOfRange { what } => WireError::OutOfRange { what },
        }
    }
}

impl From<minicbor::decode::Error> for WireError {
    fn from(_: minicbor::decode::Error) -> Self {
        WireError::Malformed
    }
}

/// What one node asks another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Is anybody there?
    Ping {
        /// Where the asker takes calls itself, at most eight; none if it only asks. The port it calls from is not
        /// the one that it listens on.
        listening: Vec<SocketAddr>,
    },
    /// Who is close to `target`?
    FindNode {
        /// A node's place, or any other.
        target: Key,
    },
    /// What is known of `key`, and who is close to it?
    FindValue {
        /// The key.
        key: Key,
        /// What about it.
        want: Want,
        /// How many providers are enough, at most 256.
        limit: u16,
    },
    /// Keep these provider records, encoded.
    Provide {
        /// At most 512.
        records: Vec<Bytes>,
    },
    /// Keep these values.
    Store {
        /// At most 24.
        values: Vec<Put>,
    },
}

/// What is asked about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Who provides it.
    Providers,
    /// The value whose hash it is.
    Immutable,
    /// The value that the owner of the key may change.
    Mutable,
}

/// A value to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The value, encoded.
    pub value: Bytes,
    /// Only if this sequence number is held, or nothing. Zero is nothing.
    pub expected: Option<u64>,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Somebody is.
    Pong,
    /// Those it knows that are closest.
    Nodes {
        /// At most 20, the closest first.
        closer: Vec<Contact>,
    },
    /// What it has, and those it knows that are closest: a holder is no reason to stop looking for others.
    Found {
        /// At most 20, the closest first.
        closer: Vec<Contact>,
        /// Encoded provider records, at most 256.
        providers: Vec<Bytes>,
        /// The encoded value.
        value: Option<Bytes>,
    },
    /// What became of the records of a PROVIDE, in their order.
    Provided {
        /// One for each record.
        results: Vec<RecordOutcome>,
    },
    /// What became of the values of a STORE, in their order.
    Stored {
        /// One for each value.
        results: Vec<RecordOutcome>,
    },
}

/// What became of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It is kept.
    Kept,
    /// Its holder is full, or the publisher's share is used up. Others may have room.
    Full,
    /// A newer one is held.
    Stale {
        /// Its sequence number.
        held: u64,
    },
    /// Another one is held than was expected.
    Conflict {
        /// Its sequence number; zero if none.
        held: u64,
    },
    /// Something is wrong with the record itself; no other node would keep it.
    Invalid,
    /// The node did not come to it in time. Send it again.
    Skipped,
    /// Something that a later version says.
    Unknown,
}

impl From<&Result<Inserted, RecordError>> for RecordOutcome {
    fn from(result: &Result<Inserted, RecordError>) -> Self {
        match result {
            Ok(_) => RecordOutcome::Kept,
            Err(RecordError::Stale { held }) => RecordOutcome::Stale { held: *held },
            Err(RecordError::Conflict { held }) => RecordOutcome::Conflict { held: *held },
            Err(error) if error.is_quota() => RecordOutcome::Full,
            Err(_) => RecordOutcome::Invalid,
        }
    }
}

type Cbor = Encoder<Vec<u8>>;
type Written = Result<(), EncodeError<std::convert::Infallible>>;

impl Request {
    /// The number of its method.
    #[must_use]
    pub fn method(&self) -> u16 {
        match self {
            Request::Ping { .. } => method::PING,
            Request::FindNode { .. } => method::FIND_NODE,
            Request::FindValue { .. } => method::FIND_VALUE,
            Request::Provide { .. } => method::PROVIDE,
            Request::Store { .. } => method::STORE,
        }
    }

    /// Method and body. A list that is too long is cut off.
    #[must_use]
    pub fn encode(&self) -> (u16, Bytes) {
        (self.method(), cbor::encode(64, |cbor| self.write(cbor)).into())
    }

    fn write(&self, cbor: &mut Cbor) -> Written {
        match self {
            Request::Ping { listening } => {
                cbor.map(1)?.u64(PING_ADDRS)?;
                write_addrs(cbor, first(listening, ADDRS_MAX))?;
            }
            Request::FindNode { target } => {
                cbor.map(1)?.u64(FIND_KEY)?.bytes(target.as_bytes())?;
            }
            Request::FindValue { key, want, limit } => {
                cbor.map(3)?.u64(FIND_KEY)?.bytes(key.as_bytes())?;
                cbor.u64(FIND_WANT)?.u8(match want {
                    Want::Providers => 0,
                    Want::Immutable => 1,
                    Want::Mutable => 2,
                })?;
                cbor.u64(FIND_LIMIT)?.u16(*limit)?;
            }
            Request::Provide { records } => {
                cbor.map(1)?.u64(KEEP_RECORDS)?;
                write_blobs(cbor, first(records, PROVIDE_MAX))?;
            }
            Request::Store { values } => {
                let values = first(values, STORE_MAX);
                cbor.map(1)?.u64(KEEP_RECORDS)?.array(values.len() as u64)?;
                for Put { value, expected } in values {
                    cbor.map(1 + u64::from(expected.is_some()))?.u64(PUT_VALUE)?.bytes(value)?;
                    if let Some(expected) = expected {
                        cbor.u64(PUT_EXPECTED)?.u64(*expected)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// A [`WireError`].
    pub fn decode(method: u16, body: &[u8]) -> Result<Self, WireError> {
        check_size(body)?;
        match method {
            method::PING => {
                let mut listening = Vec::new();
                read_only_map(body, |key, cbor| match key {
                    PING_ADDRS => read_addrs(cbor, ADDRS_MAX).map(|addrs| listening = addrs).map(|()| true),
                    _ => Ok(false),
                })?;
                Ok(Request::Ping { listening })
            }
            method::FIND_NODE => {
                let mut target = None;
                read_only_map(body, |key, cbor| match key {
                    FIND_KEY => read_array(cbor, "key").map(|bytes| target = Some(bytes)).map(|()| true),
                    _ => Ok(false),
                })?;
                Ok(Request::FindNode { target: Key::from_bytes(required(target, FIND_KEY)?) })
            }
            method::FIND_VALUE => Self::decode_find_value(body),
            method::PROVIDE => {
                let mut records = None;
                read_only_map(body, |key, cbor| match key {
                    KEEP_RECORDS => read_blobs(cbor, ("records", PROVIDE_MAX), PROVIDER_BYTES_MAX)
                        .map(|blobs| records = Some(blobs))
                        .map(|()| true),
                    _ => Ok(false),
                })?;
                Ok(Request::Provide { records: required(records, KEEP_RECORDS)? })
            }
            method::STORE => {
                let mut values = None;
                read_only_map(body, |key, cbor| match key {
                    KEEP_RECORDS => read_list(cbor, ("values", STORE_MAX), read_put)
                        .map(|puts| values = Some(puts))
                        .map(|()| true),
                    _ => Ok(false),
                })?;
                Ok(Request::Store { values: required(values, KEEP_RECORDS)? })
            }
            method => Err(WireError::UnknownMethod { method }),
        }
    }

    fn decode_find_value(body: &[u8]) -> Result<Self, WireError> {
        let (mut key, mut want, mut limit) = (None, None, None);
        read_only_map(body, |field, cbor| {
            match field {
                FIND_KEY => key = Some(Key::from_bytes(read_array(cbor, "key")?)),
                FIND_WANT => {
                    want = Some(match cbor.u64()? {
                        0 => Want::Providers,
                        1 => Want::Immutable,
                        2 => Want::Mutable,
                        _ => return Err(WireError::OutOfRange { what: "want" }),
                    });
                }
                // Asking for more is asking for all that an answer can hold.
                FIND_LIMIT => limit = Some(cbor.u64()?.min(PROVIDERS_MAX as u64) as u16),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Request::FindValue {
            key: required(key, FIND_KEY)?,
            want: required(want, FIND_WANT)?,
            limit: required(limit, FIND_LIMIT)?,
        })
    }
}

impl Answer {
    /// The number of the method it answers.
    #[must_use]
    pub fn method(&self) -> u16 {
        match self {
            Answer::Pong => method::PING,
            Answer::Nodes { .. } => method::FIND_NODE,
            Answer::Found { .. } => method::FIND_VALUE,
            Answer::Provided { .. } => method::PROVIDE,
            Answer::Stored { .. } => method::STORE,
        }
    }

    /// Method and body. A list that is too long is cut off.
    #[must_use]
    pub fn encode(&self) -> (u16, Bytes) {
        (self.method(), cbor::encode(self.len_about(), |cbor| self.write(cbor)).into())
    }

    /// Bytes that it takes, or a few more: a peer with one address of either kind is at most 60.
    fn len_about(&self) -> usize {
        let (closer, blobs) = match self {
            Answer::Nodes { closer } => (closer.len(), 0),
            Answer::Found { closer, providers, value } => {
                (closer.len(), providers.iter().chain(value).map(|blob| blob.len() + 4).sum())
            }
            _ => (0, 0),
        };
        64 + closer * 64 + blobs
    }

    fn write(&self, cbor: &mut Cbor) -> Written {
        match self {
            Answer::Pong => cbor.map(0)?.ok(),
            Answer::Nodes { closer } => {
                cbor.map(1)?.u64(ANSWER_CLOSER)?;
                write_contacts(cbor, first(closer, CONTACTS_MAX))
            }
            Answer::Found { closer, providers, value } => {
                cbor.map(2 + u64::from(value.is_some()))?.u64(ANSWER_CLOSER)?;
                write_contacts(cbor, first(closer, CONTACTS_MAX))?;
                cbor.u64(ANSWER_PROVIDERS)?;
                write_blobs(cbor, first(providers, PROVIDERS_MAX))?;
                if let Some(value) = value {
                    cbor.u64(ANSWER_VALUE)?.bytes(value)?;
                }
                Ok(())
            }
            Answer::Provided { results } => write_results(cbor, first(results, PROVIDE_MAX)),
            Answer::Stored { results } => write_results(cbor, first(results, STORE_MAX)),
        }
    }

    /// Reads the body of an answer to `method`.
    ///
    /// # Errors
    /// A [`WireError`].
    pub fn decode(method: u16, body: &[u8]) -> Result<Self, WireError> {
        check_size(body)?;
        match method {
            method::PING => {
                read_only_map(body, |_, _| Ok::<_, WireError>(false))?;
                Ok(Answer::Pong)
            }
            method::FIND_NODE => {
                let (closer, _, _) = read_found(body)?;
                Ok(Answer::Nodes { closer })
            }
            method::FIND_VALUE => {
                let (closer, providers, value) = read_found(body)?;
                Ok(Answer::Found { closer, providers: required(providers, ANSWER_PROVIDERS)?, value })
            }
            method::PROVIDE => read_results(body, PROVIDE_MAX).map(|results| Answer::Provided { results }),
            method::STORE => read_results(body, STORE_MAX).map(|results| Answer::Stored { results }),
            method => Err(WireError::UnknownMethod { method }),
        }
    }
}

/// Cuts a list of encoded provider records into what single messages can carry.
pub fn batches(records: &[Bytes]) -> impl Iterator<Item = &[Bytes]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        // The map, its key and the list's length take at most five bytes, a record's length three.
        let mut room = MESSAGE_BYTES_MAX - 8;
        let fits = |record: &&Bytes| match room.checked_sub(record.len() + 3) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        let count = rest.iter().take(PROVIDE_MAX).take_while(fits).count();
        // A record that no message can carry is left for the receiver to refuse, not sent round and round.
        let (batch, others) = rest.split_at(count.max(1).min(rest.len()));
        rest = others;
        (!batch.is_empty()).then_some(batch)
    })
}

fn first<T>(list: &[T], max: usize) -> &[T] {
    &list[..list.len().min(max)]
}

fn check_size(body: &[u8]) -> Result<(), WireError> {
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(WireError::TooLarge { what: "message bytes" });
    }
    Ok(())
}

fn write_blobs(cbor: &mut Cbor, blobs: &[Bytes]) -> Written {
    cbor.array(blobs.len() as u64)?;
    blobs.iter().try_for_each(|blob| cbor.bytes(blob)?.ok())
}

/// Each gets memory of its own: a record that is kept must not keep its whole message.
fn read_blobs(
    cbor: &mut Decoder<'_>,
    count: (&'static str, usize),
    bytes_max: usize,
) -> Result<Vec<Bytes>, CborFault> {
    read_list(cbor, count, |cbor| read_bytes(cbor, ("record bytes", bytes_max)).map(Bytes::copy_from_slice))
}

fn read_put(cbor: &mut Decoder<'_>) -> Result<Put, CborFault> {
    let (mut value, mut expected) = (None, None);
    read_map(cbor, |key, cbor| {
        match key {
            PUT_VALUE => value = Some(read_bytes(cbor, ("record bytes", VALUE_RECORD_BYTES_MAX))?),
            PUT_EXPECTED => expected = Some(cbor.u64()?),
            _ => return Ok::<_, CborFault>(false),
        }
        Ok(true)
    })?;
    Ok(Put { value: Bytes::copy_from_slice(required(value, PUT_VALUE)?), expected })
}

/// Writes contacts as they stand in answers and in the file of those to try first.
pub(crate) fn write_contacts(cbor: &mut Cbor, contacts: &[Contact]) -> Written {
    cbor.array(contacts.len() as u64)?;
    for contact in contacts {
        cbor.map(2)?.u64(CONTACT_ID)?.bytes(contact.id.as_bytes())?.u64(CONTACT_ADDRS)?;
        write_addrs(cbor, first(&contact.addrs, ADDRS_MAX))?;
    }
    Ok(())
}

/// Reads what [`write_contacts`] writes, at most `max` of them.
pub(crate) fn read_contacts(cbor: &mut Decoder<'_>, max: usize) -> Result<Vec<Contact>, CborFault> {
    read_list(cbor, ("contacts", max), |cbor| {
        let (mut id, mut addrs) = (None, None);
        read_map(cbor, |key, cbor| {
            match key {
                CONTACT_ID => id = Some(NodeId::from_bytes(read_array(cbor, "node id")?)),
                CONTACT_ADDRS => addrs = Some(read_shared_addrs::<ADDRS_MAX>(cbor)?),
                _ => return Ok::<_, CborFault>(false),
            }
            Ok(true)
        })?;
        Ok(Contact { id: required(id, CONTACT_ID)?, addrs: required(addrs, CONTACT_ADDRS)? })
    })
}

type Found = (Vec<Contact>, Option<Vec<Bytes>>, Option<Bytes>);

fn read_found(body: &[u8]) -> Result<Found, WireError> {
    let (mut closer, mut providers, mut value) = (None, None, None);
    read_only_map(body, |key, cbor| {
        match key {
            ANSWER_CLOSER => closer = Some(read_contacts(cbor, CONTACTS_MAX)?),
            ANSWER_PROVIDERS => {
                providers = Some(read_blobs(cbor, ("providers", PROVIDERS_MAX), PROVIDER_BYTES_MAX)?);
            }
            ANSWER_VALUE => {
                let bytes = read_bytes(cbor, ("record bytes", VALUE_RECORD_BYTES_MAX))?;
                value = Some(Bytes::copy_from_slice(bytes));
            }
            _ => return Ok::<_, WireError>(false),
        }
        Ok(true)
    })?;
    Ok((required(closer, ANSWER_CLOSER)?, providers, value))
}

const RESULT_KEPT: u64 = 0;
const RESULT_FULL: u64 = 1;
const RESULT_STALE: u64 = 2;
const RESULT_CONFLICT: u64 = 3;
const RESULT_INVALID: u64 = 4;
const RESULT_SKIPPED: u64 = 5;
/// What an outcome that we did not understand is passed on as.
const RESULT_UNKNOWN: u64 = u64::MAX;

fn write_results(cbor: &mut Cbor, results: &[RecordOutcome]) -> Written {
    cbor.map(1)?.u64(ANSWER_RESULTS)?.array(results.len() as u64)?;
    for result in results {
        match result {
            RecordOutcome::Kept => cbor.u64(RESULT_KEPT)?,
            RecordOutcome::Full => cbor.u64(RESULT_FULL)?,
            RecordOutcome::Stale { held } => cbor.array(2)?.u64(RESULT_STALE)?.u64(*held)?,
            RecordOutcome::Conflict { held } => cbor.array(2)?.u64(RESULT_CONFLICT)?.u64(*held)?,
            RecordOutcome::Invalid => cbor.u64(RESULT_INVALID)?,
            RecordOutcome::Skipped => cbor.u64(RESULT_SKIPPED)?,
            RecordOutcome::Unknown => cbor.u64(RESULT_UNKNOWN)?,
        };
    }
    Ok(())
}

fn read_results(body: &[u8], max: usize) -> Result<Vec<RecordOutcome>, WireError> {
    let mut results = None;
    read_only_map(body, |key, cbor| match key {
        ANSWER_RESULTS => {
            read_list(cbor, ("results", max), read_result).map(|list| results = Some(list)).map(|()| true)
        }
        _ => Ok(false),
    })?;
    Ok(required(results, ANSWER_RESULTS)?)
}

/// A number, or a number and the sequence that is held.
fn read_result(cbor: &mut Decoder<'_>) -> Result<RecordOutcome, WireError> {
    if cbor.datatype()? == Type::Array {
        if cbor.array()? != Some(2) {
            return Err(WireError::Malformed);
        }
        let (code, held) = (cbor.u64()?, cbor.u64()?);
        return Ok(match code {
            RESULT_STALE => RecordOutcome::Stale { held },
            RESULT_CONFLICT => RecordOutcome::Conflict { held },
            _ => RecordOutcome::Unknown,
        });
    }
    Ok(match cbor.u64()? {
        RESULT_KEPT => RecordOutcome::Kept,
        RESULT_FULL => RecordOutcome::Full,
        RESULT_INVALID => RecordOutcome::Invalid,
        RESULT_SKIPPED => RecordOutcome::Skipped,
        _ => RecordOutcome::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use allocation_counter::measure;
    use proptest::prelude::*;

    use super::*;

    fn contact(seed: u8, addrs: usize) -> Contact {
        let addr = |at: usize| match at % 2 {
            0 => SocketAddr::new([10, seed, 0, at as u8].into(), 1000 + at as u16),
            _ => format!("[2606::{at}]:{}", 2000 + at).parse().unwrap(),
        };
        Contact { id: NodeId::from_bytes([seed; 32]), addrs: (0..addrs).map(addr).collect() }
    }

    fn blob(len: usize) -> Bytes {
        vec![7; len].into()
    }

    fn asks() -> Vec<Request> {
        let key = Key::from_bytes([3; 32]);
        vec![
            Request::Ping { listening: vec![] },
            Request::Ping { listening: contact(1, 8).addrs.to_vec() },
            Request::FindNode { target: key },
            Request::FindValue { key, want: Want::Providers, limit: 256 },
            Request::FindValue { key, want: Want::Mutable, limit: 0 },
            Request::Provide { records: vec![blob(200), blob(0), blob(PROVIDER_BYTES_MAX)] },
            Request::Store { values: vec![Put { value: blob(30), expected: None }] },
            Request::Store {
                values: vec![Put { value: blob(VALUE_RECORD_BYTES_MAX), expected: Some(9) }; STORE_MAX],
            },
        ]
    }

    fn answers() -> Vec<Answer> {
        let results = vec![
            RecordOutcome::Kept,
            RecordOutcome::Full,
            RecordOutcome::Stale { held: 7 },
            RecordOutcome::Conflict { held: u64::MAX },
            RecordOutcome::Invalid,
            RecordOutcome::Skipped,
            RecordOutcome::Unknown,
        ];
        let closer: Vec<_> = (0..20).map(|seed| contact(seed, 8)).collect();
        let largest = vec![blob(PROVIDER_BYTES_MAX); PROVIDERS_MAX];
        vec![
            Answer::Pong,
            Answer::Nodes { closer: vec![] },
            Answer::Nodes { closer: closer.clone() },
            Answer::Found { closer: vec![contact(1, 0)], providers: vec![blob(9)], value: None },
            Answer::Found { closer, providers: largest, value: Some(blob(VALUE_RECORD_BYTES_MAX)) },
            Answer::Provided { results: results.clone() },
            Answer::Stored { results },
        ]
    }

    #[test]
    fn every_message_comes_back() {
        for request in asks() {
            let (method, body) = request.encode();
            assert!(body.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Request::decode(method, &body), Ok(request));
        }
        for answer in answers() {
            let (method, body) = answer.encode();
            assert!(body.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Answer::decode(method, &body), Ok(answer));
        }
    }

    #[test]
    fn the_bytes_are_these() {
        let check = |(method, body): (u16, Bytes), expected: (u16, &[u8])| {
            assert_eq!((method, &body[..]), expected);
        };
        check(Request::Ping { listening: vec![] }.encode(), (1, &[0xa1, 0x00, 0x80]));
        let find = [&[0xa1, 0x00, 0x58, 0x20][..], &[3; 32]].concat();
        check(Request::FindNode { target: Key::from_bytes([3; 32]) }.encode(), (2, &find));
        let find = [&[0xa3, 0x00, 0x58, 0x20][..], &[3; 32], &[0x01, 0x02, 0x02, 0x05]].concat();
        let key = Key::from_bytes([3; 32]);
        check(Request::FindValue { key, want: Want::Mutable, limit: 5 }.encode(), (3, &find));
        let provide = [0xa1, 0x00, 0x82, 0x41, 0x07, 0x42, 0x07, 0x07];
        check(Request::Provide { records: vec![blob(1), blob(2)] }.encode(), (4, &provide));
        let store = [0xa1, 0x00, 0x81, 0xa2, 0x00, 0x41, 0x07, 0x01, 0x09];
        check(
            Request::Store { values: vec![Put { value: blob(1), expected: Some(9) }] }.encode(),
            (5, &store),
        );
        let nodes = [
            &[0xa1, 0x00, 0x81, 0xa2, 0x00, 0x58, 0x20][..],
            &[1; 32],
            &[0x01, 0x81, 0x46, 10, 1, 0, 0, 0x03, 0xe8],
        ]
        .concat();
        check(Answer::Nodes { closer: vec![contact(1, 1)] }.encode(), (2, &nodes));
        let results = vec![RecordOutcome::Kept, RecordOutcome::Stale { held: 4 }];
        check(Answer::Provided { results }.encode(), (4, &[0xa1, 0x00, 0x82, 0x00, 0x82, 0x02, 0x04]));
    }

    #[test]
    fn the_usual_answer_is_small() {
        let closer = (0..20).map(|seed| contact(seed, 1)).collect();
        let (_, body) = Answer::Nodes { closer }.encode();
        assert_eq!(body.len(), 3 + 20 * 45);
    }

    #[test]
    fn a_later_version_may_say_more() {
        let (_, body) = Request::FindNode { target: Key::from_bytes([3; 32]) }.encode();
        let mut more = body.to_vec();
        more[0] = 0xa3;
        more.extend_from_slice(&[0x07, 0x82, 0x01, 0xf6, 0x18, 0x63, 0x61, 0x78]);
        assert_eq!(Request::decode(2, &more), Request::decode(2, &body));
        // An outcome of a later version, with or without something to it.
        let results = Ok(Answer::Provided { results: vec![RecordOutcome::Unknown, RecordOutcome::Unknown] });
        assert_eq!(Answer::decode(4, &[0xa1, 0x00, 0x82, 0x18, 0x28, 0x82, 0x18, 0x28, 0x01]), results);
        assert_eq!(Request::decode(6, &body), Err(WireError::UnknownMethod { method: 6 }));
        assert_eq!(Answer::decode(0, &body), Err(WireError::UnknownMethod { method: 0 }));
    }

    #[test]
    fn more_than_there_may_be_is_refused() {
        let list = |count: u16, item: &[u8]| {
            let [high, low] = count.to_be_bytes();
            let mut body = vec![0xa1, 0x00, 0x99, high, low];
            (0..count).for_each(|_| body.extend_from_slice(item));
            body
        };
        let too_many = |what| Err(WireError::TooLarge { what });
        assert!(Request::decode(4, &list(512, &[0x40])).is_ok());
        assert_eq!(Request::decode(4, &list(513, &[0x40])), too_many("records"));
        assert_eq!(Request::decode(5, &list(25, &[0xa1, 0x00, 0x40])), too_many("values"));
        let contact = [&[0xa2, 0x00, 0x58, 0x20][..], &[1; 32], &[0x01, 0x80]].concat();
        assert!(Answer::decode(2, &list(20, &contact)).is_ok());
        let many = Err(WireError::TooLarge { what: "contacts" });
        assert_eq!(Answer::decode(2, &list(21, &contact)), many);
        assert_eq!(Request::decode(1, &[0xa1, 0x00, 0x89]), too_many("addresses"));
        let long = Request::Provide { records: vec![blob(PROVIDER_BYTES_MAX + 1)] };
        assert_eq!(Request::decode(4, &long.encode().1), too_many("record bytes"));
        assert_eq!(Request::decode(2, &vec![0; MESSAGE_BYTES_MAX + 1]), too_many("message bytes"));
        let asked =
            Request::FindValue { key: Key::from_bytes([0; 32]), want: Want::Providers, limit: u16::MAX };
        let Ok(Request::FindValue { limit, .. }) = Request::decode(3, &asked.encode().1) else { panic!() };
        assert_eq!(usize::from(limit), PROVIDERS_MAX);
    }

    #[test]
    fn a_number_alone_allocates_nothing() {
        // Five bytes that announce 2^32 of something, for every place where a list can be.
        let bombs: [&[u8]; 4] = [
            &[0xa1, 0x00, 0x9a, 0xff, 0xff, 0xff, 0xff],
            &[0xa1, 0x00, 0x5a, 0xff, 0xff, 0xff, 0xff],
            &[0xba, 0xff, 0xff, 0xff, 0xff],
            &[0xa1, 0x09, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ];
        for bomb in bombs {
            for method in method::ALL {
                let used = measure(|| {
                    assert!(Request::decode(method, bomb).is_err());
                    assert!(Answer::decode(method, bomb).is_err());
                });
                assert!(used.bytes_max < 100, "{used:?}");
            }
        }
        // A list of the longest length with nothing in it.
        let used = measure(|| assert!(Request::decode(4, &[0xa1, 0x00, 0x99, 0x02, 0x00]).is_err()));
        assert!(used.bytes_max < 100, "{used:?}");
    }

    #[test]
    fn what_is_wrong_has_a_name() {
        assert_eq!(Request::decode(2, &[]), Err(WireError::Malformed));
        assert_eq!(Request::decode(2, &[0xa0]), Err(WireError::Missing { key: 0 }));
        assert_eq!(Request::decode(2, &[0xa1, 0x00, 0x41, 0x01]), Err(WireError::OutOfRange { what: "key" }));
        assert_eq!(Request::decode(1, &[0xa0, 0x00]), Err(WireError::Malformed));
        assert_eq!(Answer::decode(3, &[0xa1, 0x00, 0x80]), Err(WireError::Missing { key: 1 }));
        let bad_addr = [0xa1, 0x00, 0x81, 0x45, 1, 2, 3, 4, 5];
        assert_eq!(Request::decode(1, &bad_addr), Err(WireError::OutOfRange { what: "address" }));
    }

    #[test]
    fn outcomes_follow_from_what_the_store_said() {
        let check = |result, outcome| assert_eq!(RecordOutcome::from(&result), outcome);
        check(Ok(Inserted::Unchanged), RecordOutcome::Kept);
        check(Err(RecordError::KeyFull), RecordOutcome::Full);
        check(Err(RecordError::Stale { held: 3 }), RecordOutcome::Stale { held: 3 });
        check(Err(RecordError::Conflict { held: 0 }), RecordOutcome::Conflict { held: 0 });
        check(Err(RecordError::Malformed), RecordOutcome::Invalid);
    }

    #[test]
    fn batches_fit_into_messages() {
        let check = |records: Vec<Bytes>, expected: &[usize]| {
            let cut: Vec<_> = batches(&records).collect();
            assert_eq!(cut.iter().map(|batch| batch.len()).collect::<Vec<_>>(), expected);
            assert_eq!(cut.concat(), records);
            for batch in cut {
                let (_, body) = Request::Provide { records: batch.to_vec() }.encode();
                assert!(body.len() <= MESSAGE_BYTES_MAX, "{}", body.len());
            }
        };
        check(vec![], &[]);
        check(vec![blob(160); 3], &[3]);
        check(vec![blob(160); 1200], &[512, 512, 176]);
        check(vec![blob(PROVIDER_BYTES_MAX); 600], &[510, 90]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(method in 0..7u16, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::decode(method, &bytes);
            let _ = Answer::decode(method, &bytes);
        }

        #[test]
        fn edited_messages_do_no_harm(which in 0..7usize, at in 0..64usize, byte: u8) {
            let (method, body) = asks()[which].encode();
            let mut edited = body.to_vec();
            let at = at % edited.len();
            edited[at] = byte;
            if let Ok(request) = Request::decode(method, &edited) {
                let (method, body) = request.encode();
                prop_assert_eq!(Request::decode(method, &body), Ok(request));
            }
            let (method, body) = answers()[which].encode();
            let mut edited = body.to_vec();
            let at = at % edited.len();
            edited[at] = byte;
            if let Ok(answer) = Answer::decode(method, &edited) {
                let (method, body) = answer.encode();
                prop_assert_eq!(Answer::decode(method, &body), Ok(answer));
            }
        }

        #[test]
        fn every_find_comes_back(key: [u8; 32], want in 0..3u8, limit in 0..=256u16) {
            let want = [Want::Providers, Want::Immutable, Want::Mutable][usize::from(want)];
            let request = Request::FindValue { key: Key::from_bytes(key), want, limit };
            let (method, body) = request.encode();
            prop_assert_eq!(Request::decode(method, &body), Ok(request));
        }

        #[test]
        fn every_provide_comes_back(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..40)) {
            let records = records.into_iter().map(Bytes::from).collect();
            let request = Request::Provide { records };
            let (method, body) = request.encode();
            prop_assert_eq!(Request::decode(method, &body), Ok(request));
        }
    }
}
