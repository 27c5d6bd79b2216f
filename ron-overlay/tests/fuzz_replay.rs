//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/gossip.rs"]
mod gossip;
#[path = "../fuzz/bodies/lanes.rs"]
mod lanes;
#[path = "../fuzz/bodies/sessions.rs"]
mod sessions;
#[path = "../fuzz/bodies/words.rs"]
mod words;

/// Runs every file of a corpus, then each with some bytes changed, and then arbitrary bytes of the given lengths.
fn replay(target: &str, lengths: std::ops::Range<usize>, changes: usize, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut rng = fastrand::Rng::with_seed(0x6f76_6572);
    let mut inputs: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "only {} inputs", inputs.len());
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
    for _ in 0..changes * 10 {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn words() {
    replay("words", 1..200, 200, words::words);
}

#[test]
fn lanes() {
    replay("lanes", 3..400, 200, lanes::lanes);
}

#[test]
fn gossip() {
    replay("gossip", 3..400, 200, gossip::gossip);
}

/// A whole node for each, so fewer of them.
#[test]
fn sessions() {
    replay("sessions", 3..400, 8, sessions::sessions);
}
