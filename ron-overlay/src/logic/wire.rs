//! The words of `ron/oap/1`: what nodes tell each other about a topic, as bytes.
//!
//! Each word is an event; its number says which, its body is a deterministic CBOR map with integer keys. Unknown keys are
//! skipped, and every count is checked before anything is allocated for it. Lists of names are one byte string, so that
//! an announcement costs its names and little more.

use std::sync::Arc;

use bytes::Bytes;
use minicbor::{Decoder, Encoder, encode::Error as EncodeError};
use ron_core::{
    NodeId,
    net::{
        PublicKey, Signature,
        cbor::{
            CborFault, read_addrs, read_array, read_bytes, read_list, read_only_map, required, write_addrs,
        },
    },
};

use super::{
    gossip::{BEACONS_MAX, FETCH_MAX, HAVE_TREES_MAX, IDS_MAX, Pushed, SUMMARIES_MAX, Word},
    message::{Author, Message, MessageId, SEQ_MAX, TopicId},
    parts::Part,
    publishers::Summary,
    seal::Proof,
    trees::Beacon,
    view::{ADDRS_MAX, CONTACTS_MAX, Contact, ViewMessage, WALK_MAX},
};

/// Bytes of the longest message.
pub const PAYLOAD_MAX: usize = 16 << 20;

/// Bytes that a word adds to the message that it carries, at most.
pub const PUSH_OVERHEAD: usize = 512;

const ID_BYTES: usize = 16;

/// Words by number.
pub mod number {
    /// I am new here.
    pub const JOIN: u16 = 1;
    /// Somebody is new.
    pub const WALK: u16 = 2;
    /// Shall we be neighbours?
    pub const ASK: u16 = 3;
    /// The answer.
    pub const ANSWER: u16 = 4;
    /// We are no longer neighbours.
    pub const PART: u16 = 5;
    /// A sample of a view.
    pub const SHUFFLE: u16 = 6;
    /// A sample in return.
    pub const SHUFFLED: u16 = 7;
    /// About trees.
    pub const BEACONS: u16 = 8;
    /// A message.
    pub const PUSH: u16 = 9;
    /// These are here.
    pub const HAVE: u16 = 10;
    /// Send me these.
    pub const WANT: u16 = 11;
    /// What is here of whom.
    pub const DIGEST: u16 = 12;
    /// Send me these numbers.
    pub const FETCH: u16 = 13;
    /// Are you there?
    pub const PING: u16 = 14;
    /// Yes.
    pub const PONG: u16 = 15;
    /// A piece of a word that is too long for one frame.
    pub const PIECE: u16 = 16;
    /// Words for you were shed here.
    pub const SHED: u16 = 17;
}

const TOPIC: u64 = 0;

/// Why a body is not a word. Always the sender's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// More bytes, or more of something, than a word may have.
    #[error("too many {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// Not a deterministic CBOR map, or not only that.
    #[error("not a word")]
    Malformed,
    /// A key that every such word has is not there.
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
    /// A later version's word, or none at all.
    #[error("unknown word {number}")]
    UnknownWord {
        /// Its number.
        number: u16,
    },
}

impl WireError {
    /// The rule in one word, for counters: from a closed set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            WireError::TooLarge { .. } => "word_too_large",
            WireError::Malformed | WireError::Missing { .. } => "word_malformed",
            WireError::OutOfRange { .. } => "word_out_of_range",
            WireError::UnknownWord { .. } => "word_unknown",
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

type Cbor = Encoder<Vec<u8>>;
type Written = Result<(), EncodeError<std::convert::Infallible>>;

/// A word as a number and a body.
#[must_use]
pub fn encode(topic: &TopicId, word: &Word) -> (u16, Bytes) {
    (number_of(word), encode_into(Vec::with_capacity(room_for(word)), topic, word).into())
}

/// Puts the body of a word behind what is there.
#[must_use]
pub fn encode_into(bytes: Vec<u8>, topic: &TopicId, word: &Word) -> Vec<u8> {
    let mut cbor = Encoder::new(bytes);
    match write(&mut cbor, topic, word) {
        Ok(number) => debug_assert_eq!(number, number_of(word)),
        Err(error) => unreachable!("memory takes all that is written: {error}"),
    }
    cbor.into_writer()
}

/// About as many bytes as the body of a word has.
#[must_use]
pub fn room_for(word: &Word) -> usize {
    match word {
        Word::Push(pushed) => pushed.message.payload().len() + 256,
        Word::Beacons(beacons) => beacons.len() * 120 + 48,
        Word::Have(haves) => haves.iter().map(|(_, ids)| 40 + ids.len() * ID_BYTES).sum::<usize>() + 48,
        _ => 128,
    }
}

/// The number of a word.
#[must_use]
pub fn number_of(word: &Word) -> u16 {
    match word {
        Word::View(ViewMessage::Join { .. }) => number::JOIN,
        Word::View(ViewMessage::Walk { .. }) => number::WALK,
        Word::View(ViewMessage::Ask { .. }) => number::ASK,
        Word::View(ViewMessage::Answer { .. }) => number::ANSWER,
        Word::View(ViewMessage::Part { .. }) => number::PART,
        Word::View(ViewMessage::Shuffle { .. }) => number::SHUFFLE,
        Word::View(ViewMessage::Shuffled { .. }) => number::SHUFFLED,
        Word::Beacons(_) => number::BEACONS,
        Word::Push(_) => number::PUSH,
        Word::Have(_) => number::HAVE,
        Word::Want(_) => number::WANT,
        Word::Digest(_) => number::DIGEST,
        Word::Fetch { .. } => number::FETCH,
        Word::Ping(_) => number::PING,
        Word::Pong(_) => number::PONG,
    }
}

fn write(
    cbor: &mut Cbor,
    topic: &TopicId,
    word: &Word,
) -> Result<u16, EncodeError<std::convert::Infallible>> {
    let head = |cbor: &mut Cbor, keys: u64| -> Written {
        cbor.map(keys)?.u64(TOPIC)?.bytes(topic.as_bytes())?;
        Ok(())
    };
    let number = match word {
        Word::View(ViewMessage::Join { me }) => {
            head(cbor, 2)?;
            write_contact(cbor.u64(1)?, me)?;
            number::JOIN
        }
        Word::View(ViewMessage::Walk { who, steps }) => {
            head(cbor, 3)?;
            write_contact(cbor.u64(1)?, who)?;
            cbor.u64(2)?.u8(*steps)?;
            number::WALK
        }
        Word::View(ViewMessage::Ask { me, is_urgent }) => {
            head(cbor, 3)?;
            write_contact(cbor.u64(1)?, me)?;
            cbor.u64(2)?.bool(*is_urgent)?;
            number::ASK
        }
        Word::View(ViewMessage::Answer { is_accepted }) => {
            head(cbor, 2)?;
            cbor.u64(1)?.bool(*is_accepted)?;
            number::ANSWER
        }
        Word::View(ViewMessage::Part { is_leaving, instead }) => {
            head(cbor, 3)?;
            cbor.u64(1)?.bool(*is_leaving)?;
            write_contacts(cbor.u64(2)?, instead)?;
            number::PART
        }
        Word::View(ViewMessage::Shuffle { origin, steps, sample }) => {
            head(cbor, 4)?;
            write_contact(cbor.u64(1)?, origin)?;
            cbor.u64(2)?.u8(*steps)?;
            write_contacts(cbor.u64(3)?, sample)?;
            number::SHUFFLE
        }
        Word::View(ViewMessage::Shuffled { sample }) => {
            head(cbor, 2)?;
            write_contacts(cbor.u64(1)?, sample)?;
            number::SHUFFLED
        }
        Word::Beacons(beacons) => {
            head(cbor, 2)?;
            cbor.u64(1)?.array(beacons.len() as u64)?;
            for Beacon { round, distance, is_parent, proof, .. } in beacons {
                cbor.array(5)?.bytes(proof.key.as_bytes())?.u32(*round)?.u32(*distance)?.bool(*is_parent)?;
                cbor.bytes(proof.signature.as_bytes())?;
            }
            number::BEACONS
        }
        Word::Push(pushed) => {
            write_push(cbor, topic, pushed)?;
            number::PUSH
        }
        Word::Have(haves) => {
            head(cbor, 2)?;
            cbor.u64(1)?.array(haves.len() as u64)?;
            for (tree, ids) in haves {
                cbor.array(2)?.bytes(tree.as_bytes())?.bytes(&joined(ids))?;
            }
            number::HAVE
        }
        Word::Want(ids) => {
            head(cbor, 2)?;
            cbor.u64(1)?.bytes(&joined(ids))?;
            number::WANT
        }
        Word::Digest(summaries) => {
            head(cbor, 2)?;
            cbor.u64(1)?.array(summaries.len() as u64)?;
            for Summary { publisher, since, high } in summaries {
                cbor.array(3)?.bytes(publisher.as_bytes())?.u64(*since)?.u64(*high)?;
            }
            number::DIGEST
        }
        Word::Fetch { publisher, since, seqs } => {
            head(cbor, 4)?;
            cbor.u64(1)?.bytes(publisher.as_bytes())?.u64(2)?.u64(*since)?;
            cbor.u64(3)?.array(seqs.len() as u64)?;
            for seq in seqs {
                cbor.u64(*seq)?;
            }
            number::FETCH
        }
        Word::Ping(nonce) => {
            head(cbor, 2)?;
            cbor.u64(1)?.u32(*nonce)?;
            number::PING
        }
        Word::Pong(nonce) => {
            head(cbor, 2)?;
            cbor.u64(1)?.u32(*nonce)?;
            number::PONG
        }
    };
    Ok(number)
}

fn write_push(cbor: &mut Cbor, topic: &TopicId, pushed: &Pushed) -> Written {
    let Pushed { tree, hops, is_repair, message } = pushed;
    let keys = match message.author() {
        Author::Claimed(_) => 8,
        Author::Signed(..) => 9,
    };
    cbor.map(keys)?.u64(TOPIC)?.bytes(topic.as_bytes())?;
    cbor.u64(1)?.bytes(tree.as_bytes())?.u64(2)?.u8(*hops)?.u64(3)?.bool(*is_repair)?;
    match message.author() {
        Author::Claimed(publisher) => cbor.u64(5)?.bytes(publisher.as_bytes())?,
        Author::Signed(key, signature) => {
            cbor.u64(4)?.bytes(key.as_bytes())?.u64(6)?.bytes(signature.as_bytes())?
        }
    };
    cbor.u64(7)?.u64(message.serial().since)?.u64(8)?.u64(message.serial().seq)?;
    cbor.u64(9)?.bytes(message.payload())?;
    Ok(())
}

/// Reads a word.
///
/// # Errors
/// A [`WireError`].
pub fn decode(number: u16, body: &Bytes) -> Result<(TopicId, Word), WireError> {
    let mut read = Read::default();
    read_only_map(body, |key, cbor| match key {
        TOPIC => {
            read.topic = Some(TopicId::from_bytes(read_array(cbor, "topic")?));
            Ok::<_, WireError>(true)
        }
        _ => read.field(number, key, cbor, body),
    })?;
    let topic = required(read.topic, TOPIC)?;
    Ok((topic, read.finish(number, &topic)?))
}

/// The fields of any word, as far as they have come.
#[derive(Default)]
struct Read {
    topic: Option<TopicId>,
    contact: Option<Contact>,
    contacts: Option<Vec<Contact>>,
    steps: Option<u8>,
    is_true: Option<bool>,
    word: Option<Word>,
    node: Option<NodeId>,
    publisher: Option<NodeId>,
    hops: Option<u8>,
    key: Option<PublicKey>,
    signature: Option<Signature>,
    since: Option<u64>,
    seq: Option<u64>,
    seqs: Option<Vec<u64>>,
    payload: Option<Bytes>,
}

impl Read {
    fn field(
        &mut self,
        word: u16,
        key: u64,
        cbor: &mut Decoder<'_>,
        body: &Bytes,
    ) -> Result<bool, WireError> {
        use number::*;
        match (word, key) {
            (JOIN | WALK | ASK | SHUFFLE, 1) => self.contact = Some(read_contact(cbor)?),
            (WALK | SHUFFLE, 2) => self.steps = Some(within(cbor.u8()?, WALK_MAX, "steps")?),
            (ASK, 2) | (ANSWER | PART, 1) | (PUSH, 3) => self.is_true = Some(cbor.bool()?),
            (PART, 2) | (SHUFFLE, 3) | (SHUFFLED, 1) => {
                self.contacts = Some(read_list(cbor, ("contacts", CONTACTS_MAX), read_contact)?);
            }
            (BEACONS, 1) => {
                let beacons = read_list(cbor, ("beacons", BEACONS_MAX), |cbor| {
                    tuple(cbor, 5)?;
                    let key = PublicKey::from_bytes(read_array(cbor, "key")?);
                    let (round, distance, is_parent) = (cbor.u32()?, cbor.u32()?, cbor.bool()?);
                    let signature = Signature::from_bytes(read_array(cbor, "signature")?);
                    let proof = Proof { key, signature };
                    Ok::<_, WireError>(Beacon { root: key.node_id(), round, distance, is_parent, proof })
                })?;
                self.word = Some(Word::Beacons(beacons));
            }
            (PUSH | FETCH, 1) => self.node = Some(read_node(cbor)?),
            (PUSH, 2) => self.hops = Some(cbor.u8()?),
            (PUSH, 4) => self.key = Some(PublicKey::from_bytes(read_array(cbor, "key")?)),
            (PUSH, 5) => self.publisher = Some(read_node(cbor)?),
            (PUSH, 6) => self.signature = Some(Signature::from_bytes(read_array(cbor, "signature")?)),
            (PUSH, 7) | (FETCH, 2) => self.since = Some(cbor.u64()?),
            (PUSH, 8) => self.seq = Some(read_seq(cbor)?),
            (PUSH, 9) => {
                let payload = read_bytes(cbor, ("payload bytes", PAYLOAD_MAX))?;
                // A part of the body keeps all of it in memory, and what is kept is counted by its payload.
                let is_small = payload.len() + PUSH_OVERHEAD < body.len();
                let copied = is_small.then(|| Bytes::copy_from_slice(payload));
                self.payload = Some(copied.unwrap_or_else(|| body.slice_ref(payload)));
            }
            (HAVE, 1) => {
                let mut left = IDS_MAX;
                let haves = read_list(cbor, ("trees", HAVE_TREES_MAX), |cbor| {
                    tuple(cbor, 2)?;
                    let (tree, ids) = (read_node(cbor)?, read_ids(cbor, left)?);
                    left -= ids.len();
                    Ok::<_, WireError>((tree, ids))
                })?;
                self.word = Some(Word::Have(haves));
            }
            (WANT, 1) => self.word = Some(Word::Want(read_ids(cbor, IDS_MAX)?)),
            (DIGEST, 1) => {
                let summaries = read_list(cbor, ("summaries", SUMMARIES_MAX), |cbor| {
                    tuple(cbor, 3)?;
                    let (publisher, since) = (read_node(cbor)?, cbor.u64()?);
                    Ok::<_, WireError>(Summary { publisher, since, high: read_seq(cbor)? })
                })?;
                self.word = Some(Word::Digest(summaries));
            }
            (FETCH, 3) => self.seqs = Some(read_list(cbor, ("numbers", FETCH_MAX), read_seq)?),
            (PING, 1) => self.word = Some(Word::Ping(cbor.u32()?)),
            (PONG, 1) => self.word = Some(Word::Pong(cbor.u32()?)),
            (JOIN..=PONG, _) => return Ok(false),
            _ => return Err(WireError::UnknownWord { number: word }),
        }
        Ok(true)
    }

    fn finish(self, word: u16, topic: &TopicId) -> Result<Word, WireError> {
        use number::*;
        let (contact, contacts) = (self.contact, self.contacts);
        Ok(match word {
            JOIN => Word::View(ViewMessage::Join { me: required(contact, 1)? }),
            WALK => {
                Word::View(ViewMessage::Walk { who: required(contact, 1)?, steps: required(self.steps, 2)? })
            }
            ASK => Word::View(ViewMessage::Ask {
                me: required(contact, 1)?,
                is_urgent: required(self.is_true, 2)?,
            }),
            ANSWER => Word::View(ViewMessage::Answer { is_accepted: required(self.is_true, 1)? }),
            PART => Word::View(ViewMessage::Part {
                is_leaving: required(self.is_true, 1)?,
                instead: required(contacts, 2)?,
            }),
            SHUFFLE => Word::View(ViewMessage::Shuffle {
                origin: required(contact, 1)?,
                steps: required(self.steps, 2)?,
                sample: required(contacts, 3)?,
            }),
            SHUFFLED => Word::View(ViewMessage::Shuffled { sample: required(contacts, 1)? }),
            PUSH => {
                let author = match (self.key, self.signature, self.publisher) {
                    (Some(key), Some(signature), None) => Author::Signed(key, signature),
                    (None, None, Some(publisher)) => Author::Claimed(publisher),
                    _ => return Err(WireError::OutOfRange { what: "author" }),
                };
                let (since, seq) = (required(self.since, 7)?, required(self.seq, 8)?);
                let message = Message::received(topic, author, since, seq, required(self.payload, 9)?);
                let (tree, hops) = (required(self.node, 1)?, required(self.hops, 2)?);
                Word::Push(Pushed { tree, hops, is_repair: required(self.is_true, 3)?, message })
            }
            FETCH => Word::Fetch {
                publisher: required(self.node, 1)?,
                since: required(self.since, 2)?,
                seqs: required(self.seqs, 3)?,
            },
            BEACONS | HAVE | WANT | DIGEST | PING | PONG => required(self.word, 1)?,
            _ => return Err(WireError::UnknownWord { number: word }),
        })
    }
}

/// A piece of a word as a body.
#[must_use]
pub fn encode_part(bytes: Vec<u8>, number: u16, part: &Part) -> Vec<u8> {
    let mut cbor = Encoder::new(bytes);
    let written = (|| -> Written {
        cbor.map(5)?.u64(0)?.u64(part.word)?.u64(1)?.u32(part.whole)?.u64(2)?.u32(part.offset)?;
        cbor.u64(3)?.bytes(&part.bytes)?.u64(4)?.u16(number)?;
        Ok(())
    })();
    debug_assert!(written.is_ok(), "memory takes all that is written");
    cbor.into_writer()
}

/// Reads a piece, and the number of the word that it is of.
///
/// # Errors
/// A [`WireError`].
pub fn decode_part(body: &Bytes) -> Result<(u16, Part), WireError> {
    let (mut word, mut whole, mut offset, mut bytes, mut number) = (None, None, None, None, None);
    read_only_map(body, |key, cbor| {
        match key {
            0 => word = Some(cbor.u64()?),
            1 => whole = Some(cbor.u32()?),
            2 => offset = Some(cbor.u32()?),
            3 => bytes = Some(body.slice_ref(cbor.bytes()?)),
            4 => number = Some(cbor.u16()?),
            _ => return Ok::<_, WireError>(false),
        }
        Ok(true)
    })?;
    let (whole, offset) = (required(whole, 1)?, required(offset, 2)?);
    let part = Part { word: required(word, 0)?, whole, offset, bytes: required(bytes, 3)? };
    Ok((required(number, 4)?, part))
}

/// What became of words of one topic between two neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shed {
    /// Words for the receiver that were shed before they could be sent.
    pub unsent: u64,
    /// Words of the receiver that came and were refused.
    pub refused: u64,
}

/// So many words of a topic were shed here.
#[must_use]
pub fn encode_shed(bytes: Vec<u8>, topic: &TopicId, shed: Shed) -> Vec<u8> {
    let mut cbor = Encoder::new(bytes);
    let written = (|| -> Written {
        cbor.map(3)?.u64(TOPIC)?.bytes(topic.as_bytes())?;
        cbor.u64(1)?.u64(shed.unsent)?.u64(2)?.u64(shed.refused)?;
        Ok(())
    })();
    debug_assert!(written.is_ok(), "memory takes all that is written");
    cbor.into_writer()
}

/// Reads what [`encode_shed`] writes.
///
/// # Errors
/// A [`WireError`].
pub fn decode_shed(body: &[u8]) -> Result<(TopicId, Shed), WireError> {
    let (mut topic, mut unsent, mut refused) = (None, None, 0);
    read_only_map(body, |key, cbor| {
        match key {
            TOPIC => topic = Some(TopicId::from_bytes(read_array(cbor, "topic")?)),
            1 => unsent = Some(cbor.u64()?),
            2 => refused = cbor.u64()?,
            _ => return Ok::<_, WireError>(false),
        }
        Ok(true)
    })?;
    Ok((required(topic, TOPIC)?, Shed { unsent: required(unsent, 1)?, refused }))
}

fn write_contact(cbor: &mut Cbor, contact: &Contact) -> Written {
    cbor.array(2)?.bytes(contact.id.as_bytes())?;
    write_addrs(cbor, &contact.addrs[..contact.addrs.len().min(ADDRS_MAX)])
}

fn write_contacts(cbor: &mut Cbor, contacts: &[Contact]) -> Written {
    let contacts = &contacts[..contacts.len().min(CONTACTS_MAX)];
    cbor.array(contacts.len() as u64)?;
    contacts.iter().try_for_each(|contact| write_contact(cbor, contact))
}

fn read_contact(cbor: &mut Decoder<'_>) -> Result<Contact, WireError> {
    tuple(cbor, 2)?;
    let (id, addrs) = (read_node(cbor)?, read_addrs(cbor, ADDRS_MAX)?);
    Ok(Contact { id, addrs: Arc::from(addrs) })
}

fn read_node(cbor: &mut Decoder<'_>) -> Result<NodeId, CborFault> {
    read_array(cbor, "node").map(NodeId::from_bytes)
}

fn read_seq(cbor: &mut Decoder<'_>) -> Result<u64, WireError> {
    let seq = cbor.u64()?;
    if (1..=SEQ_MAX).contains(&seq) { Ok(seq) } else { Err(WireError::OutOfRange { what: "number" }) }
}

fn read_ids(cbor: &mut Decoder<'_>, most: usize) -> Result<Vec<MessageId>, WireError> {
    let bytes = read_bytes(cbor, ("names", most * ID_BYTES))?;
    if bytes.len() % ID_BYTES != 0 {
        return Err(WireError::OutOfRange { what: "names" });
    }
    let ids = bytes.chunks_exact(ID_BYTES).map(|id| id.try_into().expect("cut at that length"));
    Ok(ids.map(MessageId::from_bytes).collect())
}

fn joined(ids: &[MessageId]) -> Vec<u8> {
    ids.iter().take(IDS_MAX).flat_map(|id| *id.as_bytes()).collect()
}

fn tuple(cbor: &mut Decoder<'_>, items: u64) -> Result<(), WireError> {
    if cbor.array()? == Some(items) { Ok(()) } else { Err(WireError::Malformed) }
}

fn within(value: u8, max: u8, what: &'static str) -> Result<u8, WireError> {
    if value <= max { Ok(value) } else { Err(WireError::OutOfRange { what }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron_core::net::Identity;

    use super::{
        super::{publishers::Serial, seal::Seal},
        *,
    };

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn contact(number: u8) -> Contact {
        let addrs: Vec<std::net::SocketAddr> =
            vec!["192.0.2.1:4000".parse().unwrap(), "[2001:db8::1]:4000".parse().unwrap()];
        Contact { id: node(number), addrs: addrs.into() }
    }

    fn samples() -> Vec<Word> {
        let topic = TopicId::of("news");
        let identity = Identity::from_seed(&[7; 32]);
        let payload = Bytes::from_static(b"hello");
        let id = MessageId::from_bytes([3; 16]);
        let serial = Serial { publisher: node(1), since: 5, seq: 2 };
        let push = |message| Word::Push(Pushed { tree: node(2), hops: 3, is_repair: false, message });
        vec![
            Word::View(ViewMessage::Join { me: contact(1) }),
            Word::View(ViewMessage::Walk { who: contact(2), steps: 6 }),
            Word::View(ViewMessage::Ask { me: contact(1), is_urgent: true }),
            Word::View(ViewMessage::Answer { is_accepted: false }),
            Word::View(ViewMessage::Part { is_leaving: true, instead: vec![contact(1), contact(2)] }),
            Word::View(ViewMessage::Shuffle { origin: contact(1), steps: 2, sample: vec![contact(3)] }),
            Word::View(ViewMessage::Shuffled { sample: vec![] }),
            Word::Beacons(vec![Beacon {
                root: identity.node_id(),
                round: 7,
                distance: u32::MAX,
                is_parent: true,
                proof: Seal::Signed { identity: identity.clone(), topic }.sign(7, true),
            }]),
            push(Message::unsigned(&topic, serial, payload.clone())),
            push(Message::signed(&topic, &identity, 5, 2, payload)),
            Word::Have(vec![(node(1), vec![id, id]), (node(2), vec![id])]),
            Word::Want(vec![id]),
            Word::Digest(vec![Summary { publisher: node(1), since: 5, high: 9 }]),
            Word::Fetch { publisher: node(1), since: 5, seqs: vec![9, 3] },
            Word::Ping(7),
            Word::Pong(8),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let topic = TopicId::of("news");
        for word in samples() {
            let (number, body) = encode(&topic, &word);
            assert_eq!(decode(number, &body), Ok((topic, word.clone())));
            for end in 0..body.len() {
                assert!(decode(number, &body.slice(..end)).is_err(), "{word:?} cut at {end}");
            }
            let mut longer = body.to_vec();
            longer.push(0);
            assert_eq!(decode(number, &longer.into()), Err(WireError::Malformed));
        }
    }

    #[test]
    fn a_signature_holds_for_its_topic_and_bytes_only() {
        let (topic, identity) = (TopicId::of("news"), Identity::from_seed(&[7; 32]));
        let message = Message::signed(&topic, &identity, 5, 2, Bytes::from_static(b"hello"));
        assert!(message.is_proven());
        let word = Word::Push(Pushed { tree: node(2), hops: 3, is_repair: false, message });
        let (number, body) = encode(&topic, &word);
        let mut other = body.to_vec();
        other[5] ^= 1;
        let mut bytes = body.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        for tampered in [other, bytes] {
            let (_, word) = decode(number, &tampered.into()).unwrap();
            let Word::Push(pushed) = word else { panic!("it was a push") };
            assert!(!pushed.message.is_proven());
        }
    }

    #[test]
    fn limits_hold_before_anything_is_allocated() {
        let topic = TopicId::of("news");
        let many = Word::Digest(vec![Summary { publisher: node(1), since: 5, high: 9 }; SUMMARIES_MAX + 1]);
        let (number, body) = encode(&topic, &many);
        assert_eq!(decode(number, &body), Err(WireError::TooLarge { what: "summaries" }));
        let far = Word::View(ViewMessage::Walk { who: contact(2), steps: WALK_MAX + 1 });
        let (number, body) = encode(&topic, &far);
        assert_eq!(decode(number, &body), Err(WireError::OutOfRange { what: "steps" }));
        let zero = Word::Fetch { publisher: node(1), since: 5, seqs: vec![0] };
        let (number, body) = encode(&topic, &zero);
        assert_eq!(decode(number, &body), Err(WireError::OutOfRange { what: "number" }));
        assert_eq!(decode(99, &body), Err(WireError::UnknownWord { number: 99 }));
    }

    #[test]
    fn pieces_and_sheds_are_read() {
        let part = Part { word: 7, whole: 100, offset: 50, bytes: Bytes::from_static(b"abc") };
        let body = encode_part(Vec::new(), number::PUSH, &part);
        assert_eq!(decode_part(&body.into()), Ok((number::PUSH, part)));
        let (topic, shed) = (TopicId::of("news"), Shed { unsent: 12, refused: 3 });
        assert_eq!(decode_shed(&encode_shed(Vec::new(), &topic, shed)), Ok((topic, shed)));
    }

    /// A small message in a large word would keep all of it in memory, for as long as the message is kept.
    #[test]
    fn what_is_around_a_payload_is_not_kept_with_it() {
        let topic = TopicId::of("news");
        let mut cbor = Encoder::new(Vec::new());
        cbor.map(9).unwrap().u64(TOPIC).unwrap().bytes(topic.as_bytes()).unwrap();
        cbor.u64(1).unwrap().bytes(&[1; 32]).unwrap().u64(2).unwrap().u8(1).unwrap();
        cbor.u64(3).unwrap().bool(false).unwrap().u64(5).unwrap().bytes(&[2; 32]).unwrap();
        cbor.u64(7).unwrap().u64(5).unwrap().u64(8).unwrap().u64(1).unwrap();
        cbor.u64(9).unwrap().bytes(b"small").unwrap().u64(10).unwrap().bytes(&[0; 100_000]).unwrap();
        let body = Bytes::from(cbor.into_writer());
        let (_, Word::Push(pushed)) = decode(number::PUSH, &body).unwrap() else { panic!("not a message") };
        assert_eq!(pushed.message.payload(), "small");
        assert!(!body.as_ptr_range().contains(&pushed.message.payload().as_ptr()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(number in 0_u16..20, flips: Vec<(u16, u8)>, sample in 0_usize..16) {
            let (_, body) = encode(&TopicId::of("news"), &samples()[sample]);
            let mut bytes = body.to_vec();
            for (place, bits) in flips {
                let place = usize::from(place) % bytes.len();
                bytes[place] ^= bits;
            }
            let bytes = Bytes::from(bytes);
            if let Ok((topic, word)) = decode(number, &bytes) {
                let again = encode(&topic, &word);
                prop_assert_eq!(decode(again.0, &again.1), Ok((topic, word)));
            }
            let _ = decode_part(&bytes);
            let _ = decode_shed(&bytes);
        }
    }
}
