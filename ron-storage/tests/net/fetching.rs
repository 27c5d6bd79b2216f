//! Objects from several peers at once.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use ron_core::{
    CallError, ContentId, Deadline, ErrorKind, Event as Heard, NodeId, Pacer,
    disk::{Access, Disk, RealDisk},
    net::BoxFuture,
    now,
    sim::{CrashStyle, Latency, Line, SimDisk},
};
use ron_storage::{
    Durability, Put, Settings, StorageError,
    fetch::{FetchError, FetchEvent, FetchSettings, Fetcher},
    peers::{Held, Offer, Pace, Peer, PeerError, Peers, Rules},
};

use crate::{
    bent::{Bent, Way},
    world::{Node, Word, World, content, ip, ms, real, soon},
};

/// Five nodes with one object, and one without.
struct Scene {
    world: World,
    holders: Vec<Node>,
    taker: Node,
    content: Bytes,
    id: ContentId,
}

impl Scene {
    async fn new(size: usize) -> Scene {
        let world = World::new(7);
        let content = content(size, 1);
        // It is put once, and the others have copies of that disk.
        let first = world.node(8).await;
        let id = first.put(content.clone()).await;
        first.host.shutdown().await;
        let mut holders = Vec::new();
        for number in 1..=5 {
            holders.push(world.node_on(number, first.disk.fork(), Settings::default()).await);
        }
        let taker = world.node(9).await;
        Scene { world, holders, taker, content, id }
    }

    fn providers(&self) -> Vec<Peer> {
        self.holders.iter().map(Node::peer).collect()
    }

    fn bent(&self, ways: &[(usize, Way)]) -> Bent {
        let ways = ways.iter().map(|(at, way)| (self.holders[*at].peer().contact.id, *way)).collect();
        Bent::new(&self.taker.links, ways)
    }

    async fn has_it(&self) -> bool {
        self.taker.store.get_bytes(self.id, u64::MAX, soon()).await.unwrap() == self.content
    }
}

/// How long it takes when these are as they are, and who fetches can take so much.
async fn time(ways: &[(usize, Way)], holders: usize, downlink: Option<u64>) -> Duration {
    let scene = Scene::new(10 << 20).await;
    scene.world.net.set_usual(Line {
        latency: Latency::Fixed(ms(10)),
        bandwidth: Some(2 << 20),
        ..Line::default()
    });
    let mut bent = scene.bent(ways);
    bent.downlink = downlink.map(|rate| {
        let of = |number| NonZeroU64::new(number).unwrap();
        Pacer::new(of(rate), of(64 << 10))
    });
    let fetcher = Fetcher::new(bent, &scene.taker.store);
    let mut events = fetcher.events();
    let began = now();
    let fetched = fetcher.fetch(scene.id, &scene.providers()[..holders], soon()).await.unwrap();
    let took = now() - began;
    assert_eq!((fetched.stored.len, fetched.received), (10 << 20, 10 << 20));
    assert_eq!(fetched.stored.durability, Durability::Durable);
    assert!(scene.has_it().await);
    let liars = ways.iter().filter(|(_, way)| !matches!(way, Way::Stalls(_))).count();
    assert_eq!(scene.taker.count("fetch_peers_dropped_total{reason=\"lied\"}"), liars as u64);
    assert_eq!(scene.taker.count("fetched_bytes_total"), 10 << 20);
    let mut told = 0;
    while let Some(event) = events.try_recv() {
        if let Heard::Item(FetchEvent::Dropped { error, .. }) = event {
            told += usize::from(error.is_lie());
        }
    }
    assert_eq!(told, liars, "each is reported");
    took
}

const BAD: [[(usize, Way); 2]; 6] = [
    [(0, Way::Lies(0)), (1, Way::Lies(300_000))],
    [(0, Way::Stalls(0)), (3, Way::Stalls(0))],
    [(0, Way::Stalls(0)), (1, Way::Stalls(0))],
    [(3, Way::Lies(0)), (4, Way::Lies(0))],
    [(0, Way::Lies(70_000)), (4, Way::Stalls(100_000))],
    [(2, Way::Babbles), (3, Way::Stalls(600_000))],
];

/// Two of five providers lie or stall, and who fetches can take what three of them send: at most half as long again as when all five
/// are honest.
#[tokio::test(start_paused = true)]
async fn two_of_five_may_lie_or_stall() {
    let downlink = Some(5 << 20);
    let honest = time(&[], 5, downlink).await;
    for bad in BAD {
        let took = time(&bad, 5, downlink).await;
        let ratio = took.as_secs_f64() / honest.as_secs_f64();
        println!("taker's line full: {ratio:.2} of five honest ones, {bad:?}");
        assert!(ratio <= 1.5, "{bad:?}: {took:?}, and five honest ones take {honest:?}");
    }
}

/// Where the lines of the providers are what is full, three carry three fifths of what five do, so it takes five thirds of the time
/// whatever anybody does. It takes little more than that.
#[tokio::test(start_paused = true)]
async fn two_of_five_take_with_them_what_they_would_have_sent_and_little_more() {
    let honest = time(&[], 5, None).await;
    let three = time(&[], 3, None).await;
    assert!(honest < three, "five are faster than three: {honest:?} and {three:?}");
    for bad in BAD {
        let took = time(&bad, 5, None).await;
        let ratio = |to: Duration| took.as_secs_f64() / to.as_secs_f64();
        println!("{:.2} of five honest ones, {:.2} of three, {bad:?}", ratio(honest), ratio(three));
        assert!(ratio(three) <= 1.2, "{bad:?}: {took:?}, and three honest ones take {three:?}");
        assert!(ratio(honest) <= 5.0 / 3.0 * 1.15, "{bad:?}: {took:?}, and five take {honest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_all_lengths_come_whole() {
    let world = World::new(8);
    let (one, other, taker) = (world.node(1).await, world.node(2).await, world.node(3).await);
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    for size in [0, 1, 65_536, 65_537, 200_000, 262_144, 262_145, 1 << 20, (1 << 20) + 1, 3_000_000] {
        let content = content(size, 2);
        let id = one.put(content.clone()).await;
        other.put(content.clone()).await;
        let fetched = fetcher.fetch(id, &[one.peer(), other.peer()], soon()).await.unwrap();
        assert_eq!((fetched.stored.id, fetched.stored.len, fetched.stored.existed), (id, size as u64, false));
        assert!(taker.store.get_bytes(id, u64::MAX, soon()).await.unwrap() == content, "{size}");
        let again = fetcher.fetch(id, &[], soon()).await.unwrap();
        assert!(again.stored.existed && again.received == 0);
        // What was fetched can be fetched.
        let back = Fetcher::new(one.links.clone(), &one.store);
        one.store.delete(id, soon()).await.unwrap();
        back.fetch(id, &[taker.peer()], soon()).await.unwrap();
    }
    let scrubbed = taker.store.scrub(soon()).await.unwrap();
    assert_eq!((scrubbed.objects, scrubbed.damaged.len()), (10, 0));
    assert_eq!(taker.count("fetches_total{result=\"done\"}"), 10);
    assert_eq!(taker.count("fetches_total{result=\"existed\"}"), 10);
    assert_eq!(taker.count("fetch_seconds_count"), 10, "of those that came");
}

/// What bytes wait for, and when they flowed.
#[derive(Debug)]
struct Meter {
    pacer: Pacer,
    flowed: std::sync::Mutex<Vec<(Duration, u64)>>,
    began: tokio::time::Instant,
}

impl Pace for Meter {
    fn take(&self, bytes: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move {
            self.pacer.take(bytes, deadline).await?;
            self.flowed.lock().unwrap().push((now() - self.began, bytes));
            Ok(())
        })
    }
}

/// A push within a rate flows evenly from its first byte to its last. It was paid for in one piece, beforehand, and then all of it
/// came at once, however large it was.
#[tokio::test(start_paused = true)]
async fn what_is_pushed_within_a_rate_flows_within_it() {
    const RATE: u64 = 1 << 20;
    let world = World::new(3);
    let (one, other) = (world.node(1).await, world.node(2).await);
    world.net.set_usual(Line { bandwidth: Some(100 << 20), ..Line::default() });
    let trusting = Rules { trusts: Some(Arc::new(|_: &NodeId| true)), ..Rules::default() };
    other.links.serve(&other.store, trusting);
    let id = one.put(content(6 << 20, 1)).await;
    let of = |number| NonZeroU64::new(number).unwrap();
    let meter = Arc::new(Meter {
        pacer: Pacer::new(of(RATE - RATE / 50), of(RATE / 50)),
        flowed: std::sync::Mutex::default(),
        began: now(),
    });
    let pace = Arc::clone(&meter) as Arc<dyn Pace>;
    let offer = Offer { id, len: 6 << 20, claim: Bytes::new() };
    let began = now();
    assert!(one.links.push_paced(&other.peer(), &offer, &pace, soon()).await.unwrap().is_durable);
    let took = (now() - began).as_secs_f64();
    assert!((5.9..7.0).contains(&took), "{took} s");
    let flowed = meter.flowed.lock().unwrap().clone();
    assert!(flowed.iter().map(|(_, bytes)| bytes).sum::<u64>() >= 6 << 20);
    for first in 0..flowed.len() {
        let second =
            flowed[first..].iter().take_while(|(at, _)| *at < flowed[first].0 + Duration::from_secs(1));
        assert!(second.map(|(_, bytes)| bytes).sum::<u64>() <= RATE);
    }
    // It is there already, so nothing flows and nothing is waited for.
    let began = now();
    assert!(one.links.push_paced(&other.peer(), &offer, &pace, soon()).await.unwrap().existed);
    assert!(now() - began < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_is_named_with_its_reason() {
    let scene = Scene::new(4_000_000).await;
    let unknown = ContentId::of(b"unknown");
    let fetcher = Fetcher::new(scene.bent(&[(3, Way::Lies(600_000))]), &scene.taker.store);
    assert_eq!(fetcher.fetch(unknown, &[], soon()).await, Err(FetchError::NoProviders));
    let closed = Rules { reads: Some(Arc::new(Word("secret"))), ..Rules::default() };
    scene.holders[1].links.serve(&scene.holders[1].store, closed);
    scene.holders[2].host.shutdown().await;
    scene.holders[0].store.delete(scene.id, soon()).await.unwrap();
    let providers = &scene.providers()[..4];
    let failed = fetcher.fetch(scene.id, providers, soon()).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Peer);
    let FetchError::AllFailed { peers } = failed else { panic!("{failed:?}") };
    let errors: Vec<_> = peers.iter().map(|peer| peer.error.clone().unwrap()).collect();
    assert_eq!(errors[0], PeerError::NotFound { id: scene.id });
    assert!(matches!(errors[1], PeerError::Forbidden { .. }), "{errors:?}");
    assert!(matches!(errors[2], PeerError::Unreachable { .. } | PeerError::Closed { .. }), "{errors:?}");
    assert!(errors[3].is_lie(), "{errors:?}");
    assert_eq!(scene.taker.count("fetches_total{result=\"failed\"}"), 2);
    // With the right word the second does.
    let peer = Peer { cap: "secret".into(), ..scene.holders[1].peer() };
    let fetched = fetcher.fetch(scene.id, &[peer], soon()).await.unwrap();
    assert!(fetched.received < 4_000_000, "what the liar sent before it lied is not fetched again");
    assert!(scene.has_it().await);
    // Nobody to ask, and the store does not say any more whether it is here: that has failed, too.
    scene.taker.host.shutdown().await;
    let stopped = fetcher.fetch(scene.id, &[], soon()).await;
    assert!(stopped.is_err(), "{stopped:?}");
    assert_eq!(scene.taker.count("fetches_total{result=\"failed\"}"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_goes_on_where_it_was_after_a_crash() {
    let scene = Scene::new(12 << 20).await;
    let disk = SimDisk::new();
    let settings = Settings { quota_bytes: Some(15 << 20), ..Settings::default() };
    let taker = scene.world.node_on(20, disk.clone(), settings.clone()).await;
    // Slow enough that some of it is written down on the way.
    scene.world.net.set_usual(Line { bandwidth: Some(1 << 18), ..Line::default() });
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    let mut events = fetcher.events();
    let providers = scene.providers();
    let fetch = fetcher.fetch(scene.id, &providers, soon());
    // Until four fifths are here, and the power goes.
    let far = async {
        loop {
            if let Heard::Item(FetchEvent::Moved { groups, of, .. }) = events.recv().await.unwrap() {
                if groups * 5 > of * 4 {
                    break;
                }
            }
        }
    };
    tokio::select! {
        fetched = fetch => panic!("too early: {fetched:?}"),
        () = far => {}
    }
    disk.crash();
    taker.host.shutdown().await;
    disk.restart(CrashStyle::LoseUnsynced);

    let taker = scene.world.node_on(21, disk.clone(), settings.clone()).await;
    let holding = scene.taker.links.have(&taker.peer(), &[scene.id], soon()).await.unwrap();
    assert_eq!(holding.held, [Held::Partial(12 << 20)]);
    // It counts: there is no room for another as long as it is kept.
    let other = taker.store.put_bytes(content(4 << 20, 5), soon()).await;
    assert!(matches!(other, Err(StorageError::Quota { .. })), "{other:?}");
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    let fetched = fetcher.fetch(scene.id, &scene.providers(), soon()).await.unwrap();
    assert!(fetched.received <= 7 << 20, "{} bytes came again", fetched.received);
    assert!(taker.store.get_bytes(scene.id, u64::MAX, soon()).await.unwrap() == scene.content);
    taker.host.shutdown().await;

    // And after a clean stop it is an object like others, with nothing beside it.
    let taker = scene.world.node_on(22, disk.clone(), settings).await;
    assert!(taker.store.opened().was_clean);
    assert!(taker.store.scrub(soon()).await.unwrap().damaged.is_empty());
    assert!(disk.list("store/partial".as_ref()).unwrap().is_empty());
    assert_eq!(disk.list("store/large".as_ref()).unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_comes_back_for_is_swept() {
    let scene = Scene::new(8 << 20).await;
    let disk = SimDisk::new();
    let settings = Settings {
        partial_keep: Duration::from_secs(100),
        quota_bytes: Some(12 << 20),
        ..Settings::default()
    };
    let taker = scene.world.node_on(20, disk.clone(), settings.clone()).await;
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    let late = fetcher.fetch(scene.id, &scene.providers()[..1], Deadline::after(ms(500))).await;
    assert!(matches!(late, Err(FetchError::Timeout { .. })), "{late:?}");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(disk.list("store/large".as_ref()).unwrap().len(), 2);
    // A clean stop leaves it for the next start.
    taker.host.shutdown().await;
    let taker = scene.world.node_on(21, disk.clone(), settings).await;
    assert!(taker.store.opened().was_clean);
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(disk.list("store/large".as_ref()).unwrap().len(), 2);
    assert!(matches!(
        taker.store.put_bytes(content(8 << 20, 6), soon()).await,
        Err(StorageError::Quota { .. })
    ));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(disk.list("store/large".as_ref()).unwrap().len(), 0);
    taker.store.put_bytes(content(8 << 20, 6), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_object_is_fetched_once_by_whoever_asks() {
    let scene = Scene::new(3_000_000).await;
    let fetcher = Fetcher::new(scene.taker.links.clone(), &scene.taker.store);
    let providers = scene.providers();
    let both = async {
        let fetch = || fetcher.fetch(scene.id, &providers, soon());
        tokio::join!(fetch(), fetch())
    };
    let (one, other) = both.await;
    let received = [one.unwrap().received, other.unwrap().received];
    assert_eq!(received.iter().sum::<u64>(), 3_000_000);
    let pinned = Put { pin: true, ..Put::default() };
    fetcher.fetch_with(scene.id, &providers, pinned, soon()).await.unwrap();
    assert!(scene.taker.store.stat(scene.id, soon()).await.unwrap().is_pinned);
}

#[tokio::test(start_paused = true)]
async fn a_download_comes_in_order_and_no_farther_than_its_reader() {
    let scene = Scene::new(8 << 20).await;
    let settings = FetchSettings { ahead_bytes: 1 << 20, ..FetchSettings::default() };
    // One is slow, and all of what it owes is needed at some time.
    scene.world.net.set_line(ip(2), ip(9), Line { bandwidth: Some(1 << 20), ..Line::default() });
    let fetcher = Fetcher::new(scene.bent(&[(4, Way::Lies(100))]), &scene.taker.store).settings(settings);
    let mut download = fetcher.download(scene.id, &scene.providers(), soon()).unwrap();
    let mut all = BytesMut::new();
    while let Some(bytes) = download.next().await.unwrap() {
        if all.is_empty() {
            // Whoever does not read is not sent much.
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert!(scene.taker.count("fetched_bytes_total") <= 3 << 20);
        }
        all.extend_from_slice(&bytes);
    }
    assert!(all == scene.content);
    assert_eq!(download.len(), Some(8 << 20));
    assert!(download.peers().iter().any(|peer| peer.error.as_ref().is_some_and(PeerError::is_lie)));
    assert!(!scene.taker.store.has(scene.id, soon()).await.unwrap());
}

#[tokio::test]
async fn over_tls_into_a_file() {
    let (one, other, taker) = (real(1).await, real(2).await, real(3).await);
    let content = content(5_000_000, 4);
    let id = one.put(content.clone()).await;
    other.put(content.clone()).await;
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path().to_owned()).unwrap();
    let file = Arc::new(disk.create("it".as_ref()).unwrap());
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    let len = fetcher.fetch_into(id, &[one.peer(), other.peer()], file, soon()).await.unwrap();
    assert_eq!(len, 5_000_000);
    assert!(std::fs::read(dir.path().join("it")).unwrap() == content);
    drop(disk.open("it".as_ref(), Access::Read).unwrap());
    fetcher.fetch(id, &[one.peer(), other.peer()], soon()).await.unwrap();
    assert!(taker.store.get_bytes(id, u64::MAX, soon()).await.unwrap() == content);
    for node in [&one, &other, &taker] {
        node.host.shutdown().await;
    }
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scene")
    }
}
