//! What the fuzzer and the replay of its corpus both run.

use std::sync::{Arc, OnceLock};

use ron_core::net::Identity;
use ron_registry::{
    Action, Content, Name, NameProof, Policy, ProofFile, Proposal, Signer, Tile, TreeHash,
    logic::{
        names::{MapHash, Names},
        state::State,
        tiles::{Prover, Tree, read_bundle, write_bundle},
    },
    verify_consistency, verify_inclusion,
};

/// Leaves of the tree that proofs are about.
const LEAVES: u64 = 300;

fn tree() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut tree = Tree::new();
        (0..LEAVES).for_each(|leaf| tree.push(leaf_of(leaf)));
        tree
    })
}

fn leaf_of(index: u64) -> TreeHash {
    TreeHash::of_leaf(&index.to_be_bytes())
}

fn root_of(size: u64) -> TreeHash {
    Prover::new(tree(), size).root().expect("nothing was pruned")
}

/// A log that has bound two of the names that proofs are about.
fn names() -> &'static Names {
    static STATE: OnceLock<State> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        let (origin, signer) = ("example.com/registry", Identity::from_seed(&[1; 32]));
        let mut state = State::new(origin);
        let policy =
            Policy::of(1, vec![Signer { name: "s".into(), key: signer.public_key(), expires: None }]);
        let founded = Action::Found { policy: Arc::new(policy.expect("a policy")) };
        let founded = Proposal::new(origin, 0, u64::MAX, founded, None).expect("a beginning");
        state.commit(founded, Vec::new(), 1).expect("the first");
        for name in ["a/b", "tools/compiler"] {
            let content = Content::Payload("x".into());
            let bind = Action::Bind { name: name.parse().expect("a name"), content, prior: 0 };
            let proposal = Proposal::new(origin, 1, 1000, bind, None).expect("in form");
            let approval = proposal.approve(&signer, 1000).verify().expect("just signed").recorded();
            state.commit(proposal, vec![approval], 1).expect("one is enough");
        }
        state
    });
    state.names()
}

/// The first byte says what the rest is: a proof file, a proof about a name, a bundle, the path of a tile, or how a proof of
/// inclusion or of consistency is bent. What can be read is written again the same, and nothing false is ever proven.
pub(crate) fn log_proof(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind {
        0 => {
            if let Ok(file) = ProofFile::parse(rest) {
                assert_eq!(file.to_string().as_bytes(), rest);
            }
        }
        1 => {
            let Ok(proof) = NameProof::decode(rest) else { return };
            assert_eq!(proof.encode(), rest);
            if proof.verify_policy(&MapHash::EMPTY).is_ok() {
                assert_eq!(rest, [0x82, 0x80, 0x80], "only a map without names has no root");
            }
            for name in ["a/b", "tools/compiler", "no/such"] {
                let name: Name = name.parse().expect("a name");
                if let Ok(latest) = proof.verify(&name, &names().root()) {
                    assert_eq!(latest, names().get(&name).copied());
                }
            }
        }
        2 => {
            let Some((width, bundle)) = rest.split_first() else { return };
            if let Some(entries) = read_bundle(bundle, u16::from(*width)) {
                assert_eq!(entries.len(), usize::from(*width));
                assert_eq!(write_bundle(&entries), bundle);
            }
        }
        3 => {
            let text = std::str::from_utf8(rest).unwrap_or_default();
            if let Ok(tile) = text.parse::<Tile>() {
                assert_eq!(tile.to_string(), text);
                assert_eq!(Tile::new(tile.level(), tile.index(), tile.width()), Some(tile));
            }
        }
        4 => inclusion(rest),
        _ => consistency(rest),
    }
}

fn numbers<const N: usize>(data: &[u8]) -> Option<([u64; N], &[u8])> {
    let mut found = [0; N];
    let mut rest = data;
    for number in &mut found {
        let (bytes, after) = rest.split_first_chunk()?;
        (*number, rest) = (u64::from(u16::from_be_bytes(*bytes)) % (LEAVES + 2), after);
    }
    Some((found, rest))
}

/// Each three bytes bend the proof: how, where, and by what.
fn bend(proof: &mut Vec<TreeHash>, script: &[u8]) {
    for step in script.chunks_exact(3).take(16) {
        let (how, at, by) = (step[0], usize::from(step[1]), step[2]);
        let len = proof.len();
        match how % 5 {
            _ if len == 0 || how % 5 == 0 => proof.insert(at % (len + 1), leaf_of(u64::from(by))),
            1 => drop(proof.remove(at % len)),
            2 => proof.swap(at % len, usize::from(by) % len),
            3 => {
                let mut bytes = *proof[at % len].as_bytes();
                bytes[usize::from(by) % 32] ^= 1 << (by % 8);
                proof[at % len] = TreeHash::from_bytes(bytes);
            }
            _ => proof[at % len] = proof[usize::from(by) % len],
        }
    }
}

fn inclusion(data: &[u8]) {
    let Some(([index, size, claimed, claimed_size], script)) = numbers(data) else { return };
    let size = size.clamp(1, LEAVES);
    let (index, claimed_size) = (index % size, claimed_size.clamp(1, LEAVES));
    let good = Prover::new(tree(), size).inclusion(index).expect("it is in there");
    verify_inclusion(&leaf_of(index), index, &good, size, &root_of(size)).expect("what is made is right");
    let mut bent = good.clone();
    bend(&mut bent, script);
    if verify_inclusion(&leaf_of(index), claimed, &bent, claimed_size, &root_of(claimed_size)).is_ok() {
        let right = Prover::new(tree(), claimed_size).inclusion(claimed).expect("it was proven");
        assert_eq!((claimed, bent), (index, right));
    }
}

fn consistency(data: &[u8]) {
    let Some(([old, new, claimed, claimed_new], script)) = numbers(data) else { return };
    let new = new.clamp(1, LEAVES);
    let (old, claimed, claimed_new) = (old % (new + 1), claimed.min(LEAVES), claimed_new.min(LEAVES));
    let mut bent = Prover::new(tree(), new).consistency(old).expect("it is the beginning");
    verify_consistency((old, &root_of(old)), (new, &root_of(new)), &bent).expect("what is made is right");
    bend(&mut bent, script);
    let (from, to) = (root_of(claimed), root_of(claimed_new));
    if verify_consistency((claimed, &from), (claimed_new, &to), &bent).is_ok() {
        let right = Prover::new(tree(), claimed_new).consistency(claimed);
        assert_eq!(Ok(bent), right);
    }
}
