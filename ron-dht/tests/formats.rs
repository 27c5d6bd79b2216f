//! The samples in `docs/formats.md` are what is written.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::time::Duration;

use ron_core::net::Identity;
use ron_dht::{Key, ProviderRecord, Value, network::Request};

/// The bytes of the block under this heading.
fn sample(heading: &str) -> Vec<u8> {
    let text = include_str!("../../docs/formats.md");
    let (_, text) = text.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}"));
    let (_, text) = text.split_once("```hex\n").unwrap();
    let (block, _) = text.split_once("```").unwrap();
    let digits: String = block
        .lines()
        .map(|line| line.split('#').next().unwrap())
        .flat_map(|line| line.split_whitespace())
        .collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn check(heading: &str, bytes: &[u8]) {
    let shown: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
    assert!(sample(heading) == bytes, "{heading} is\n{shown}");
}

#[test]
fn the_samples_are_what_is_written() {
    let (identity, hour) = (Identity::from_seed(&[1; 32]), Duration::from_secs(3600));
    let addrs = ["10.0.0.1:4710".parse().unwrap(), "[2001:db8::1]:4710".parse().unwrap()];
    let record = ProviderRecord::sign(&identity, Key::from_bytes([5; 32]), &addrs, 7, 1_800_000_000, hour);
    check("#### A provider record", record.encoded());
    assert!(ProviderRecord::decode(&sample("#### A provider record")).unwrap().verify().is_ok());

    let value = Value::mutable(&identity, b"name", 2, b"hello", hour).unwrap();
    check("#### A value that may change", value.encoded());
    check("#### A value under its hash", Value::immutable(b"hello", hour).unwrap().encoded());
    let ask = Request::FindValue {
        key: Key::from_bytes([5; 32]),
        want: ron_dht::network::Want::Providers,
        limit: 20,
    };
    check("#### FIND_VALUE", &ask.encode().1);
}
