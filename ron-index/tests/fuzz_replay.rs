//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/b3_path.rs"]
mod b3_path;
#[path = "../fuzz/bodies/dto_json.rs"]
mod dto_json;

/// Runs every file of a corpus, then each with bytes changed, and then arbitrary bytes of the given lengths.
fn replay(target: &str, times: usize, lengths: std::ops::Range<usize>, body: fn(&[u8])) {
    let dir = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut rng = fastrand::Rng::with_seed(0x696e_6478);
    let mut inputs = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let data = std::fs::read(&path).unwrap();
        body(&data);
        for _ in 0..times / 20 {
            let mut changed = data.clone();
            if let Some(byte) = rng.choice(changed.iter_mut()) {
                *byte = rng.u8(..);
            }
            body(&changed);
        }
        inputs += 1;
    }
    assert!(inputs >= 8, "only {inputs} inputs");
    for _ in 0..times {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn b3_path() {
    replay("b3_path", 2000, 1..80, b3_path::b3_path);
}

#[test]
fn dto_json() {
    replay("dto_json", 1000, 1..80, dto_json::dto_json);
}
