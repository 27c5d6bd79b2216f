//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/journal_scan.rs"]
mod body;

#[test]
fn the_corpus_of_journal_scan_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/journal_scan");
    let mut inputs = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body::journal_scan(&std::fs::read(&path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "only {inputs} inputs");
}

#[test]
fn arbitrary_edits_pass() {
    let mut rng = fastrand::Rng::with_seed(0x6a6f_7572);
    for _ in 0..2000 {
        let mut data = vec![0; rng.usize(10..40)];
        rng.fill(&mut data);
        body::journal_scan(&data);
    }
}
