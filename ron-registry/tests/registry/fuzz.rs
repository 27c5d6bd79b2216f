//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#[path = "../../fuzz/bodies/approvals.rs"]
mod approvals;
#[path = "../../fuzz/bodies/entry.rs"]
mod entry;
#[path = "../../fuzz/bodies/log_proof.rs"]
mod log_proof;
#[path = "../../fuzz/bodies/note.rs"]
mod note;
#[path = "../../fuzz/bodies/requests.rs"]
mod requests;
#[path = "../../fuzz/bodies/streams.rs"]
mod streams;

/// Runs every file of a corpus, then each with some bytes changed, and then arbitrary bytes of the given lengths.
fn replay(target: &str, lengths: std::ops::Range<usize>, changes: usize, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut rng = fastrand::Rng::with_seed(0x7265_6769);
    let mut inputs: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 5, "only {} inputs", inputs.len());
    for path in inputs {
        println!("{}", path.display());
        let input = std::fs::read(&path).unwrap();
        body(&input);
        for _ in 0..changes {
            let mut changed = input.clone();
            for _ in 0..rng.usize(1..4) {
                let place = rng.usize(..changed.len());
                changed[place] = rng.u8(..);
            }
            body(&changed);
        }
    }
    for _ in 0..changes * 4 {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn entry() {
    replay("entry", 1..400, 100, entry::entry);
}

#[test]
fn note() {
    replay("note", 1..400, 100, note::note);
}

#[test]
fn approvals() {
    replay("approvals", 3..200, 20, approvals::approvals);
}

#[test]
fn log_proof() {
    replay("log_proof", 9..60, 100, log_proof::log_proof);
}

/// A registry for each, so fewer of them.
#[test]
fn requests() {
    replay("requests", 4..200, 8, requests::requests);
}

#[test]
fn streams() {
    replay("streams", 2..60, 4, streams::streams);
}
