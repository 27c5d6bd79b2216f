//! What a node was told, and what it promised, survives its end.

use std::{path::Path, sync::Arc, time::Duration};

use ron_core::{
    Supervisor,
    disk::{Disk, RealDisk},
    net::Identity,
    sim::{CrashStyle, SimDisk},
};
use ron_dht::{
    Builder, Dht, ProviderRecord, Settings, Value,
    network::{Answer, Put, RecordOutcome, Request, Sender, Served, Want},
};

use super::world::{Counts, START, World, host, key, soon};

const HOUR: Duration = Duration::from_secs(3600);

fn durable(disk: &SimDisk) -> Builder {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Dht::builder().settings(Settings { segment_bytes: 1 << 16, ..Settings::default() }).data(disk, "data/dht")
}

/// Asks a node to keep somebody's record for a key, as a peer would.
async fn give(world: &World, dht: &Dht, number: u64) -> RecordOutcome {
    let stranger = Identity::from_seed(&[9; 32]);
    let addrs = ["10.9.9.9:1".parse().unwrap()];
    let record = ProviderRecord::sign(&stranger, key(number), &addrs, 1, world.unix(), 2 * HOUR);
    let request = Request::Provide { records: vec![record.encoded().clone()] };
    match world.ask(dht.node_id(), stranger.node_id(), request).await.unwrap() {
        Answer::Provided { results } => results[0],
        other => panic!("{other:?}"),
    }
}

async fn has(world: &World, dht: &Dht, number: u64) -> bool {
    let request = Request::FindValue { key: key(number), want: Want::Providers, limit: 9 };
    match world.ask(dht.node_id(), super::world::id(1), request).await.unwrap() {
        Answer::Found { providers, .. } => !providers.is_empty(),
        other => panic!("{other:?}"),
    }
}

/// Bytes of all files, preallocated ones included.
fn used(disk: &SimDisk) -> u64 {
    disk.capacity(Some(1 << 40));
    let used = (1 << 40) - disk.free_space().unwrap();
    disk.capacity(None);
    used
}

async fn crash(first: Supervisor, dht: Dht, disk: &SimDisk, style: CrashStyle) {
    // The disk is gone first; whatever the node does while it ends reaches nothing.
    disk.crash_at_call(disk.calls() + 1);
    drop(dht);
    first.shutdown().await;
    disk.restart(style);
}

#[tokio::test(start_paused = true)]
async fn records_and_schedule_are_there_after_a_restart() {
    let (world, disk, first) = (World::of(60), SimDisk::new(), host());
    let dht = world.node(1000, &first, durable(&disk)).await;
    assert_eq!(give(&world, &dht, 1).await, RecordOutcome::Kept);
    dht.provide(key(7), soon()).await.unwrap();
    dht.provide(key(8), soon()).await.unwrap();
    dht.withdraw(key(8), soon()).await.unwrap();
    let stopped = first.shutdown().await;
    assert_eq!(stopped.aborted, 0);
    disk.restart(CrashStyle::LoseUnsynced);

    let second = host();
    let began = ron_core::now();
    let dht = world.node(1000, &second, durable(&disk)).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(has(&world, &dht, 1).await);
    assert_eq!(dht.status().provided, 1);
    // It goes on saying what it said before, with higher numbers, though nobody asked it to in this life.
    let nearest = world.closest(&key(7), 1, &dht.node_id())[0];
    let before = world.kept_by(&key(7), &nearest).unwrap();
    tokio::time::sleep(16 * HOUR).await;
    assert!(world.kept_by(&key(7), &nearest).unwrap() > before);
    assert_eq!(dht.status().provide_lag, Duration::ZERO);
    // And what others brought is forgotten in its time.
    assert!(!has(&world, &dht, 1).await);
    second.shutdown().await;
}

/// A node that came back at another address was not found by what it had said: its keys had been said not long ago, and
/// their turn was half a day away.
#[tokio::test(start_paused = true)]
async fn who_comes_back_elsewhere_says_its_keys_again_at_once() {
    let (world, disk) = (World::of(60), SimDisk::new());
    let mut seqs = Vec::new();
    for (run, elsewhere) in [None, None, Some("10.7.7.7:7".parse().unwrap())].into_iter().enumerate() {
        let host = host();
        if let Some(elsewhere) = elsewhere {
            let own = Identity::from_seed(blake3::hash(&1000_u64.to_be_bytes()).as_bytes()).node_id();
            world.move_to(own, elsewhere);
        }
        let dht = world.node(1000, &host, durable(&disk)).await;
        if run == 0 {
            dht.provide(key(7), soon()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(120)).await;
        let record = world.record(&key(7)).unwrap();
        assert_eq!(record.addrs(), dht.contact().addrs.to_vec(), "run {run}");
        seqs.push(record.seq());
        host.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);
    }
    assert!(seqs[0] == seqs[1] && seqs[1] < seqs[2], "{seqs:?}");
}

#[tokio::test(start_paused = true)]
async fn kept_means_durable_whenever_the_crash_comes() {
    for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: 3 }] {
        let (world, disk, first) = (World::of(40), SimDisk::new(), host());
        let dht = world.node(1000, &first, durable(&disk)).await;
        let mut kept = Vec::new();
        for number in 0..20 {
            if give(&world, &dht, number).await == RecordOutcome::Kept {
                kept.push(number);
            }
        }
        assert_eq!(kept.len(), 20);
        dht.provide(key(7), soon()).await.unwrap();
        crash(first, dht, &disk, style).await;
        let second = host();
        let dht = world.node(1000, &second, durable(&disk)).await;
        for number in kept {
            assert!(has(&world, &dht, number).await, "{number} after {style:?}");
        }
        assert_eq!(dht.status().provided, 1);
        second.shutdown().await;
    }
}

/// A node whose disk was full said `Kept` for a record that it held in memory only. What the disk does not have is not
/// said to be kept, the same again is not either, and once there is room everything is made up for.
#[tokio::test(start_paused = true)]
async fn what_the_disk_did_not_take_is_not_said_to_be_kept() {
    let (world, disk, first) = (World::of(40), SimDisk::new(), host());
    let dht = world.node(1000, &first, durable(&disk)).await;
    assert_eq!(give(&world, &dht, 1).await, RecordOutcome::Kept);
    disk.capacity(Some(used(&disk)));
    let mut number = 2;
    while give(&world, &dht, number).await == RecordOutcome::Kept {
        number += 1;
    }
    assert_eq!(give(&world, &dht, number).await, RecordOutcome::Skipped);
    assert!(!dht.ready().writes, "{:?}", dht.ready());
    disk.capacity(None);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(give(&world, &dht, number).await, RecordOutcome::Kept);
    assert!(dht.ready().writes, "{:?}", dht.ready());
    crash(first, dht, &disk, CrashStyle::LoseUnsynced).await;
    let second = host();
    let dht = world.node(1000, &second, durable(&disk)).await;
    for number in 1..=number {
        assert!(has(&world, &dht, number).await, "{number}");
    }
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_journal_does_not_grow_for_ever() {
    let (world, disk, first) = (World::of(40), SimDisk::new(), host());
    let small = || durable(&disk).settings(Settings { segment_bytes: 4096, ..Settings::default() });
    let dht = world.node(1000, &first, small()).await;
    let mut largest = 0;
    for round in 0..12 {
        // The same keys anew each time: few rows, many entries of the journal.
        for who in 0..3 {
            let records = (0..10).map(|what| signed(who, what, round)).collect();
            let answer = world.ask(dht.node_id(), super::world::id(1), Request::Provide { records }).await;
            assert_eq!(answer.unwrap(), Answer::Provided { results: vec![RecordOutcome::Kept; 10] });
        }
        tokio::time::sleep(Duration::from_secs(100)).await;
        largest = largest.max(used(&disk));
    }
    // Twice the 7 KiB that are needed and a few segments of 4 KiB, though twelve times as much was written.
    assert!(largest < 9 * 4096, "{largest}");
    first.shutdown().await;
    let second = host();
    let dht = world.node(1000, &second, small()).await;
    assert_eq!(dht.status().records, 30);
    second.shutdown().await;
}

/// A store that was to be written anew on a disk without the room for it wrote as much of itself as there was room for, every
/// minute, until the disk was full and nothing was kept any more.
#[tokio::test(start_paused = true)]
async fn the_store_is_written_anew_only_where_there_is_room() {
    let (world, disk, host) = (World::of(40), SimDisk::new(), host());
    let dht = world.node(1000, &host, durable(&disk)).await;
    for seq in 1..=4 {
        for who in 0..150 {
            let owner = Identity::from_seed(&[who; 32]);
            let value = Value::mutable(&owner, b"", seq, &[who; 16_000], 2 * HOUR).unwrap();
            let put = Put { value: value.encoded().clone(), expected: None };
            let answer =
                world.ask(dht.node_id(), owner.node_id(), Request::Store { values: vec![put] }).await;
            assert_eq!(answer.unwrap(), Answer::Stored { results: vec![RecordOutcome::Kept] });
        }
    }
    let before = used(&disk);
    assert!(before > 9_000_000, "{before}");
    // Of the 2.4 MB that are needed there is more than a piece, and less than all.
    disk.capacity(Some(before + 1_500_000));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(disk.used(), before);
    assert!(dht.ready().writes, "{:?}", dht.ready());
    disk.capacity(None);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(disk.used() < before / 2, "{}", disk.used());
    host.shutdown().await;
}

fn signed(who: u8, what: u64, seq: u64) -> bytes::Bytes {
    let addrs = ["10.9.9.9:1".parse().unwrap()];
    let record =
        ProviderRecord::sign(&Identity::from_seed(&[who; 32]), key(what), &addrs, seq + 1, START, 2 * HOUR);
    record.encoded().clone()
}

#[tokio::test(start_paused = true)]
async fn whom_it_knew_is_asked_first_after_a_restart() {
    let (world, disk, first) = (World::of(60), SimDisk::new(), host());
    let dht = world.node(1000, &first, durable(&disk)).await;
    let known = dht.peers().len();
    assert!(known > 20);
    first.shutdown().await;
    // The seeds are gone meanwhile.
    world.silence(world.peers().into_iter().take(4));
    let second = host();
    let dht = world.node(1000, &second, durable(&disk)).await;
    assert!(dht.peers().len() > 20, "{}", dht.peers().len());
    second.shutdown().await;

    // A damaged file is a warning, and then there are only the seeds: nobody.
    let path = Path::new("data/dht/contacts");
    disk.flip_bit(path, 300);
    let third = host();
    let dht = world.start(1000, &third, durable(&disk)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(dht.peers().is_empty() && !dht.ready().reads);
    third.shutdown().await;
    assert!(disk.bytes(path).is_some(), "an empty table does not replace what is there");
}

/// After a power cut a node without a seed that lives was back before its network: it asked each of those that it had known
/// once, found nobody, and stayed alone for good.
#[tokio::test(start_paused = true)]
async fn whom_it_knew_is_asked_until_somebody_is_back() {
    let (world, disk, first) = (World::of(60), SimDisk::new(), host());
    world.node(1000, &first, durable(&disk)).await;
    first.shutdown().await;
    world.silence(world.peers());
    let second = host();
    let dht = world.start(1000, &second, durable(&disk)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(dht.peers().is_empty() && !dht.ready().reads);
    let seeds: Vec<_> = world.peers().into_iter().take(4).collect();
    world.silence_only(seeds);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(dht.peers().len() > 20 && dht.ready().reads, "{}", dht.peers().len());
    second.shutdown().await;
}

/// A node that had lost everybody tried the same thirty-two of its table again and again, and those may be the ones that are
/// gone for good.
#[tokio::test(start_paused = true)]
async fn who_is_left_alone_tries_all_of_its_table_in_time() {
    let (world, host) = (World::of(100), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let table: Vec<_> = dht.peers().into_iter().map(|peer| peer.contact.id).collect();
    assert!(table.len() > 40, "{}", table.len());
    world.silence(world.peers());
    tokio::time::sleep(2 * HOUR).await;
    assert!(!dht.ready().reads, "{:?}", dht.ready());
    let back: Vec<_> = dht.peers().into_iter().map(|peer| peer.contact.id).skip(32).collect();
    let seeds = world.peers().into_iter().take(4).collect::<Vec<_>>();
    world.silence_only(world.peers().into_iter().filter(|id| seeds.contains(id) || !back.contains(id)));
    tokio::time::sleep(HOUR).await;
    assert!(dht.ready().reads, "{:?}", dht.ready());
    host.shutdown().await;
}

#[tokio::test]
async fn a_real_directory_does_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::of(30);
    let open = || -> Builder { Dht::builder().data(Arc::new(RealDisk::open(dir.path()).unwrap()), "dht") };
    let counts = Counts::new();
    let first = Supervisor::new("first");
    let dht = world.node(1000, &first, open().metrics(counts.metrics())).await;
    assert_eq!(give(&world, &dht, 1).await, RecordOutcome::Kept);
    dht.provide(key(7), soon()).await.unwrap();
    // Two nodes in one directory would undo each other's words.
    let twice = world.start(1001, &first, open()).await.unwrap_err();
    assert!(matches!(twice, ron_dht::DhtError::Store { .. }), "{twice:?}");
    first.shutdown().await;
    assert_eq!(counts.get("tasks_spawned_total{kind=\"store_writer\"}"), 1);
    let second = Supervisor::new("second");
    let dht = world.node(1000, &second, open()).await;
    assert!(has(&world, &dht, 1).await);
    assert_eq!(dht.status().provided, 1);
    second.shutdown().await;
}

impl World {
    /// Asks a real node something in another's name.
    pub(crate) async fn ask(
        &self,
        to: ron_core::NodeId,
        from: ron_core::NodeId,
        request: Request,
    ) -> Result<Answer, ron_core::net::rpc::Fault> {
        let answers = self.real(&to).upgrade().expect("it runs");
        let sender = Sender { id: from, ip: [10, 9, 9, 9].into() };
        match answers.answer(sender, request, soon()) {
            Served::Now(answer) => answer,
            Served::Later(answer) => answer.await,
        }
    }
}
