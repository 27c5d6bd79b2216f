//! Records of who provides what, as peers bring them: more of them than one key has room for, and old ones again.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ron_core::{
    ContentId,
    net::{
        Contact, Identity,
        rpc::{Method, Peers, RpcError},
    },
};
use ron_dht::{
    Key, ProviderRecord,
    network::{Answer, RecordOutcome as Outcome, Request, Want},
};

use super::{
    PATIENCE, node,
    peers::{PROTOCOLS, Peer, contact, soon},
};
use crate::{Daemon, settings::Configured};

const HOUR: Duration = Duration::from_secs(3600);

/// Somebody who says what it likes to a node's part of the DHT.
pub(super) struct Asker {
    peer: Peer,
    dht: Peers,
    to: Contact,
}

impl Asker {
    pub(super) fn new(to: Contact) -> Asker {
        let peer = Peer::new();
        let dht = peer.speak(PROTOCOLS[0].0, "no");
        Asker { peer, dht, to }
    }

    /// Asks until it is not told to wait.
    fn ask(&self, request: &Request) -> Answer {
        let (number, body) = request.encode();
        let began = ron_core::now();
        loop {
            let call = self.dht.call(
                self.to.id,
                &self.to.addrs,
                Method { number, name: "ask" },
                body.clone(),
                soon(),
            );
            match self.peer.runtime.block_on(call) {
                Ok(answer) => return Answer::decode(number, &answer).unwrap(),
                Err(RpcError::Busy { retry_after, .. }) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(retry_after.min(Duration::from_secs(1)));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(super) fn provide(&self, records: Vec<Bytes>) -> Vec<Outcome> {
        match self.ask(&Request::Provide { records }) {
            Answer::Provided { results } => results,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn providers(&self, key: Key, limit: u16) -> Vec<ProviderRecord> {
        match self.ask(&Request::FindValue { key, want: Want::Providers, limit }) {
            Answer::Found { providers, .. } => {
                providers.iter().map(|encoded| ProviderRecord::decode(encoded).unwrap()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn unix() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

pub(super) fn signed(publisher: &Identity, key: Key, seq: u64) -> Bytes {
    let addr = "127.0.0.1:9".parse().unwrap();
    ProviderRecord::sign(publisher, key, &[addr], seq, unix(), HOUR).encoded().clone()
}

/// Case 25: six hundred publishers of one object that somebody made up, each with a key and a signature. One that was there
/// before stays, one that comes from elsewhere afterwards is taken, and both are in every short answer.
#[test]
fn a_flood_of_providers_leaves_room_for_others() {
    let node = node("");
    let (to, key) = (contact(&node), Key::from(ContentId::of(b"wanted")));
    let [first, last] = [201, 202].map(|seed| Identity::from_seed(&[seed; 32]));
    let early = Asker::new(to.clone());
    assert_eq!(early.provide(vec![signed(&first, key, 1)]), [Outcome::Kept]);
    let liar = Asker::new(to.clone());
    let made_up: Vec<Bytes> = (0..600_u16)
        .map(|number| {
            let mut seed = [9; 32];
            seed[..2].copy_from_slice(&number.to_le_bytes());
            signed(&Identity::from_seed(&seed), key, 1)
        })
        .collect();
    let mut told = Vec::new();
    let grown = node.growth(|| {
        for some in made_up.chunks(60) {
            told.extend(liar.provide(some.to_vec()));
        }
    });
    let count = |wanted: Outcome| told.iter().filter(|outcome| **outcome == wanted).count();
    println!("{} kept, {} refused, {grown} bytes more", count(Outcome::Kept), count(Outcome::Full));
    assert_eq!((count(Outcome::Kept), count(Outcome::Full)), (255, 345), "a key has 256 places");
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert_eq!(node.count("ron_dht_quota_reject_total{kind=\"records_per_key\"}"), 345);

    let late = Asker::new(to.clone());
    assert_eq!(late.provide(vec![signed(&last, key, 1)]), [Outcome::Kept]);
    for _ in 0..10 {
        let found: Vec<_> = liar.providers(key, 8).iter().map(ProviderRecord::publisher).collect();
        assert_eq!(found.len(), 8);
        assert!(found.contains(&first.node_id()) && found.contains(&last.node_id()), "{found:?}");
    }
    assert_eq!(liar.providers(key, u16::MAX).len(), 256);
    node.is_well();
}

/// Case 27: a record that its publisher withdrew, brought again by whoever kept it, before and after a restart of the node.
#[test]
fn what_was_withdrawn_does_not_come_back() {
    let node = node("");
    let (key, publisher) = (Key::from(ContentId::of(b"withdrawn")), Identity::from_seed(&[203; 32]));
    let old = [4, 5].map(|seq| signed(&publisher, key, seq));
    let gone = ProviderRecord::withdraw(&publisher, key, 6, unix()).encoded().clone();
    let replay = |asker: &Asker| {
        for record in &old {
            assert_eq!(asker.provide(vec![record.clone()]), [Outcome::Stale { held: 6 }]);
        }
        assert!(asker.providers(key, 10).is_empty());
    };
    {
        let asker = Asker::new(contact(&node));
        assert_eq!(asker.provide(old.to_vec()), [Outcome::Kept; 2]);
        assert_eq!(asker.providers(key, 10).len(), 1);
        assert_eq!(asker.provide(vec![gone]), [Outcome::Kept]);
        replay(&asker);
        replay(&Asker::new(asker.to.clone()));
    }
    node.is_well();
    let Configured { daemon, dir } = node;
    daemon.terminate();
    let again = Daemon::start(&dir.path().join("data"), &[]);
    again.eventually("/readyz?writes", |answer| answer.starts_with("HTTP/1.1 200"));
    let asker = Asker::new(again.seed.parse().unwrap());
    replay(&asker);
    // Its owner may say it anew.
    assert_eq!(asker.provide(vec![signed(&publisher, key, 7)]), [Outcome::Kept]);
    assert_eq!(asker.providers(key, 10).len(), 1);
    drop(asker);
    again.terminate();
}

/// Cases 17 and 26: records that somebody else signed, or that were signed by a clock that is wrong by weeks.
#[test]
fn forged_and_mistimed_records_are_not_kept() {
    const MONTH: u64 = 30 * 24 * 3600;
    let node = node("");
    let (asker, key) = (Asker::new(contact(&node)), Key::from(ContentId::of(b"forged")));
    let publisher = Identity::from_seed(&[207; 32]);
    let good = signed(&publisher, key, 1);
    // Each byte once, as another one: not one of them is what was signed.
    let forged: Vec<Bytes> = (0..good.len())
        .map(|at| {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1;
            bytes.into()
        })
        .collect();
    for some in forged.chunks(64) {
        let told = asker.provide(some.to_vec());
        assert!(told.iter().all(|outcome| *outcome == Outcome::Invalid), "{told:?}");
    }
    let addr = "127.0.0.1:9".parse().unwrap();
    for issued in [0, unix() - MONTH, unix() + MONTH, u64::MAX] {
        let record = ProviderRecord::sign(&publisher, key, &[addr], 1, issued, HOUR);
        assert_eq!(asker.provide(vec![record.encoded().clone()]), [Outcome::Invalid], "{issued}");
    }
    assert!(asker.providers(key, 10).is_empty());
    // As it was signed it is taken, and that it asks for ever is its own business: it is there for a day.
    assert_eq!(asker.provide(vec![good]), [Outcome::Kept]);
    let for_ever = ProviderRecord::sign(&publisher, key, &[addr], 2, unix(), Duration::MAX);
    assert_eq!(asker.provide(vec![for_ever.encoded().clone()]), [Outcome::Kept]);
    assert_eq!(asker.providers(key, 10).len(), 1);
    node.is_well();
}
