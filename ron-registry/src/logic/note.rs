//! Signed notes as C2SP specifies them: a text, an empty line, and lines of signatures by named keys.
//!
//! The text of a note means nothing until somebody known has signed it, so [`Note::verify`] is the only way to it that
//! says by whom. Signatures by keys that the verifier does not know are ignored, as the specification wants; one by a
//! known key that does not hold spoils the whole note.
//!
//! What these keys sign has no prefix of ours, because everybody's tooling verifies it. So a key that signs notes signs
//! nothing else, and is not a node's identity.

use std::{fmt, str::FromStr};

use data_encoding::{BASE64, HEXLOWER};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

/// Bytes of the longest note that is read: sixteen post-quantum signatures fit, as the specification asks.
pub const NOTE_BYTES_MAX: usize = 128 << 10;

/// Most signatures of one note. The specification asks for sixteen at least.
pub const SIGNATURES_MAX: usize = 64;

const SIGNATURE_LINE: &str = "\u{2014} ";

/// What a key signs, which is part of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The text of the note as it is: how a log signs.
    Ed25519,
    /// The text and a time: how a witness says that it has seen no other log of that name.
    Cosignature,
}

impl KeyKind {
    fn byte(self) -> u8 {
        match self {
            KeyKind::Ed25519 => 0x01,
            KeyKind::Cosignature => 0x04,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [KeyKind::Ed25519, KeyKind::Cosignature].into_iter().find(|kind| kind.byte() == byte)
    }

    /// What is signed for a text, and at a time if this kind has one.
    fn message(self, text: &str, time: u64) -> Vec<u8> {
        match self {
            KeyKind::Ed25519 => text.as_bytes().to_vec(),
            KeyKind::Cosignature => format!("cosignature/v1\ntime {time}\n{text}").into_bytes(),
        }
    }
}

/// Why a note, or a key, was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// Longer than any note may be, or with more signatures.
    #[error("more than {limit} {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Not the form of a signed note.
    #[error("not a signed note: {what}")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The name of a key is empty, or has a space, a plus or a control character in it.
    #[error("not the name of a key")]
    BadName,
    /// Not a key as it is written for others: `name+id+key`.
    #[error("not a verifier key: {what}")]
    BadKey {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A known key has not signed this text, and the note says that it has.
    #[error("the signature of {name} does not hold")]
    BadSignature {
        /// Whose signature.
        name: String,
    },
    /// Nobody known has signed it.
    #[error("not signed by a known key")]
    Unsigned,
}

/// Whether a key may be called this.
#[must_use]
pub fn is_key_name(name: &str) -> bool {
    let is_bad = |char: char| char.is_whitespace() || char.is_control() || char == '+';
    !name.is_empty() && name.len() <= 255 && !name.contains(is_bad)
}

/// The public half of a key that signs notes. Its text is `name+id+key`, as other tools read and write it.
#[derive(Clone, PartialEq, Eq)]
pub struct NoteVerifier {
    name: String,
    kind: KeyKind,
    key: VerifyingKey,
    id: u32,
}

impl NoteVerifier {
    /// The key with these bytes under this name.
    ///
    /// # Errors
    /// [`NoteError::BadName`], [`NoteError::BadKey`].
    pub fn new(name: &str, kind: KeyKind, key: &[u8; 32]) -> Result<Self, NoteError> {
        if !is_key_name(name) {
            return Err(NoteError::BadName);
        }
        let parsed = VerifyingKey::from_bytes(key).ok().filter(|key| !key.is_weak());
        let key = parsed.ok_or(NoteError::BadKey { what: "no point of the curve that can be trusted" })?;
        let hash = Sha256::new()
            .chain_update(name)
            .chain_update([b'\n', kind.byte()])
            .chain_update(key.as_bytes())
            .finalize();
        let id = u32::from_be_bytes(*hash.first_chunk().expect("a hash has more than four bytes"));
        Ok(NoteVerifier { name: name.to_owned(), kind, key, id })
    }

    /// What the key is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it signs.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The short number that its signatures carry.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its bytes.
    #[must_use]
    pub fn key(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Checks a signature for this text, and gives the time at which it was made, if its kind says.
    fn verify(&self, text: &str, signature: &[u8]) -> Option<Option<u64>> {
        let (time, signature) = match self.kind {
            KeyKind::Ed25519 => (None, signature),
            KeyKind::Cosignature => {
                let (time, signature) = signature.split_first_chunk()?;
                (Some(u64::from_be_bytes(*time)).filter(|time| *time <= i64::MAX as u64), signature)
            }
        };
        if self.kind == KeyKind::Cosignature && time.is_none() {
            return None;
        }
        let message = self.kind.message(text, time.unwrap_or(0));
        let signature = Signature::from_slice(signature).ok()?;
        self.key.verify_strict(&message, &signature).ok().map(|()| time)
    }
}

impl fmt::Display for NoteVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![self.kind.byte()];
        key.extend_from_slice(self.key.as_bytes());
        write!(f, "{}+{:08x}+{}", self.name, self.id, BASE64.encode(&key))
    }
}

impl fmt::Debug for NoteVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoteVerifier({self})")
    }
}

impl FromStr for NoteVerifier {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let bad = |what| NoteError::BadKey { what };
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad("not three parts"));
        };
        let id = HEXLOWER.decode(id.as_bytes()).ok().and_then(|id| id.try_into().ok());
        let id = id.map(u32::from_be_bytes).ok_or(bad("its id is not eight digits"))?;
        let key = from_base64(key).ok_or(bad("its key is not base64"))?;
        let (kind, key) = key.split_first().ok_or(bad("it has no key"))?;
        let kind = KeyKind::from_byte(*kind).ok_or(bad("of a kind that is not known"))?;
        let key = key.try_into().map_err(|_| bad("its key has not 32 bytes"))?;
        let verifier = NoteVerifier::new(name, kind, key)?;
        if verifier.id == id { Ok(verifier) } else { Err(bad("its id is that of another key")) }
    }
}

/// A key that signs notes.
pub struct NoteSigner {
    verifier: NoteVerifier,
    key: SigningKey,
}

impl NoteSigner {
    /// The key of a seed, under this name.
    ///
    /// # Errors
    /// [`NoteError::BadName`].
    pub fn from_seed(name: &str, kind: KeyKind, seed: &[u8; 32]) -> Result<Self, NoteError> {
        let key = SigningKey::from_bytes(seed);
        let verifier = NoteVerifier::new(name, kind, key.verifying_key().as_bytes())?;
        Ok(NoteSigner { verifier, key })
    }

    /// The public half.
    #[must_use]
    pub fn verifier(&self) -> &NoteVerifier {
        &self.verifier
    }

    /// Signs a text. `time` is in seconds of the Unix epoch and part of a cosignature; other kinds have no use for it.
    #[must_use]
    pub fn sign(&self, text: &str, time: u64) -> NoteSignature {
        let kind = self.verifier.kind;
        let mut bytes = match kind {
            KeyKind::Ed25519 => Vec::with_capacity(64),
            KeyKind::Cosignature => time.to_be_bytes().to_vec(),
        };
        bytes.extend_from_slice(&self.key.sign(&kind.message(text, time)).to_bytes());
        NoteSignature { name: self.verifier.name.clone(), id: self.verifier.id, bytes }
    }
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoteSigner({})", self.verifier)
    }
}

/// A line of a note: that somebody signed it, which is to be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteSignature {
    name: String,
    id: u32,
    bytes: Vec<u8>,
}

impl NoteSignature {
    /// Whose it claims to be.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the key.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    fn parse(line: &str) -> Result<Self, NoteError> {
        let bad = |what| NoteError::Malformed { what };
        let rest =
            line.strip_prefix(SIGNATURE_LINE).ok_or(bad("a line without a dash among the signatures"))?;
        let (name, base64) = rest.split_once(' ').ok_or(bad("a signature without a name"))?;
        if !is_key_name(name) {
            return Err(NoteError::BadName);
        }
        let bytes = from_base64(base64).ok_or(bad("a signature that is not base64"))?;
        let (id, bytes) =
            bytes.split_first_chunk().ok_or(bad("a signature without the number of its key"))?;
        if bytes.is_empty() {
            return Err(bad("an empty signature"));
        }
        Ok(NoteSignature { name: name.to_owned(), id: u32::from_be_bytes(*id), bytes: bytes.to_vec() })
    }
}

impl fmt::Display for NoteSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.id.to_be_bytes()[..], &self.bytes].concat();
        write!(f, "{SIGNATURE_LINE}{} {}", self.name, BASE64.encode(&bytes))
    }
}

/// A signature that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBy {
    /// Which of the verifiers that were given.
    pub verifier: usize,
    /// When, in seconds of the Unix epoch, if it is a cosignature.
    pub time: Option<u64>,
}

/// A text and who claims to have signed it. Shown as it is written and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    signatures: Vec<NoteSignature>,
}

impl Note {
    /// A text that nobody has signed yet.
    ///
    /// # Errors
    /// [`NoteError::Malformed`] if it has control characters in it or does not end with a newline.
    pub fn new(text: String) -> Result<Self, NoteError> {
        check_text(&text)?;
        Ok(Note { text, signatures: Vec::new() })
    }

    /// Reads a note. It has one signature at least, and nothing else has been checked about those.
    ///
    /// # Errors
    /// [`NoteError::TooLarge`], [`NoteError::Malformed`], [`NoteError::BadName`].
    pub fn parse(bytes: &[u8]) -> Result<Self, NoteError> {
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(NoteError::TooLarge { what: "bytes", limit: NOTE_BYTES_MAX });
        }
        let bad = |what| NoteError::Malformed { what };
        let note = std::str::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
        let cut = note.rfind("\n\n").ok_or(bad("no empty line"))?;
        let (text, lines) = (&note[..=cut], &note[cut + 2..]);
        check_text(text)?;
        let lines = lines.strip_suffix('\n').ok_or(bad("no newline at the end"))?;
        let mut signatures = Vec::new();
        for line in lines.split('\n') {
            if signatures.len() == SIGNATURES_MAX {
                return Err(NoteError::TooLarge { what: "signatures", limit: SIGNATURES_MAX });
            }
            signatures.push(NoteSignature::parse(line)?);
        }
        Ok(Note { text: text.to_owned(), signatures })
    }

    /// What was signed. Worth nothing before [`verify`](Note::verify).
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Who claims to have signed it.
    #[must_use]
    pub fn signatures(&self) -> &[NoteSignature] {
        &self.signatures
    }

    /// Adds a signature, unless the note has one by the same key already.
    ///
    /// # Errors
    /// [`NoteError::TooLarge`] if it has as many as it may.
    pub fn add(&mut self, signature: NoteSignature) -> Result<(), NoteError> {
        let is_same = |other: &NoteSignature| (other.id, &other.name) == (signature.id, &signature.name);
        if self.signatures.iter().any(is_same) {
            return Ok(());
        }
        if self.signatures.len() == SIGNATURES_MAX {
            return Err(NoteError::TooLarge { what: "signatures", limit: SIGNATURES_MAX });
        }
        self.signatures.push(signature);
        Ok(())
    }

    /// Which of `verifiers` signed it, each once.
    ///
    /// # Errors
    /// [`NoteError::BadSignature`] if one of them did not and the note says so, [`NoteError::Unsigned`] if none did.
    pub fn verify(&self, verifiers: &[NoteVerifier]) -> Result<Vec<SignedBy>, NoteError> {
        let mut signed: Vec<SignedBy> = Vec::new();
        for signature in &self.signatures {
            let is_its = |known: &NoteVerifier| known.id == signature.id && known.name == signature.name;
            let Some(verifier) = verifiers.iter().position(is_its) else { continue };
            let time = verifiers[verifier]
                .verify(&self.text, &signature.bytes)
                .ok_or_else(|| NoteError::BadSignature { name: signature.name.clone() })?;
            if signed.iter().all(|by| by.verifier != verifier) {
                signed.push(SignedBy { verifier, time });
            }
        }
        if signed.is_empty() { Err(NoteError::Unsigned) } else { Ok(signed) }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|signature| writeln!(f, "{signature}"))
    }
}

fn check_text(text: &str) -> Result<(), NoteError> {
    let bad = |what| Err(NoteError::Malformed { what });
    if text.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
        return bad("control characters in the text");
    }
    if text.ends_with('\n') { Ok(()) } else { bad("no newline at the end of the text") }
}

/// Bytes in their one spelling. The decoder alone takes pieces behind each other, each with its own padding.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let bytes = BASE64.decode(text.as_bytes()).ok()?;
    (BASE64.encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_has_one_spelling() {
        assert_eq!(super::from_base64("AAAA"), Some(vec![0; 3]));
        for other in ["AA==AA==", "AB==", "AA", "A==="] {
            assert_eq!(super::from_base64(other), None, "{other}");
        }
    }

    use proptest::prelude::*;

    use super::*;

    fn signer(name: &str, kind: KeyKind, seed: u8) -> NoteSigner {
        NoteSigner::from_seed(name, kind, &[seed; 32]).unwrap()
    }

    fn signed(text: &str, signers: &[&NoteSigner]) -> Note {
        let mut note = Note::new(text.to_owned()).unwrap();
        signers.iter().for_each(|signer| note.add(signer.sign(text, 1_679_315_147)).unwrap());
        note
    }

    /// The example of Go's `sumdb/note`, whose key and signature everybody tests against.
    #[test]
    fn the_known_note() {
        let vkey = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
        let verifier: NoteVerifier = vkey.parse().unwrap();
        assert_eq!(verifier.to_string(), vkey);
        let text = "If you think cryptography is the answer to your problem,\n\
                    then you don't know what your problem is.\n";
        let line = "\u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";
        let note = Note::parse(format!("{text}\n{line}").as_bytes()).unwrap();
        assert_eq!(
            note.verify(std::slice::from_ref(&verifier)),
            Ok(vec![SignedBy { verifier: 0, time: None }])
        );
        let other = Note::parse(format!("{}\n{line}", text.replace("answer", "Answer")).as_bytes()).unwrap();
        assert_eq!(other.verify(&[verifier]), Err(NoteError::BadSignature { name: "PeterNeumann".into() }));
    }

    #[test]
    fn a_note_is_verified_by_those_who_know_its_signers() {
        let (log, witness) =
            (signer("log", KeyKind::Ed25519, 1), signer("w.example/1", KeyKind::Cosignature, 2));
        let note = signed("hello\n\nworld\n", &[&log, &witness]);
        assert_eq!(Note::parse(note.to_string().as_bytes()), Ok(note.clone()));
        assert_eq!(note.text(), "hello\n\nworld\n");
        let (log, witness) = (log.verifier().clone(), witness.verifier().clone());
        let both = note.verify(&[witness.clone(), log.clone()]).unwrap();
        assert_eq!(
            both,
            [SignedBy { verifier: 1, time: None }, SignedBy { verifier: 0, time: Some(1_679_315_147) }]
        );
        // The same key with another purpose or another name is another key.
        let as_log = NoteVerifier::new("w.example/1", KeyKind::Ed25519, witness.key()).unwrap();
        let renamed = NoteVerifier::new("w.example/2", KeyKind::Cosignature, witness.key()).unwrap();
        assert_eq!(note.verify(&[as_log, renamed]), Err(NoteError::Unsigned));
        assert_eq!(note.verify(&[]), Err(NoteError::Unsigned));
    }

    #[test]
    fn a_false_signature_by_a_known_key_spoils_the_note() {
        let (log, witness) = (signer("log", KeyKind::Ed25519, 1), signer("w", KeyKind::Cosignature, 2));
        let mut note = signed("a\n", &[&log]);
        note.signatures.push(witness.sign("b\n", 5));
        let verifiers = [log.verifier().clone(), witness.verifier().clone()];
        assert_eq!(note.verify(&verifiers), Err(NoteError::BadSignature { name: "w".into() }));
        assert!(note.verify(&verifiers[..1]).is_ok(), "who does not know the witness does not mind");
        // A cosignature is for its time, too.
        let mut note = signed("a\n", &[&witness]);
        note.signatures[0].bytes[7] ^= 1;
        assert!(note.verify(&verifiers).is_err());
        note.signatures[0].bytes[0] = 0x80;
        assert!(note.verify(&verifiers).is_err(), "a time beyond what may be");
    }

    #[test]
    fn a_signer_counts_once() {
        let log = signer("log", KeyKind::Ed25519, 1);
        let mut note = signed("a\n", &[&log, &log]);
        assert_eq!(note.signatures().len(), 1);
        note.signatures.push(note.signatures[0].clone());
        assert_eq!(note.verify(&[log.verifier().clone()]).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_note_is_told_why() {
        let line = signer("log", KeyKind::Ed25519, 1).sign("a\n", 0).to_string();
        let check =
            |text: &str, error: NoteError| assert_eq!(Note::parse(text.as_bytes()), Err(error), "{text:?}");
        let bad = |what| NoteError::Malformed { what };
        check("", bad("no empty line"));
        check(&format!("a\n{line}\n"), bad("no empty line"));
        check(&format!("a\n\n{line}"), bad("no newline at the end"));
        check("a\n\n", bad("no newline at the end"));
        check("a\n\n\n", bad("no newline at the end"));
        check(&format!("a\tb\n\n{line}\n"), bad("control characters in the text"));
        check(&format!("a\n\n{line}\n{line}\r\n"), bad("a signature that is not base64"));
        check("a\n\nb\n", bad("a line without a dash among the signatures"));
        check("a\n\n\u{2014} log\n", bad("a signature without a name"));
        check("a\n\n\u{2014} lo+g AAAAAAA=\n", NoteError::BadName);
        check("a\n\n\u{2014} log AAA=\n", bad("a signature without the number of its key"));
        check("a\n\n\u{2014} log AAAAAA==\n", bad("an empty signature"));
        check("a\n\n\u{2014} log AAAAAAB=\n", bad("a signature that is not base64"));
        let many = format!("a\n\n{}", format!("{line}\n").repeat(SIGNATURES_MAX + 1));
        check(&many, NoteError::TooLarge { what: "signatures", limit: SIGNATURES_MAX });
        let long = "a".repeat(NOTE_BYTES_MAX + 1);
        check(&long, NoteError::TooLarge { what: "bytes", limit: NOTE_BYTES_MAX });
        assert_eq!(Note::parse(b"\xff\n\n"), Err(bad("not UTF-8")));
        assert_eq!(Note::new("a".into()), Err(bad("no newline at the end of the text")));
    }

    #[test]
    fn a_key_is_what_its_text_says_or_none() {
        let good = signer("log", KeyKind::Ed25519, 1).verifier().to_string();
        assert!(good.parse::<NoteVerifier>().is_ok());
        let check = |text: &str, what| {
            assert_eq!(text.parse::<NoteVerifier>(), Err(NoteError::BadKey { what }), "{text}");
        };
        check("log", "not three parts");
        check(&good.replace("log", "lag"), "its id is that of another key");
        check("log+xyz+AA==", "its id is not eight digits");
        check("log+00000000+?", "its key is not base64");
        check("log+00000000+", "it has no key");
        check("log+00000000+Bg==", "of a kind that is not known");
        check("log+00000000+AQ==", "its key has not 32 bytes");
        let zeros = [1; 33];
        let weak = format!("log+00000000+{}", BASE64.encode(&[&zeros[..1], &[0; 32]].concat()));
        check(&weak, "no point of the curve that can be trusted");
        assert_eq!(NoteVerifier::new("a b", KeyKind::Ed25519, &[9; 32]), Err(NoteError::BadName));
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_writes_the_same(
            text in "([a-z\\n\u{2014} +=AB]{0,40}\\n\\n)?(\u{2014} [a-z+]{0,4} [A-Za-z0-9+/=]{0,12}\\n){0,3}",
            bytes: Vec<u8>,
        ) {
            for bytes in [text.as_bytes(), &bytes] {
                if let Ok(note) = Note::parse(bytes) {
                    prop_assert_eq!(note.to_string().into_bytes(), bytes);
                }
            }
            let _ = text.parse::<NoteVerifier>();
        }
    }
}
