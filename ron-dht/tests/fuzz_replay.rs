//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/messages.rs"]
mod messages;
#[path = "../fuzz/bodies/records.rs"]
mod records;

/// Runs every file of a corpus, and then arbitrary bytes of the given lengths.
fn replay(target: &str, lengths: std::ops::Range<usize>, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body(&std::fs::read(&path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "only {inputs} inputs");

    let mut rng = fastrand::Rng::with_seed(0x6468_7421);
    for _ in 0..2000 {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn messages() {
    replay("messages", 1..200, messages::messages);
}

#[test]
fn records() {
    replay("records", 1..40, records::records);
}
