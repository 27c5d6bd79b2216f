//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/decompress.rs"]
mod decompress;
#[path = "../fuzz/bodies/journal_scan.rs"]
mod journal_scan;

/// Runs `body` on each input of the corpus `name`.
fn replay(name: &str, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body(&std::fs::read(&path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "only {inputs} inputs");
}

/// Runs `body` on random inputs of the given lengths.
fn scatter(seed: u64, count: usize, lengths: std::ops::Range<usize>, body: fn(&[u8])) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..count {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn the_corpus_of_journal_scan_passes() {
    replay("journal_scan", journal_scan::journal_scan);
}

#[test]
fn the_corpus_of_decompress_passes() {
    replay("decompress", decompress::decompress);
}

#[test]
fn arbitrary_edits_of_a_journal_pass() {
    scatter(0x6a6f_7572, 2000, 10..40, journal_scan::journal_scan);
}

#[test]
fn arbitrary_edits_of_a_compressed_body_pass() {
    scatter(0x677a_6970, 5000, 4..200, decompress::decompress);
}
