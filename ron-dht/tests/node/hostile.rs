//! Rivals that write the same value, and neighbourhoods that somebody made up.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::net::Identity;
use ron_dht::{
    Dht, DhtError, Key, Preset, ProviderRecord, Settings, Value,
    network::{Request, Sender, Served},
};

use super::world::{START, World, contact, host, id, key, soon};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Twenty ids ground next to a key.
fn ground(key: &Key) -> Vec<ron_core::NodeId> {
    let near = |low: u8| {
        let mut id = *key.as_bytes();
        id[8] ^= low;
        ron_core::NodeId::from_bytes(id)
    };
    (1..=20).map(near).collect()
}

/// The identity that [`World`] gives the node with this number.
fn identity(number: u64) -> Identity {
    Identity::from_seed(blake3::hash(&number.to_be_bytes()).as_bytes())
}

/// Of two writers that had read the same, each found some peers that the other had not reached yet, and both were told
/// that they had written. Now whoever meets another's word with half of the peers or more is told of the conflict.
#[tokio::test(start_paused = true)]
async fn of_two_who_read_the_same_only_one_writes() {
    for (rivals, is_written) in [(0, true), (3, true), (9, true), (10, false), (15, false), (20, false)] {
        let (world, host) = (World::of(100), host());
        let dht = world.node(1000, &host, Dht::builder()).await;
        let key = dht.put_mutable(b"s", b"first", 1, None, soon()).await.unwrap();
        let rival = Value::mutable(&identity(1000), b"s", 2, b"rival", DAY).unwrap();
        assert_eq!(rival.key(), key);
        for peer in world.closest(&key, 20, &dht.node_id()).into_iter().take(rivals) {
            world.hold_value(peer, &rival);
        }
        let written = dht.put_mutable(b"s", b"ours", 3, Some(1), soon()).await;
        match is_written {
            true => assert_eq!(written, Ok(key), "{rivals}"),
            false => assert_eq!(written, Err(DhtError::Conflict { held: 2 }), "{rivals}"),
        }
        host.shutdown().await;
    }
}

/// Each of two writers reached only some of the peers, and none of another mind: both were told that they had written,
/// and one of them had not. Without more than half of the peers nobody has.
#[tokio::test(start_paused = true)]
async fn a_swap_that_most_peers_did_not_answer_is_undecided() {
    for (silent, is_written) in [(0, true), (9, true), (10, false), (15, false)] {
        let (world, host) = (World::of(100), host());
        let dht = world.node(1000, &host, Dht::builder()).await;
        let key = dht.put_mutable(b"s", b"first", 1, None, soon()).await.unwrap();
        let near = world.closest(&key, 20, &dht.node_id());
        world.silence_keepers(near.iter().copied().take(silent));
        let written = dht.put_mutable(b"s", b"ours", 2, Some(1), soon()).await;
        match is_written {
            true => assert_eq!(written, Ok(key), "{silent}"),
            false => {
                assert_eq!(written, Err(DhtError::Undecided { kept: 20 - silent, asked: 20 }), "{silent}")
            }
        }
        // Without a swap, every copy is worth having.
        assert_eq!(dht.put_mutable(b"s", b"again", 3, None, soon()).await, Ok(key), "{silent}");
        host.shutdown().await;
    }
}

/// Everybody is asked over whatever link there is, and answers over it wherever somebody said that it was. The table, and
/// whoever is told from it, has only addresses at which somebody was dialled or of which it spoke itself.
#[tokio::test(start_paused = true)]
async fn where_liars_say_that_somebody_is_does_not_enter_the_table() {
    let (world, host) = (World::of(60), host());
    let liars: Vec<_> = world.peers();
    let nowhere = "10.66.66.66:66".parse().unwrap();
    for peer in &liars {
        world.misplace(*peer, nowhere);
    }
    let callers: Vec<_> = liars.iter().copied().skip(10).step_by(2).collect();
    world.callers(callers.iter().copied());
    let dht = world.node(1000, &host, Dht::builder()).await;
    for number in 0..10 {
        dht.find_node(key(number), soon()).await.unwrap();
    }
    let peers = dht.peers();
    assert!(peers.len() > 20, "{}", peers.len());
    for entry in peers {
        assert!(!entry.contact.addrs.contains(&nowhere), "{entry:?}");
        assert!(!callers.contains(&entry.contact.id), "{entry:?}");
    }
    host.shutdown().await;
}

/// A node that itself held a newer value than it was told to write wrote all the same, to whoever held nothing.
#[tokio::test(start_paused = true)]
async fn what_this_node_knows_to_be_old_is_not_written() {
    let (world, host) = (World::of(60), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    dht.put_mutable(b"s", b"five", 5, None, soon()).await.unwrap();
    world.forget_values();
    let old = dht.put_mutable(b"s", b"three", 3, None, soon()).await;
    assert_eq!(old, Err(DhtError::Conflict { held: 5 }));
    let unexpected = dht.put_mutable(b"s", b"six", 6, Some(4), soon()).await;
    assert_eq!(unexpected, Err(DhtError::Conflict { held: 5 }));
    dht.put_mutable(b"s", b"six", 6, Some(5), soon()).await.unwrap();
    host.shutdown().await;
}

/// Two values with the same number: holders agree on which of them counts, and readers took the one that came first.
#[tokio::test(start_paused = true)]
async fn readers_agree_on_which_of_two_values_counts() {
    let versions = [b"one", b"two"].map(|data| Value::mutable(&identity(7), b"s", 2, data, DAY).unwrap());
    let counts = versions.iter().max_by_key(|value| value.encoded().clone()).unwrap();
    for turn in 0..2 {
        let (world, host) = (World::of(60), host());
        let dht = world.node(1000, &host, Dht::builder()).await;
        for (at, peer) in world.closest(&counts.key(), 20, &dht.node_id()).into_iter().enumerate() {
            world.hold_value(peer, &versions[(at + turn) % 2]);
        }
        let found = dht.get_mutable(&identity(7).public_key(), b"s", soon()).await.unwrap();
        assert_eq!(found.data(), counts.data(), "{turn}");
        host.shutdown().await;
    }
}

/// Providers came with every address that their records name, loopback included, whoever had handed the record over. A
/// record without any address that may be dialled is none.
#[tokio::test(start_paused = true)]
async fn providers_come_with_addresses_that_may_be_dialled() {
    for (preset, expected) in
        [(Preset::Public, &["9.9.9.9:1"][..]), (Preset::Lan, &["127.0.0.1:80", "9.9.9.9:1"])]
    {
        let (world, host) = (World::of(60), host());
        let settings = Settings { preset, ..Settings::default() };
        let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
        let addrs = |addrs: &[&str]| addrs.iter().map(|addr| addr.parse().unwrap()).collect::<Vec<_>>();
        let mixed = addrs(&["127.0.0.1:80", "0.0.0.0:80", "9.9.9.9:1"]);
        let record = ProviderRecord::sign(&identity(7), key(1), &mixed, 1, START, DAY);
        let lure = ProviderRecord::sign(
            &identity(8),
            key(1),
            &addrs(&["0.0.0.0:22", "224.0.0.1:22"]),
            1,
            START,
            DAY,
        );
        for peer in world.closest(&key(1), 1, &dht.node_id()) {
            world.hold_record(peer, &record);
            world.hold_record(peer, &lure);
        }
        let mut found = dht.find_providers(key(1), NonZeroUsize::new(9).unwrap(), soon()).unwrap();
        let mut all = Vec::new();
        while let Some(provider) = found.next().await.unwrap() {
            all.push((provider.id, provider.addrs));
        }
        assert_eq!(all, [(identity(7).node_id(), addrs(expected))], "{preset:?}");
        host.shutdown().await;
    }
}

/// Said, taken back and said again within a second, a key had a number no higher than that of its withdrawal, and every
/// honest holder refused it.
#[tokio::test(start_paused = true)]
async fn what_was_taken_back_can_be_said_again_at_once() {
    let (world, host) = (World::of(60), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let nearest = world.closest(&key(1), 1, &dht.node_id())[0];
    let mut last = 0;
    for turn in 0..3 {
        dht.provide(key(1), soon()).await.unwrap();
        let said = world.kept_by(&key(1), &nearest).unwrap();
        assert!(said > last, "{turn}: {said} after {last}");
        dht.withdraw(key(1), soon()).await.unwrap();
        last = world.kept_by(&key(1), &nearest).unwrap();
        assert!(last >= said, "{turn}");
    }
    host.shutdown().await;
}

/// A node that has looked around long enough to know how large the network is.
async fn settled(world: &World, number: u64, host: &ron_core::Supervisor) -> Dht {
    let settings = Settings { refresh: 60 * SECOND, ..Settings::default() };
    let dht = world.node(number, host, Dht::builder().settings(settings)).await;
    tokio::time::sleep(1200 * SECOND).await;
    dht
}

/// Values were stored around a made-up neighbourhood and then looked for only in it.
#[tokio::test(start_paused = true)]
async fn a_value_behind_a_made_up_neighbourhood_is_found() {
    let (world, writer, reader) = (World::of(400), host(), host());
    let (writes, reads) = (settled(&world, 1000, &writer).await, settled(&world, 1001, &reader).await);
    for data in [b"one", b"two"] {
        let fakes = ground(&Value::immutable(data, DAY).unwrap().key());
        world.forgetful(fakes.clone());
        world.join(fakes);
    }
    let fakes = ground(&Value::mutable_key(&writes.public_key(), b"s"));
    world.forgetful(fakes.clone());
    world.join(fakes);
    let key = writes.put(b"one", soon()).await.unwrap();
    writes.put_mutable(b"s", b"three", 1, None, soon()).await.unwrap();
    let owner = writes.public_key();
    // Its own copy is not what is looked for.
    writer.shutdown().await;
    assert_eq!(reads.get(key, soon()).await.unwrap(), &b"one"[..]);
    assert_eq!(reads.get_mutable(&owner, b"s", soon()).await.unwrap().data(), &b"three"[..]);
    reader.shutdown().await;
}

/// One key was stored around a made-up neighbourhood, and one of many was not: the republisher's sweep, twelve hours
/// later, gave it to the twenty who had come to swallow it.
#[tokio::test(start_paused = true)]
async fn one_of_many_keys_is_stored_around_a_made_up_neighbourhood_too() {
    let (world, host) = (World::of(400), host());
    let dht = settled(&world, 1000, &host).await;
    let fakes = ground(&key(1));
    world.forgetful(fakes.clone());
    world.join(fakes);
    let progress = dht.provide_many((0..500).map(key), soon()).unwrap().finish().await.unwrap();
    assert_eq!(progress.done, 500);
    let holders =
        |number| world.peers().iter().filter(|peer| world.kept_by(&key(number), peer).is_some()).count();
    assert!(holders(1) >= 20, "{}", holders(1));
    let all: usize = (0..500).map(holders).sum();
    assert!(all < 500 * 22, "{all} copies: those around honest keys are twenty");
    host.shutdown().await;
}

/// Four hostile nodes for every honest one call a node as soon as it is up, each from an address of its own, and answer
/// whatever they are asked. They may have the places that nobody else wants. Those whom the node found itself stay.
#[tokio::test(start_paused = true)]
async fn who_calls_first_and_most_does_not_get_the_table() {
    for is_late in [false, true] {
        let (world, host) = (World::of(200), host());
        let honest = world.peers();
        let dht = match is_late {
            false => world.start(1000, &host, Dht::builder()).await.unwrap(),
            true => world.node(1000, &host, Dht::builder()).await,
        };
        let answers = world.real(&dht.node_id()).upgrade().unwrap();
        for number in 5000..5800 {
            let contact = contact(&id(number));
            let sender = Sender { id: contact.id, ip: contact.addrs[0].ip() };
            let ping = Request::Ping { listening: contact.addrs.to_vec() };
            assert!(matches!(answers.answer(sender, ping, soon()), Served::Now(Ok(_))));
            if number % 4 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        tokio::time::sleep(600 * SECOND).await;
        let peers = dht.peers();
        let kept = peers.iter().filter(|entry| honest.contains(&entry.contact.id)).count();
        assert!(peers.len() > kept, "they did come");
        assert!(kept * 2 >= peers.len(), "{kept} of {} are honest, late: {is_late}", peers.len());
        drop(answers);
        host.shutdown().await;
    }
}
