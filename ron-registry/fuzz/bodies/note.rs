//! What the fuzzer and the replay of its corpus both run.

use ron_registry::{
    Checkpoint, KeyKind, LogTrust, Note, NoteSigner, NoteVerifier, add_cosignatures, logic::merkle::TreeHash,
};

const ORIGIN: &str = "example.com/registry";

/// The first byte says what the rest is read as: a note, the answer of a witness, a key. What can be read is written again
/// with the same bytes; what nobody signed is not believed; and a witness adds signatures and nothing else.
pub(crate) fn note(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let log = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &[42; 32]).expect("it is a name");
    let witness =
        NoteSigner::from_seed("witness.example/w", KeyKind::Cosignature, &[43; 32]).expect("likewise");
    let trust = LogTrust::new(log.verifier().clone()).witnessed_by([witness.verifier().clone()], 1);
    match kind {
        0 => {
            let Ok(note) = Note::parse(rest) else { return };
            assert_eq!(note.to_string().as_bytes(), rest);
            let said = Checkpoint::parse(note.text());
            if let Ok(checkpoint) = &said {
                assert_eq!(Checkpoint::parse(&checkpoint.text()).as_ref(), Ok(checkpoint));
            }
            let alone = LogTrust::new(log.verifier().clone());
            match (alone.open(&note), trust.open(&note)) {
                (Ok(by_log), by_both) => {
                    assert_eq!(Ok(&by_log), said.as_ref());
                    assert!(by_both.is_err() || by_both == Ok(by_log));
                }
                (Err(_), by_both) => assert!(by_both.is_err(), "a witness is not the log"),
            }
        }
        1 => {
            let Ok(answer) = std::str::from_utf8(rest) else { return };
            let checkpoint = Checkpoint { origin: ORIGIN.into(), size: 7, root: TreeHash::of_leaf(b"root") };
            let signed = checkpoint.sign(&log).expect("its own log");
            let mut note = signed.clone();
            match add_cosignatures(&mut note, answer, &trust) {
                Ok(added) => {
                    assert_eq!(note.text(), signed.text());
                    assert_eq!(note.signatures().len(), signed.signatures().len() + added);
                    assert_eq!(trust.open(&note).is_ok(), added == 1);
                }
                Err(_) => assert!(trust.open(&note).is_err()),
            }
        }
        _ => {
            let text = std::str::from_utf8(rest).unwrap_or_default();
            if let Ok(verifier) = text.parse::<NoteVerifier>() {
                assert_eq!(verifier.to_string(), text);
                let again = NoteVerifier::new(verifier.name(), verifier.kind(), verifier.key());
                assert_eq!(again.map(|again| again.id()), Ok(verifier.id()));
            }
        }
    }
}
