//! What a log says of itself: a checkpoint, and the file that proves one entry with it.
//!
//! A checkpoint is a signed note of three lines: the log, its size, the root of its tree. It has no lines of ours behind
//! those, because witnesses do not look at them. A proof file holds an index, a path and a checkpoint, so that years
//! later somebody without a network can still check an entry.

use std::fmt;

use data_encoding::BASE64;

use super::{
    merkle::{PROOF_HASHES_MAX, ProofError, TreeHash, verify_inclusion},
    note::{KeyKind, Note, NoteError, NoteSigner, NoteVerifier, from_base64, is_key_name},
};

const PROOF_HEADER: &str = "c2sp.org/tlog-proof@v1\n";

/// Bytes of the longest extra data that is read from a proof file.
const EXTRA_BYTES_MAX: usize = 64 << 10;

/// Why a checkpoint, or a proof file, was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Not a signed note, or not signed by those who should have.
    #[error("not a note that can be trusted")]
    Note(#[from] NoteError),
    /// The text of the note is not that of a checkpoint, or the file is not a proof.
    #[error("malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
    /// It is about another log. Whoever asked has the wrong log, or was given the wrong name.
    #[error("a checkpoint of {found}, and the log is {expected}")]
    OtherLog {
        /// The log that is believed.
        expected: String,
        /// The log it says it is about.
        found: String,
    },
    /// It says that it is about this log, and the log's key has not signed it. Whoever asked was given the wrong key, or the
    /// checkpoint is forged.
    #[error("signed with {found}, and the key of the log is {expected}")]
    OtherKey {
        /// The key that is believed, as `name+id`.
        expected: String,
        /// Those that signed, in the same form.
        found: String,
    },
    /// Fewer witnesses than asked for have signed it.
    #[error("{found} of {needed} witnesses")]
    TooFewWitnesses {
        /// Known witnesses that have.
        found: usize,
        /// How many it takes.
        needed: usize,
    },
    /// The path does not lead from the entry to the root.
    #[error("not in the log")]
    Proof(#[from] ProofError),
}

/// What a log says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log.
    pub origin: String,
    /// How many entries it has.
    pub size: u64,
    /// The root of the tree over them.
    pub root: TreeHash,
}

impl Checkpoint {
    /// The lines that are signed.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, self.root)
    }

    /// Signs it with the key of the log.
    ///
    /// # Errors
    /// [`NoteError::Malformed`] if the origin has control characters in it.
    pub fn sign(&self, log: &NoteSigner) -> Result<Note, NoteError> {
        let mut note = Note::new(self.text())?;
        note.add(log.sign(note.text(), 0))?;
        Ok(note)
    }

    /// Reads the lines that are signed. Lines behind the third are allowed and mean nothing to us.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let bad = |what| CheckpointError::Malformed { what };
        let text = text.strip_suffix('\n').ok_or(bad("no newline at the end"))?;
        let mut lines = text.split('\n');
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next()) else {
            return Err(bad("fewer than three lines"));
        };
        if origin.is_empty() || lines.any(str::is_empty) {
            return Err(bad("an empty line"));
        }
        let size = parse_decimal(size).ok_or(bad("a size that is no plain number"))?;
        let root = TreeHash::from_base64(root).ok_or(bad("a root that is no hash"))?;
        Ok(Checkpoint { origin: origin.to_owned(), size, root })
    }
}

/// Whose signatures are believed about a log: its own key, and a number of witnesses.
#[derive(Debug, Clone)]
pub struct LogTrust {
    /// First the log, then the witnesses.
    verifiers: Vec<NoteVerifier>,
    witnesses_needed: usize,
}

impl LogTrust {
    /// Trusts what `log` has signed. The log is called as its key is.
    #[must_use]
    pub fn new(log: NoteVerifier) -> Self {
        LogTrust { verifiers: vec![log], witnesses_needed: 0 }
    }

    /// Also wants the signatures of `needed` of these witnesses. A key that is given twice counts once.
    #[must_use]
    pub fn witnessed_by(mut self, witnesses: impl IntoIterator<Item = NoteVerifier>, needed: usize) -> Self {
        for witness in witnesses.into_iter().filter(|witness| witness.kind() == KeyKind::Cosignature) {
            if self.verifiers[1..].iter().all(|known| known.key() != witness.key()) {
                self.verifiers.push(witness);
            }
        }
        self.witnesses_needed = needed;
        self
    }

    /// The log.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.verifiers[0].name()
    }

    /// The key of the log.
    #[must_use]
    pub fn log(&self) -> &NoteVerifier {
        &self.verifiers[0]
    }

    /// Checks who has signed a note, and reads it.
    ///
    /// # Errors
    /// [`CheckpointError::Note`], [`CheckpointError::Malformed`], [`CheckpointError::OtherLog`],
    /// [`CheckpointError::OtherKey`], [`CheckpointError::TooFewWitnesses`].
    pub fn open(&self, note: &Note) -> Result<Checkpoint, CheckpointError> {
        let signed = match note.verify(&self.verifiers) {
            Err(NoteError::Unsigned) => Vec::new(),
            signed => signed?,
        };
        if signed.iter().all(|by| by.verifier != 0) {
            return Err(self.stranger(note));
        }
        let (found, needed) = (signed.len() - 1, self.witnesses_needed);
        if found < needed {
            return Err(CheckpointError::TooFewWitnesses { found, needed });
        }
        let checkpoint = Checkpoint::parse(note.text())?;
        if checkpoint.origin != self.origin() {
            return Err(self.other_log(checkpoint.origin));
        }
        Ok(checkpoint)
    }

    /// What is wrong with a note that the log has not signed: the log or the key, by what the note says of itself. Nobody
    /// vouches for that, so it is good for nothing but these words.
    fn stranger(&self, note: &Note) -> CheckpointError {
        match Checkpoint::parse(note.text()) {
            Err(error) => error,
            Ok(said) if said.origin != self.origin() => self.other_log(said.origin),
            Ok(_) => {
                let key = |name: &str, id: u32| format!("{name}+{id:08x}");
                let by = note.signatures().iter().map(|signature| key(signature.name(), signature.id()));
                let by: Vec<String> = by.collect();
                let found = if by.is_empty() { "nothing".to_owned() } else { by.join(", ") };
                CheckpointError::OtherKey { expected: key(self.origin(), self.log().id()), found }
            }
        }
    }

    fn other_log(&self, found: String) -> CheckpointError {
        CheckpointError::OtherLog { expected: self.origin().to_owned(), found }
    }
}

/// A proof that one entry is in a log, whole: C2SP `tlog-proof`. Shown as it is kept in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofFile {
    /// Which entry, counted from zero.
    pub index: u64,
    /// From the sibling of the entry up to below the root.
    pub path: Vec<TreeHash>,
    /// The checkpoint, with everybody who signed it.
    pub checkpoint: Note,
    /// Data of the application. The proof does not cover it.
    pub extra: Option<Vec<u8>>,
}

impl ProofFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`], [`CheckpointError::Note`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let bad = |what| CheckpointError::Malformed { what };
        let text = std::str::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
        let mut rest = text.strip_prefix(PROOF_HEADER).ok_or(bad("not a proof file"))?;
        let mut line = || {
            let (line, after) = rest.split_once('\n').ok_or(bad("it ends too early"))?;
            rest = after;
            Ok::<_, CheckpointError>(line)
        };
        let mut next = line()?;
        let mut extra = None;
        if let Some(base64) = next.strip_prefix("extra ") {
            if base64.len() > EXTRA_BYTES_MAX / 3 * 4 {
                return Err(bad("too much extra data"));
            }
            extra = Some(from_base64(base64).ok_or(bad("extra data that is not base64"))?);
            next = line()?;
        }
        let index = next.strip_prefix("index ").and_then(parse_decimal).ok_or(bad("no index"))?;
        let mut path = Vec::new();
        loop {
            match line()? {
                "" => break,
                _ if path.len() == PROOF_HASHES_MAX => return Err(bad("too long a path")),
                hash => path.push(TreeHash::from_base64(hash).ok_or(bad("a path that is not of hashes"))?),
            }
        }
        let checkpoint = Note::parse(rest.as_bytes())?;
        Ok(ProofFile { index, path, checkpoint, extra })
    }

    /// Checks that `entry` is in the log, and gives the checkpoint that proves it.
    ///
    /// # Errors
    /// As [`LogTrust::open`], and [`CheckpointError::Proof`].
    pub fn verify(&self, entry: &[u8], trust: &LogTrust) -> Result<Checkpoint, CheckpointError> {
        let checkpoint = trust.open(&self.checkpoint)?;
        let leaf = TreeHash::of_leaf(entry);
        verify_inclusion(&leaf, self.index, &self.path, checkpoint.size, &checkpoint.root)?;
        Ok(checkpoint)
    }
}

impl fmt::Display for ProofFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PROOF_HEADER)?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", BASE64.encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        self.path.iter().try_for_each(|hash| writeln!(f, "{hash}"))?;
        write!(f, "\n{}", self.checkpoint)
    }
}

/// What a witness is sent: the size it has seen, that the log has only grown since, and the checkpoint to cosign
/// (C2SP `tlog-witness`, `add-checkpoint`).
#[must_use]
pub fn witness_request(seen: u64, consistency: &[TreeHash], checkpoint: &Note) -> String {
    let mut request = format!("old {seen}\n");
    for hash in consistency {
        request.push_str(&hash.to_string());
        request.push('\n');
    }
    format!("{request}\n{checkpoint}")
}

/// Adds what a witness answered, one cosignature a line, to the checkpoint it was sent. Those by keys that `trust` does
/// not know are left out; says how many were added.
///
/// # Errors
/// [`CheckpointError::Note`] if a line is no signature, or one by a known witness does not hold,
/// [`CheckpointError::Malformed`] if there is something else in the answer.
pub fn add_cosignatures(
    checkpoint: &mut Note,
    answer: &str,
    trust: &LogTrust,
) -> Result<usize, CheckpointError> {
    let answered = Note::parse(format!("{}\n{answer}", checkpoint.text()).as_bytes())?;
    // An answer with an empty line in it would make itself a part of the text.
    if answered.text() != checkpoint.text() {
        return Err(CheckpointError::Malformed { what: "an answer of more than signatures" });
    }
    let known = match answered.verify(&trust.verifiers[1..]) {
        Ok(signed) => signed,
        Err(NoteError::Unsigned) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let before = checkpoint.signatures().len();
    for by in known {
        let witness = &trust.verifiers[1 + by.verifier];
        let its = answered
            .signatures()
            .iter()
            .find(|line| (line.id(), line.name()) == (witness.id(), witness.name()));
        checkpoint.add(its.expect("it was verified").clone())?;
    }
    Ok(checkpoint.signatures().len() - before)
}

/// Whether a log may be called this: it is the name of its key, too.
#[must_use]
pub fn is_origin(origin: &str) -> bool {
    // What identities sign begins like that, and a checkpoint must never be mistaken for it.
    is_key_name(origin) && !origin.starts_with("ron/sign/")
}

/// A number without signs, spaces or leading zeros.
fn parse_decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::tiles::{Prover, Tree};

    const ORIGIN: &str = "example.com/registry";

    fn log() -> NoteSigner {
        NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &[1; 32]).unwrap()
    }

    fn witness(seed: u8) -> NoteSigner {
        NoteSigner::from_seed(&format!("w.example/{seed}"), KeyKind::Cosignature, &[seed; 32]).unwrap()
    }

    fn trust(needed: usize) -> LogTrust {
        let witnesses = [10, 11, 12].map(|seed| witness(seed).verifier().clone());
        LogTrust::new(log().verifier().clone()).witnessed_by(witnesses, needed)
    }

    fn proof() -> (ProofFile, &'static [u8]) {
        let mut tree = Tree::new();
        for entry in 0..7 {
            tree.push(TreeHash::of_leaf(&[entry]));
        }
        let checkpoint =
            Checkpoint { origin: ORIGIN.into(), size: 7, root: tree.root() }.sign(&log()).unwrap();
        let path = Prover::new(&tree, 7).inclusion(4).unwrap();
        (ProofFile { index: 4, path, checkpoint, extra: None }, &[4])
    }

    #[test]
    fn a_checkpoint_has_one_spelling() {
        let root = TreeHash::of_leaf(b"");
        let text = format!("{ORIGIN}\n7\n{root}\n");
        let checkpoint = Checkpoint::parse(&text).unwrap();
        assert_eq!(checkpoint, Checkpoint { origin: ORIGIN.into(), size: 7, root });
        assert_eq!(checkpoint.text(), text);
        assert_eq!(Checkpoint::parse(&format!("{text}more\n")).unwrap(), checkpoint);
        let check = |text: &str, what| {
            assert_eq!(Checkpoint::parse(text), Err(CheckpointError::Malformed { what }), "{text:?}");
        };
        check(&text[..text.len() - 1], "no newline at the end");
        check("a\n7\n", "fewer than three lines");
        check(&format!("\n7\n{root}\n"), "an empty line");
        check(&format!("{text}\n"), "an empty line");
        for size in ["07", "+7", "-7", "7 ", "", "18446744073709551616", "0x7"] {
            check(&format!("a\n{size}\n{root}\n"), "a size that is no plain number");
        }
        check("a\n7\nAAAA\n", "a root that is no hash");
    }

    #[test]
    fn a_proof_file_survives_its_text() {
        let (mut file, entry) = proof();
        for extra in [None, Some(b"anything".to_vec())] {
            file.extra = extra;
            let again = ProofFile::parse(file.to_string().as_bytes()).unwrap();
            assert_eq!(again, file);
            assert_eq!(again.verify(entry, &trust(0)).unwrap().size, 7);
        }
        assert_eq!(file.verify(&[5], &trust(0)), Err(CheckpointError::Proof(ProofError::WrongRoot)));
        file.index = 5;
        assert!(matches!(file.verify(entry, &trust(0)), Err(CheckpointError::Proof(_))));
    }

    #[test]
    fn a_proof_needs_the_log_and_enough_witnesses() {
        let (mut file, entry) = proof();
        assert_eq!(
            file.verify(entry, &trust(2)),
            Err(CheckpointError::TooFewWitnesses { found: 0, needed: 2 })
        );
        let text = file.checkpoint.text().to_owned();
        let answer = |seed| format!("{}\n", witness(seed).sign(&text, 1_700_000_000));
        assert_eq!(add_cosignatures(&mut file.checkpoint, &answer(10), &trust(2)), Ok(1));
        assert_eq!(add_cosignatures(&mut file.checkpoint, &answer(10), &trust(2)), Ok(0), "the same again");
        assert_eq!(add_cosignatures(&mut file.checkpoint, &answer(99), &trust(2)), Ok(0), "a stranger");
        assert!(file.verify(entry, &trust(2)).is_err());
        assert!(add_cosignatures(&mut file.checkpoint, "nonsense", &trust(2)).is_err());
        // A witness that has signed another text, and says so in an answer that makes it one.
        let longer = format!("{text}\nmore\n");
        let answer_of_more = format!("more\n\n{}\n", witness(12).sign(&longer, 1));
        assert_eq!(
            add_cosignatures(&mut file.checkpoint, &answer_of_more, &trust(2)),
            Err(CheckpointError::Malformed { what: "an answer of more than signatures" })
        );
        let both = format!("{}{}", answer(11), answer(12));
        assert_eq!(add_cosignatures(&mut file.checkpoint, &both, &trust(2)), Ok(2));
        assert!(file.verify(entry, &trust(3)).is_ok());
        let forged = witness(11).sign("another text\n", 0);
        assert!(matches!(
            add_cosignatures(&mut file.checkpoint, &format!("{forged}\n"), &trust(2)),
            Err(CheckpointError::Note(NoteError::BadSignature { .. }))
        ));
        // Witnesses alone are not the log.
        let mut unsigned = Note::new(text.clone()).unwrap();
        for seed in [10, 11, 12] {
            unsigned.add(witness(seed).sign(&text, 1)).unwrap();
        }
        assert!(matches!(trust(2).open(&unsigned), Err(CheckpointError::OtherKey { .. })));
        // One witness under two names is one.
        let twice = NoteSigner::from_seed("w.example/other", KeyKind::Cosignature, &[10; 32]).unwrap();
        let trust = LogTrust::new(log().verifier().clone())
            .witnessed_by([witness(10).verifier().clone(), twice.verifier().clone()], 2);
        let mut note = Checkpoint::parse(&text).unwrap().sign(&log()).unwrap();
        note.add(witness(10).sign(&text, 1)).unwrap();
        note.add(twice.sign(&text, 1)).unwrap();
        assert_eq!(trust.open(&note), Err(CheckpointError::TooFewWitnesses { found: 1, needed: 2 }));
    }

    #[test]
    fn a_checkpoint_of_another_log_is_named() {
        let other = Checkpoint { origin: "example.com/other".into(), size: 1, root: TreeHash::of_leaf(b"") };
        let note = other.sign(&log()).unwrap();
        assert_eq!(
            trust(0).open(&note),
            Err(CheckpointError::OtherLog { expected: ORIGIN.into(), found: "example.com/other".into() })
        );
        assert!(is_origin(ORIGIN) && !is_origin("") && !is_origin("a b") && !is_origin("ron/sign/1x"));
    }

    #[test]
    fn what_is_no_proof_file_is_told_why() {
        let text = proof().0.to_string();
        let check = |text: &str, what| {
            assert_eq!(
                ProofFile::parse(text.as_bytes()),
                Err(CheckpointError::Malformed { what }),
                "{text:?}"
            );
        };
        check("", "not a proof file");
        check(&text[..PROOF_HEADER.len()], "it ends too early");
        check(&text.replace("index 4", "index 04"), "no index");
        check(&text.replace("index 4", "extra ?\nindex 4"), "extra data that is not base64");
        check(&text.replace("index 4\n", "index 4\nAAAA\n"), "a path that is not of hashes");
        let hash = format!("{}\n", TreeHash::of_nothing());
        check(&text.replace("index 4\n", &format!("index 4\n{}", hash.repeat(66))), "too long a path");
        let extra = BASE64.encode(&vec![0; EXTRA_BYTES_MAX + 3]);
        check(&text.replace("index 4\n", &format!("extra {extra}\nindex 4\n")), "too much extra data");
    }

    #[test]
    fn a_witness_is_sent_what_it_checks() {
        let (file, _) = proof();
        let hash = TreeHash::of_nothing();
        let request = witness_request(5, &[hash, hash], &file.checkpoint);
        assert_eq!(request, format!("old 5\n{hash}\n{hash}\n\n{}", file.checkpoint));
    }

    proptest! {
        #[test]
        fn a_proof_file_that_is_read_is_written_the_same(at in 0usize..400, byte: u8, bytes: Vec<u8>) {
            let mut near = proof().0.to_string().into_bytes();
            let at = at % near.len();
            near[at] = byte;
            for bytes in [near, bytes] {
                if let Ok(file) = ProofFile::parse(&bytes) {
                    prop_assert_eq!(file.to_string().into_bytes(), bytes.clone());
                }
                let _ = Checkpoint::parse(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
