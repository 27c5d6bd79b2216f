//! Runs the committed fuzz corpora on the stable toolchain, so that what the fuzzer once found stays found.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

#[path = "../fuzz/bodies/decompress.rs"]
mod decompress;
#[path = "../fuzz/bodies/journal_scan.rs"]
mod journal_scan;
#[path = "../fuzz/bodies/oap_frame.rs"]
mod oap_frame;
#[path = "../fuzz/bodies/oap_streams.rs"]
mod oap_streams;
#[path = "../fuzz/bodies/rpc_envelope.rs"]
mod rpc_envelope;
#[path = "../fuzz/bodies/rpc_session.rs"]
mod rpc_session;

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

    let mut rng = fastrand::Rng::with_seed(0x6a6f_7572);
    for _ in 0..2000 {
        let mut data = vec![0; rng.usize(lengths.clone())];
        rng.fill(&mut data);
        body(&data);
    }
}

#[test]
fn journal_scan() {
    replay("journal_scan", 10..40, journal_scan::journal_scan);
}

#[test]
fn oap_frame() {
    replay("oap_frame", 1..200, oap_frame::oap_frame);
}

#[test]
fn oap_streams() {
    replay("oap_streams", 1..400, oap_streams::oap_streams);
}

#[test]
fn decompress() {
    replay("decompress", 4..200, decompress::decompress);
}

#[test]
fn rpc_envelope() {
    replay("rpc_envelope", 1..300, rpc_envelope::rpc_envelope);
}

/// What a peer says costs memory by what was agreed with it: a handful of frames, chunks and answers, not what it claims.
#[test]
fn rpc_session() {
    replay("rpc_session", 1..400, |data| {
        let used = allocation_counter::measure(|| rpc_session::rpc_session(data));
        assert!(used.bytes_max < 4 << 20, "{} bytes at once for {} bytes", used.bytes_max, data.len());
    });
}
