//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/claims.rs"]
mod claims;
#[path = "../fuzz/bodies/ids.rs"]
mod ids;
#[path = "../fuzz/bodies/messages.rs"]
mod messages;
#[path = "../fuzz/bodies/proof.rs"]
mod proof;
#[path = "../fuzz/bodies/range.rs"]
mod range;
#[path = "../fuzz/bodies/records.rs"]
mod records;

/// Runs every file of a corpus, and then so many times arbitrary bytes of the given lengths.
fn replay(target: &str, times: usize, lengths: std::ops::Range<usize>, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body(&std::fs::read(&path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "only {inputs} inputs");

    let mut rng = fastrand::Rng::with_seed(0x6f62_6a21);
    for _ in 0..times {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn claims() {
    replay("claims", 2000, 1..400, claims::claims);
}

#[test]
fn ids() {
    replay("ids", 2000, 1..80, ids::ids);
}

#[test]
fn messages() {
    replay("messages", 2000, 1..120, messages::messages);
}

#[test]
fn proof() {
    replay("proof", 100, 3..40, proof::proof);
}

#[test]
fn range() {
    replay("range", 2000, 8..60, range::range);
}

#[test]
fn records() {
    replay("records", 100, 2..400, records::records);
}
