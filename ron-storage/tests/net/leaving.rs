//! What is left when somebody stops in the middle, pauses, or comes by another way.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use ron_core::{
    ContentId, Deadline, Event as Heard, NodeId,
    disk::Disk,
    sim::{Line, SimDisk},
};
use ron_storage::{
    Settings,
    fetch::{FetchError, FetchEvent, FetchSettings, Fetcher},
    peers::{Decline, Offer, PeerError, Peers, Rules},
};

use crate::world::{Node, World, content, ms, soon};

/// A node with an object of eight mebibytes, and one with room for that and half of it.
struct Pair {
    world: World,
    one: Node,
    taker: Node,
    disk: SimDisk,
    content: Bytes,
    id: ContentId,
}

fn tight() -> Settings {
    Settings { quota_bytes: Some(12 << 20), ..Settings::default() }
}

impl Pair {
    async fn new(settings: Settings) -> Pair {
        let (world, disk, content) = (World::new(11), SimDisk::new(), content(8 << 20, 1));
        let (one, taker) = (world.node(1).await, world.node_on(2, disk.clone(), settings).await);
        let id = one.put(content.clone()).await;
        Pair { world, one, taker, disk, content, id }
    }

    fn fetcher(&self) -> Fetcher {
        Fetcher::new(self.taker.links.clone(), &self.taker.store)
    }

    /// A fetch that is called off as soon as it says this.
    async fn call_off(&self, is_enough: impl Fn(&FetchEvent) -> bool) {
        let fetcher = self.fetcher();
        let mut events = fetcher.events();
        let providers = [self.one.peer()];
        let said = async {
            loop {
                if let Heard::Item(event) = events.recv().await.unwrap() {
                    if is_enough(&event) {
                        break;
                    }
                }
            }
        };
        tokio::select! {
            fetched = fetcher.fetch(self.id, &providers, soon()) => panic!("too early: {fetched:?}"),
            () = said => {}
        }
    }

    async fn has_it(&self, taker: &Node) -> bool {
        taker.store.get_bytes(self.id, u64::MAX, soon()).await.unwrap() == self.content
    }

    fn files(&self) -> usize {
        self.disk.list("store/large".as_ref()).unwrap().len()
    }
}

fn is_far(event: &FetchEvent) -> bool {
    matches!(event, FetchEvent::Moved { groups, .. } if *groups >= 64)
}

/// Jobs of the first are still under way when the second begins: that goes on with what they leave.
#[tokio::test(start_paused = true)]
async fn what_was_called_off_is_gone_on_with_at_once() {
    let pair = Pair::new(tight()).await;
    pair.call_off(is_far).await;
    let fetched = pair.fetcher().fetch(pair.id, &[pair.one.peer()], soon()).await.unwrap();
    assert!(fetched.received <= 5 << 20, "{} bytes came again", fetched.received);
    assert!(pair.has_it(&pair.taker).await);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(pair.files(), 2);
    pair.taker.store.put_bytes(content(3 << 20, 2), soon()).await.unwrap();
}

/// Wherever a fetch is called off, what was kept for it is given back once, and no more.
#[tokio::test(start_paused = true)]
async fn what_is_called_off_before_anything_is_written_keeps_nothing() {
    let settings = Settings { quota_objects: Some(10), ..tight() };
    let pair = Pair::new(settings).await;
    pair.call_off(|event| matches!(event, FetchEvent::Began { .. })).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(pair.files(), 0);
    pair.taker.store.put_bytes(content(11 << 20, 2), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_comes_by_another_way_is_not_kept_twice() {
    let pair = Pair::new(Settings { quota_bytes: Some(20 << 20), ..Settings::default() }).await;
    pair.call_off(is_far).await;
    pair.taker.store.put_bytes(pair.content.clone(), soon()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(pair.files(), 2);
    pair.taker.store.put_bytes(content(8 << 20, 2), soon()).await.unwrap();
    // And so it is if it came directly before a clean stop.
    pair.taker.host.shutdown().await;
    assert_eq!(pair.files(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_a_damaged_note_was_about_does_not_stay() {
    let pair = Pair::new(tight()).await;
    pair.call_off(is_far).await;
    pair.taker.host.shutdown().await;
    let notes = pair.disk.list("store/partial".as_ref()).unwrap();
    assert_eq!((notes.len(), pair.files()), (1, 2));
    let (note, other) = (format!("store/partial/{}", notes[0].name), pair.disk.fork());
    pair.disk.flip_bit(&note, 70);
    other.spoil(&note, 70);
    for (number, disk) in [(3, &pair.disk), (4, &other)] {
        let taker = pair.world.node_on(number, disk.clone(), tight()).await;
        assert!(taker.store.opened().was_clean);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(disk.list("store/large".as_ref()).unwrap().is_empty());
        taker.store.put_bytes(content(11 << 20, 2), soon()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_of_a_part_comes_again() {
    let pair = Pair::new(tight()).await;
    pair.call_off(is_far).await;
    pair.taker.host.shutdown().await;
    let files = pair.disk.list("store/large".as_ref()).unwrap();
    let data = files.iter().find(|file| file.name.ends_with(".dat")).unwrap();
    pair.disk.spoil(format!("store/large/{}", data.name), 70_000);
    let taker = pair.world.node_on(3, pair.disk.clone(), tight()).await;
    let fetcher = Fetcher::new(taker.links.clone(), &taker.store);
    let fetched = fetcher.fetch(pair.id, &[pair.one.peer()], soon()).await.unwrap();
    // What was not there, what was on its way to the disk, and the group that cannot be read.
    assert!(fetched.received <= (5 << 20) + (64 << 10), "{} bytes came again", fetched.received);
}

/// There is no room for two of it, and one of the two is damaged.
#[tokio::test(start_paused = true)]
async fn a_damaged_object_is_mended_where_there_is_no_other_room() {
    let pair = Pair::new(tight()).await;
    pair.taker.put(pair.content.clone()).await;
    let files = pair.disk.list("store/large".as_ref()).unwrap();
    let data = files.iter().find(|file| file.name.ends_with(".dat")).unwrap();
    pair.disk.flip_bit(format!("store/large/{}", data.name), 1_000_000);
    assert_eq!(pair.taker.store.scrub(soon()).await.unwrap().damaged.len(), 1);
    pair.fetcher().fetch(pair.id, &[pair.one.peer()], soon()).await.unwrap();
    assert!(pair.has_it(&pair.taker).await);
}

#[tokio::test(start_paused = true)]
async fn an_offer_that_was_taken_back_is_made_again() {
    let pair = Pair::new(tight()).await;
    let rules = Rules { trusts: Some(Arc::new(|_: &NodeId| true)), ..Rules::default() };
    pair.taker.links.serve(&pair.taker.store, rules);
    pair.world.net.set_usual(Line { bandwidth: Some(1 << 20), ..Line::default() });
    let offer = |len| Offer { id: pair.id, len, claim: Bytes::new() };
    let (peer, whole) = (pair.taker.peer(), offer(8 << 20));
    let late = pair.one.links.push(&peer, &whole, Deadline::after(ms(4000))).await;
    assert!(matches!(late, Err(PeerError::Timeout { .. })), "{late:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(pair.one.links.push(&peer, &whole, soon()).await.is_ok());
    assert!(pair.taker.count("fetched_bytes_total") < 10 << 20, "what came is not sent again");
    // What a host judges by is true.
    for len in [(8 << 20) - 1, (8 << 20) + 1] {
        let lie = pair.one.links.push(&peer, &offer(len), soon()).await;
        assert!(matches!(lie, Err(PeerError::Declined(Decline::Source { .. }))), "{len}: {lie:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn peers_are_not_blamed_for_a_reader_who_pauses() {
    let pair = Pair::new(tight()).await;
    let settings = FetchSettings { ahead_bytes: 2 << 20, ..FetchSettings::default() };
    let fetcher = pair.fetcher().settings(settings);
    let mut download = fetcher.download(pair.id, &[pair.one.peer()], soon()).unwrap();
    let mut all = BytesMut::new();
    while let Some(bytes) = download.next().await.unwrap() {
        all.extend_from_slice(&bytes);
        if all.len() == 20 * 65_536 {
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    }
    assert!(all == pair.content);
}

/// However it ends, and wherever it goes.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_fetch_is_told() {
    let pair = Pair::new(tight()).await;
    let (fetcher, providers) = (pair.fetcher(), [pair.one.peer()]);
    let mut events = fetcher.events();
    let mut ends = || {
        let mut ends = Vec::new();
        while let Some(event) = events.try_recv() {
            if let Heard::Item(FetchEvent::Ended { id, is_complete }) = event {
                ends.push((id, is_complete));
            }
        }
        ends
    };
    let late = fetcher.fetch(pair.id, &providers, Deadline::after(ms(200))).await;
    assert!(matches!(late, Err(FetchError::Timeout { .. })), "{late:?}");
    assert_eq!(ends(), [(pair.id, false)]);
    let called_off = tokio::time::timeout(ms(200), fetcher.fetch(pair.id, &providers, soon())).await;
    assert!(called_off.is_err());
    assert_eq!(ends(), [(pair.id, false)]);
    let file = Arc::new(pair.disk.create("it".as_ref()).unwrap());
    fetcher.fetch_into(pair.id, &providers, file, soon()).await.unwrap();
    assert_eq!(ends(), [(pair.id, true)]);
    for id in [pair.one.put(Bytes::new()).await, pair.one.put(content(100_000, 3)).await] {
        let mut download = fetcher.download(id, &providers, soon()).unwrap();
        while download.next().await.unwrap().is_some() {}
        drop(download);
        assert_eq!(ends(), [(id, true)]);
    }
    drop(fetcher.download(pair.id, &providers, soon()).unwrap());
    assert_eq!(ends(), [(pair.id, false)]);
}

#[tokio::test(start_paused = true)]
async fn who_has_an_object_that_is_too_long_is_no_liar() {
    let pair = Pair::new(Settings { object_bytes_max: 1 << 20, ..Settings::default() }).await;
    let failed = pair.fetcher().fetch(pair.id, &[pair.one.peer()], soon()).await;
    let Err(FetchError::AllFailed { peers }) = failed else { panic!("{failed:?}") };
    let error = peers[0].error.clone().unwrap();
    assert!(!error.is_lie(), "{error}");
    assert_eq!(pair.taker.count("fetch_peers_dropped_total{reason=\"lied\"}"), 0);
}
