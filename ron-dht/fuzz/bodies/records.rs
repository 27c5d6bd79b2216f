//! What the fuzzer and the replay of its corpus both run.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use ron_core::{NodeId, net::Identity};
use ron_dht::{
    Key,
    logic::{
        addrs::{AddressPolicy, Sender},
        records::{Kept, Limits, Records},
        signed::{ProviderRecord, Value, Verified},
    },
};

const HOUR: Duration = Duration::from_secs(3600);

/// The first byte chooses: arbitrary bytes as records, a genuine record that the rest edits, or a history of genuine
/// records from several senders. Without the last two the signatures would keep the fuzzer out.
pub(crate) fn records(data: &[u8]) {
    match data.split_first() {
        Some((mode, data)) if mode % 3 == 0 => decode(data),
        Some((mode, data)) if mode % 3 == 1 => edit(data),
        Some((_, data)) => submit(data),
        None => {}
    }
}

fn decode(data: &[u8]) {
    if let Ok(record) = ProviderRecord::decode(data) {
        assert_eq!(record.encoded()[..], *data);
        assert!(record.addrs().len() <= 8 && record.ttl_secs() > 0);
        let _ = record.verify();
    }
    if let Ok(value) = Value::decode(data) {
        assert_eq!(value.encoded()[..], *data);
        assert_eq!(value.is_about(&value.key()), Ok(()));
        let _ = value.verify();
    }
}

/// Three bytes choose the record, the place and the change. Whatever is changed, the proof is gone.
fn edit(data: &[u8]) {
    for edit in data.chunks_exact(3).take(2) {
        let genuine = &pool()[usize::from(edit[0]) % pool().len()].0;
        let mut encoded = genuine.clone();
        let at = usize::from(edit[1]) % encoded.len();
        encoded[at] ^= edit[2];
        let is_proven = ProviderRecord::decode(&encoded).is_ok_and(|record| record.verify().is_ok());
        assert!(!is_proven || encoded == *genuine);
        let value = Value::decode(&encoded).and_then(Value::verify);
        // A value under its own hash is as good as any other; it is only another one.
        assert!(value.is_err() || encoded == *genuine || encoded[1] == 2);
    }
}

/// Two bytes a step: which record, and who sends it after how long. In a small store the limits must hold after every
/// step; in a large one the outcome must not depend on the order in which the same records came.
#[allow(
    clippy::disallowed_methods,
    reason = "threads of a test that end with it, without a host to track them"
)]
fn submit(data: &[u8]) {
    let steps: Vec<(&Verified, Sender, Duration)> = data
        .chunks_exact(2)
        .map(|step| {
            let ip = [8, 8, step[1] & 7, 1].into();
            let sender = Sender { id: NodeId::from_bytes([step[1] & 7; 32]), ip };
            (
                &pool()[usize::from(step[0]) % pool().len()].1,
                sender,
                Duration::from_secs(u64::from(step[1] >> 3) * 60),
            )
        })
        .collect();

    let limits = Limits {
        providers_per_key_max: 3,
        publisher_records_max: 4,
        records_max: 7,
        bytes_max: 7 * 700,
        ..Limits::default()
    };
    let mut small = Records::new(limits.clone(), AddressPolicy::Public);
    let (mut now, mut rng) = (Duration::ZERO, fastrand::Rng::with_seed(1));
    for (record, sender, wait) in &steps {
        now += *wait;
        let _ = small.insert((*record).clone(), sender, now);
        assert!(small.len() <= limits.records_max && small.bytes() <= limits.bytes_max);
        assert_eq!(small.kept().count(), small.len());
        for number in 0..KEYS {
            let found = small.providers(&key(number), now, usize::MAX, &mut rng);
            assert!(found.len() <= limits.providers_per_key_max);
            let two = small.providers(&key(number), now, 2, &mut rng);
            assert_eq!(two.len(), found.len().min(2));
        }
    }
    // A withdrawal stays for a day longer than anything it withdraws.
    small.expire(now + 48 * HOUR, usize::MAX);
    assert_eq!((small.len(), small.bytes()), (0, 0));

    let settle = |steps: &mut dyn Iterator<Item = &(&Verified, Sender, Duration)>| {
        let mut large = Records::new(Limits::default(), AddressPolicy::Public);
        for (record, sender, _) in steps {
            let _ = large.insert((*record).clone(), sender, Duration::ZERO);
        }
        settled(&large)
    };
    let in_order = settle(&mut steps.iter());
    assert_eq!(in_order, settle(&mut steps.iter().rev()));

    // Two threads, each with every other step, in whatever order they come.
    let shared = Mutex::new(Records::new(Limits::default(), AddressPolicy::Public));
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (steps, shared) = (&steps, &shared);
            scope.spawn(move || {
                for (record, sender, _) in steps.iter().skip(first).step_by(2) {
                    let mut records = shared.lock().expect("nobody panics with it");
                    let _ = records.insert((*record).clone(), sender, Duration::ZERO);
                }
            });
        }
    });
    assert_eq!(in_order, settled(&shared.into_inner().expect("nobody panicked with it")));
}

/// What is kept and until when. A value under its hash is the same however long it asked to live.
fn settled(records: &Records) -> BTreeSet<(Vec<u8>, Duration)> {
    let said = |kept: Kept| match Value::decode(&kept.encoded) {
        Ok(value) if kept.is_value && value.signer().is_none() => (value.data().to_vec(), kept.expires),
        _ => (kept.encoded.to_vec(), kept.expires),
    };
    records.kept().map(said).collect()
}

const KEYS: u8 = 3;

const ISSUED: u64 = 1_800_000_000;

fn key(number: u8) -> Key {
    Key::from_bytes([number; 32])
}

/// Records of three publishers for three keys, their withdrawals, and some values, signed once.
fn pool() -> &'static [(Vec<u8>, Verified)] {
    static POOL: OnceLock<Vec<(Vec<u8>, Verified)>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = Vec::new();
        for who in 1..4 {
            let identity = Identity::from_seed(&[who; 32]);
            for number in 0..KEYS {
                for seq in 1..3 {
                    let addr = SocketAddr::from(([9, 9, who, number], 4000));
                    let ttl = HOUR / 2 * u32::from(who);
                    pool.push(ProviderRecord::sign(&identity, key(number), &[addr], seq, ISSUED, ttl));
                    pool.push(ProviderRecord::withdraw(&identity, key(number), seq, ISSUED));
                }
            }
        }
        let prove = |record: ProviderRecord| {
            let encoded = record.encoded().to_vec();
            (encoded, record.verify().expect("just signed"))
        };
        let mut pool: Vec<_> = pool.into_iter().map(prove).collect();
        for seq in 1..4 {
            let identity = Identity::from_seed(&[1; 32]);
            let mutable = Value::mutable(&identity, b"salt", 1 + seq / 2, &[seq as u8; 9], HOUR);
            let immutable = Value::immutable(&[seq as u8; 9], HOUR);
            let longer = Value::immutable(&[seq as u8; 9], 2 * HOUR);
            for value in [mutable, immutable, longer] {
                let value = value.expect("it is small");
                pool.push((value.encoded().to_vec(), value.verify().expect("just signed")));
            }
        }
        pool
    })
}
