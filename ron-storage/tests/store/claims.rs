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
