//! What is claimed stays, what is deleted stays deleted, and both survive a restart.

use std::{path::Path, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Supervisor,
    disk::Disk,
    net::Identity,
    sim::{CrashStyle, SimDisk},
};
use ron_storage::{
    Gc, Settings, StorageError, Store,
    claims::{Claim, Manifest, Merged, RETENTION_MIN, Standing, Verified, Word},
};

use crate::world::{Place, content, soon};

fn owner() -> Identity {
    Identity::from_seed(&[5; 32])
}

fn say(id: ContentId, version: u64, word: Word) -> Verified {
    Claim::sign(&owner(), (id, 3), version, 0, word).unwrap()
}

const GONE: Word = Word::Tombstone { retention: RETENTION_MIN };

async fn start(place: &Place, host: &Supervisor) -> Store {
    let settings = Settings { collect_grace: Duration::ZERO, ..Settings::default() };
    place.builder().settings(settings).start(host).await.unwrap()
}

#[tokio::test]
async fn what_is_claimed_is_neither_collected_nor_deleted() {
    for place in Place::all() {
        let host = Supervisor::new("test");
        let store = start(&place, &host).await;
        let [kept, other] = [1, 2].map(|seed| content(3, seed));
        let kept = store.put_bytes(kept, soon()).await.unwrap().id;
        let other = store.put_bytes(other, soon()).await.unwrap().id;
        assert_eq!(store.claim(say(kept, 1, Word::Copies(2)), None, soon()).await, Ok(Merged::New));
        assert_eq!(store.claim(say(kept, 1, Word::Copies(2)), None, soon()).await, Ok(Merged::Same));
        assert_eq!(store.delete(kept, soon()).await, Err(StorageError::Claimed { id: kept }));
        assert_eq!(store.gc(Gc::new(), soon()).await.unwrap().objects, 1);
        assert!(store.has(kept, soon()).await.unwrap() && !store.has(other, soon()).await.unwrap());
        assert_eq!(store.claim(say(kept, 2, GONE), None, soon()).await, Ok(Merged::New));
        assert_eq!(store.claim(say(kept, 1, Word::Copies(2)), None, soon()).await, Ok(Merged::Older));
        assert_eq!(store.standing(&kept), Standing::Deleted);
        assert_eq!(store.delete(kept, soon()).await, Ok(true));
        host.shutdown().await;
    }
}

#[tokio::test]
async fn claims_survive_a_restart() {
    let place = Place::real();
    let ids: Vec<_> = (0..40_u64).map(|number| ContentId::of(&number.to_be_bytes())).collect();
    let host = Supervisor::new("test");
    let store = start(&place, &host).await;
    assert!(!has_claims(&place), "a store that nobody shares has no such journal");
    for (number, id) in ids.iter().enumerate() {
        let word = if number % 2 == 0 { Word::Copies(3) } else { GONE };
        store.claim(say(*id, 7, word), None, soon()).await.unwrap();
    }
    host.shutdown().await;
    let host = Supervisor::new("test");
    let store = start(&place, &host).await;
    for (number, id) in ids.iter().enumerate() {
        let standing = store.standing(id);
        assert_eq!(matches!(standing, Standing::Live(_)), number % 2 == 0, "{number}: {standing:?}");
        assert_eq!(store.claim(say(*id, 6, Word::Copies(2)), None, soon()).await, Ok(Merged::Older));
    }
    host.shutdown().await;
}

/// The journal of claims does not grow with what was said, but with what is known.
#[tokio::test]
async fn what_was_said_long_ago_takes_no_room() {
    let disk = SimDisk::new();
    let host = Supervisor::new("test");
    let store = Store::builder().data(Arc::new(disk.clone()), "store").start(&host).await.unwrap();
    let (many, other) = (ContentId::of(b"many"), ContentId::of(b"other"));
    store.claim(say(other, 1, GONE), None, soon()).await.unwrap();
    let shards = (0..32_u8).map(|index| ContentId::of(&[index])).collect();
    let manifest = Manifest { object: many, len: 3, data: 24, shards };
    let mut longest = 0;
    for version in 1..=4000_u64 {
        let claim = say(many, version, Word::Erasure(manifest.coding()));
        store.claim(claim, Some(manifest.clone()), soon()).await.unwrap();
        if version % 100 == 0 {
            longest = longest.max(disk.list(Path::new("store/claims")).unwrap().len());
        }
    }
    // Three segments are slack, and the one that is being written and the next are there besides. Six were written in all.
    while disk.list(Path::new("store/claims")).unwrap().len() > 5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(longest >= 3, "{longest} files");
    host.shutdown().await;
    let host = Supervisor::new("test");
    let store = Store::builder().data(Arc::new(disk.clone()), "store").start(&host).await.unwrap();
    assert_eq!((store.claims(&many)[0].version, store.standing(&other)), (4000, Standing::Deleted));
    host.shutdown().await;
}

fn writes(disk: &SimDisk) -> usize {
    disk.log().iter().filter(|call| call.path.starts_with("store/claims")).count()
}

/// Whoever may tell a node claims may tell it the same old ones for ever. They were written down each time before they were
/// looked at.
#[tokio::test]
async fn what_is_old_or_finds_no_room_is_not_written() {
    let disk = SimDisk::new();
    let host = Supervisor::new("test");
    let store = Store::builder().data(Arc::new(disk.clone()), "store").start(&host).await.unwrap();
    let id = ContentId::of(b"x");
    for number in 0..64_u8 {
        let owner = Identity::from_seed(&[number + 100; 32]);
        let claim = Claim::sign(&owner, (id, 3), 2, 0, Word::Pin).unwrap();
        store.claim(claim, None, soon()).await.unwrap();
    }
    let before = writes(&disk);
    let old = Claim::sign(&Identity::from_seed(&[100; 32]), (id, 3), 1, 0, GONE).unwrap();
    for _ in 0..100 {
        assert_eq!(store.claim(old.clone(), None, soon()).await, Ok(Merged::Older));
        let refused = store.claim(say(id, 1, Word::Pin), None, soon()).await;
        assert!(matches!(refused, Err(StorageError::Claim { .. })), "{refused:?}");
    }
    assert_eq!(writes(&disk), before);
    host.shutdown().await;
}

/// What a manifest takes in the journal is needed there, too. It was not counted, so that a store with many objects in shards wrote
/// all of its claims anew every time it looked.
#[tokio::test(start_paused = true)]
async fn manifests_are_not_written_anew_for_ever() {
    let disk = SimDisk::new();
    let host = Supervisor::builder("test").inline_blocking(true).start();
    let store = Store::builder().data(Arc::new(disk.clone()), "store").start(&host).await.unwrap();
    for number in 0..4000_u32 {
        let object = ContentId::of(&number.to_be_bytes());
        let shards = (0..32_u32).map(|at| ContentId::of(&(number * 32 + at).to_le_bytes())).collect();
        let manifest = Manifest { object, len: 3, data: 24, shards };
        let claim = say(object, 1, Word::Erasure(manifest.coding()));
        store.claim(claim, Some(manifest), soon()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let before = writes(&disk);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(writes(&disk), before);
    host.shutdown().await;
}

fn has_claims(place: &Place) -> bool {
    let Place::Real(dir) = place else { return false };
    dir.path().join("store/claims").exists()
}

#[tokio::test]
async fn shards_and_manifests_of_what_is_claimed_stay() {
    let host = Supervisor::new("test");
    let store = start(&Place::Memory, &host).await;
    let shards = [1, 2, 3].map(|seed| content(64, seed));
    let mut ids = Vec::new();
    for shard in shards {
        ids.push(store.put_bytes(shard, soon()).await.unwrap().id);
    }
    let object = ContentId::of(b"whole");
    let manifest = Manifest { object, len: 100, data: 2, shards: ids[..2].to_vec() };
    // A third one makes it 2+1; without it there is no such policy.
    let manifest = Manifest { shards: ids.clone(), ..manifest };
    let stored = store.put_bytes(manifest.encode().into(), soon()).await.unwrap().id;
    assert_eq!(stored, manifest.id());
    let word = Word::Erasure(manifest.coding());
    let refused = store.claim(say(object, 1, word), None, soon()).await;
    assert!(matches!(refused, Err(StorageError::Claim { .. })), "{refused:?}");
    let foreign = Manifest { len: 5, ..manifest.clone() };
    assert!(store.claim(say(object, 1, word), Some(foreign), soon()).await.is_err());
    store.claim(say(object, 1, word), Some(manifest.clone()), soon()).await.unwrap();
    assert_eq!(store.gc(Gc::new(), soon()).await.unwrap().objects, 0);
    assert_eq!(store.delete(ids[1], soon()).await, Err(StorageError::Claimed { id: ids[1] }));
    store.claim(say(object, 2, Word::Copies(2)), None, soon()).await.unwrap();
    assert_eq!(store.gc(Gc::new(), soon()).await.unwrap().objects, 4);
    host.shutdown().await;
}

/// One more version after the other, on a disk that crashes at a call. Says which was acknowledged last, and whether the disk
/// made it to the end.
async fn script(disk: &SimDisk) -> (u64, bool) {
    let host = Supervisor::new("test");
    let mut acknowledged = 0;
    if let Ok(store) = Store::builder().data(Arc::new(disk.clone()), "store").seed(1).start(&host).await {
        for version in 1..=3 {
            let word = if version % 2 == 0 { GONE } else { Word::Copies(2) };
            if store.claim(say(ContentId::of(b"x"), version, word), None, soon()).await.is_ok() {
                acknowledged = version;
            }
        }
    }
    host.shutdown().await;
    (acknowledged, !disk.is_crashed())
}

/// What was acknowledged is there after a crash, at whichever call to the journal of claims that was.
#[test]
fn an_acknowledged_claim_survives_every_crash() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let whole = SimDisk::new();
    assert_eq!(runtime().block_on(script(&whole)), (3, true));
    let log = whole.log();
    let of_claims = log.iter().filter(|call| call.path.starts_with("store/claims"));
    let calls: Vec<u64> = of_claims.map(|call| call.number).collect();
    assert!(calls.len() > 10, "{} calls", calls.len());
    for call in calls {
        let disk = SimDisk::new();
        disk.crash_at_call(call);
        let (acknowledged, _) = runtime().block_on(script(&disk));
        let scrambled = CrashStyle::Scramble { seed: call };
        for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, scrambled] {
            let left = disk.fork();
            left.restart(style);
            runtime().block_on(async {
                let host = Supervisor::new("test");
                let store =
                    Store::builder().data(Arc::new(left), "store").seed(2).start(&host).await.unwrap();
                let known = store.claims(&ContentId::of(b"x")).first().map_or(0, |claim| claim.version);
                assert!(
                    (acknowledged..=3).contains(&known),
                    "call {call}, {style:?}: {known} of {acknowledged}"
                );
                host.shutdown().await;
            });
        }
    }
}

/// Whoever says something and does not wait for it cannot know whether it is written. If a restart finds it, it counted before, too:
/// or what it needs would have been deleted meanwhile, because of the word before it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_restart_finds_counts_before() {
    let (id, mut found_later) = (ContentId::of(b"x"), 0);
    let known = |store: &Store| store.claims(&id).first().map_or(0, |claim| claim.version);
    let start = async |disk: &SimDisk| {
        let paced = disk.clone();
        let host =
            Supervisor::builder("test").inline_blocking(true).inline_pace(move || paced.pace()).start();
        let store =
            Store::builder().data(Arc::new(disk.clone()), "store").seed(1).start(&host).await.unwrap();
        (host, store)
    };
    for millis in (0..40).step_by(4) {
        let disk = SimDisk::new();
        let (host, store) = start(&disk).await;
        assert_eq!(store.claim(say(id, 1, Word::Copies(2)), None, soon()).await, Ok(Merged::New));
        disk.slow_down(Duration::from_millis(10));
        let claim = store.claim(say(id, 2, Word::Copies(3)), None, soon());
        let is_told = tokio::time::timeout(Duration::from_millis(millis), claim).await.is_ok();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, left) = (known(&store), disk.fork());
        // Said again, and waited for, it is written.
        assert!(store.claim(say(id, 2, Word::Copies(3)), None, soon()).await.is_ok());
        let again = disk.fork();
        for (disk, least) in [(&left, if is_told { 2 } else { 1 }), (&again, 2)] {
            disk.restart(CrashStyle::LoseUnsynced);
            disk.slow_down(Duration::ZERO);
            let (host, store) = start(disk).await;
            let after = known(&store);
            assert!((least..=2).contains(&after), "{millis} ms: {after}");
            if least == 1 {
                assert!(before >= after, "{millis} ms: {after} after a restart, and {before} before it");
                found_later += u64::from(after == 2);
            }
            host.shutdown().await;
        }
        host.shutdown().await;
    }
    assert!(found_later > 0, "one of them was written though nobody waited");
}
