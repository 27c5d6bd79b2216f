//! The samples in `docs/formats.md` are what is written.

use ron_core::net::Identity;
use ron_registry::logic::{
    entry::Entry,
    policy::{Policy, Signer},
    proposal::{Action, Approval, Content, Proposal},
};

/// The bytes of the block under this heading.
fn sample(heading: &str) -> Vec<u8> {
    let text = include_str!("../../../docs/formats.md");
    let (_, text) = text.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}"));
    let (_, text) = text.split_once("```hex\n").unwrap();
    let (block, _) = text.split_once("```").unwrap();
    let digits: String = block.split_whitespace().collect();
    data_encoding::HEXLOWER.decode(digits.as_bytes()).unwrap_or_default()
}

fn check(heading: &str, bytes: &[u8]) {
    let lines = bytes
        .chunks(32)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
    let shown = lines.collect::<Vec<_>>().join("\n");
    assert!(sample(heading) == bytes, "{heading} is\n{shown}");
}

#[test]
fn the_samples_are_what_is_written() {
    let alice = Identity::from_seed(&[1; 32]);
    let bind = Action::Bind {
        name: "tools/a".parse().unwrap(),
        content: Content::Payload("hello".into()),
        prior: 0,
    };
    let proposal = Proposal::new("example.com/registry", 1, 5000, bind, None).unwrap();
    let approval = proposal.approve(&alice, 4000);
    check("#### An approval of it", &approval.encode());
    let read = Approval::decode(&sample("#### An approval of it")).unwrap();
    let recorded = read.verify().unwrap().recorded();

    // There is no way to make an entry but by deciding it, so the sample is read and looked at.
    let entry = Entry::decode(&sample("#### An entry").into()).unwrap();
    assert_eq!(entry.proposal(), &proposal);
    assert_eq!(entry.approvals(), [recorded]);
    assert_eq!((entry.version(), entry.time()), (2, 1000));
    assert_eq!(entry.previous().as_bytes(), &[7; 32]);
    assert_eq!(entry.names().as_bytes(), &[8; 32]);

    let signer = Signer { name: "alice".into(), key: alice.public_key(), expires: None };
    check("#### A policy", Policy::of(1, vec![signer]).unwrap().encoded());
}
