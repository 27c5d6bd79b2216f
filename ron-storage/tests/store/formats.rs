//! The bytes on disk are those that `docs/formats.md` describes.

use std::{path::Path, sync::Arc};

use ron_core::{
    ContentId,
    journal::{Item, Opening, Position, Segments},
    sim::SimDisk,
};
use ron_storage::{Settings, Store};

use super::{
    limits::host,
    world::{content, soon},
};

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[tokio::test(start_paused = true)]
async fn files_are_as_documented() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings { small_bytes_max: 1000, ..Settings::default() };
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").seed(1).settings(settings.clone());
    let store = builder.start(&host).await.unwrap();
    let small = store.put_bytes("hello".into(), soon()).await.unwrap().id;
    let bytes = content(200_000, 1);
    let large = store.put_bytes(bytes.clone(), soon()).await.unwrap().id;
    let gone = store.put_bytes("gone".into(), soon()).await.unwrap().id;
    store.delete(gone, soon()).await.unwrap();
    store.pin(large, soon()).await.unwrap();
    store.pin(small, soon()).await.unwrap();
    store.unpin(small, soon()).await.unwrap();
    assert!(disk.bytes("store/OPEN").is_some());
    host.shutdown().await;
    assert!(disk.bytes("store/OPEN").is_none());

    let file = disk.bytes("store/STORE").unwrap();
    assert_eq!(file.len(), 48);
    assert_eq!(file[..16], *b"\x89RONS\r\n\x1a\0\0\0\x01\0\0\0\0");
    assert_eq!(file[32..], ContentId::of(&file[..32]).as_bytes()[..16]);
    let store_number = &file[16..32];

    assert_eq!(disk.bytes("store/large/0000000000000001.dat").unwrap(), bytes);
    let tree = disk.bytes("store/large/0000000000000001.tree").unwrap();
    assert_eq!(tree.len(), 64 + 3 * 64);
    assert_eq!(tree[..16], *b"\x89RONT\r\n\x1a\0\x01\0\0\0\0\0\0");
    assert_eq!((&tree[16..48], number(&tree, 48)), (&large.as_bytes()[..], 200_000));
    assert_eq!(tree[56..64], ContentId::of(&tree[..56]).as_bytes()[..8]);

    let journal_settings = ron_core::journal::Settings { opening: Opening::ReadAll, ..Default::default() };
    let (journal, _) =
        Segments::open(Arc::new(disk.clone()), Path::new("store/log"), journal_settings).unwrap();
    let records: Vec<_> = journal
        .scan(Position::START)
        .map(|item| match item.unwrap() {
            Item::Record(record) => record,
            Item::Damaged(damage) => panic!("{damage:?}"),
        })
        .collect();
    let kinds: Vec<u8> = records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [1, 2, 1, 3, 4, 4, 5, 7]);
    assert_eq!((&records[0].payload[..], records[0].name), (&b"hello"[..], small));
    let named = [large.as_bytes(), &1u64.to_be_bytes()[..], &200_000u64.to_be_bytes()].concat();
    assert_eq!(records[1].payload, named);
    assert_eq!(records[3].payload, &gone.as_bytes()[..]);
    assert_eq!(records[4].payload, &large.as_bytes()[..]);

    let index = disk.bytes("store/index").unwrap();
    assert_eq!(index.len(), 96 + 2 * 48 + 32);
    assert_eq!(index[..16], *b"\x89RONI\r\n\x1a\0\x01\0\0\0\0\0\0");
    assert_eq!((&index[16..32], &index[32..48]), (store_number, &records[7].payload[..]));
    let place = |at: Position| at.segment << 32 | u64::from(at.offset);
    assert_eq!(number(&index, 48), place(records[7].position));
    assert_eq!((number(&index, 56), number(&index, 64)), (place(records[7].position), 2));
    let end = index.len() - 32;
    assert_eq!(index[end..], *ContentId::of(&index[..end]).as_bytes());
    for entry in index[96..end].chunks(48) {
        if entry[..32] == *large.as_bytes() {
            assert_eq!((number(entry, 32), number(entry, 40)), (1, 1 << 63 | 1 << 62 | 200_000));
        } else {
            assert_eq!(entry[..32], *small.as_bytes());
            assert_eq!((number(entry, 32), number(entry, 40)), (place(records[0].position), 5));
        }
    }
}

/// The rules for copies in `docs/operating.md`, followed on a store that is open.
#[tokio::test(start_paused = true)]
async fn a_copy_made_by_the_rules_is_a_store() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings { small_bytes_max: 1000, ..Settings::default() };
    let start = |disk: &SimDisk| {
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings.clone()).start(&host)
    };
    let store = start(&disk).await.unwrap();
    store.reload(Settings { garbage_max: 1.0, ..settings.clone() }).unwrap();
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(
            store
                .put_bytes(content(if number % 5 == 0 { 70_000 } else { 300 }, number), soon())
                .await
                .unwrap()
                .id,
        );
    }
    let copy = SimDisk::new();
    for dir in ["store/large", "store/log", "store"] {
        for entry in ron_core::disk::Disk::list(&disk, Path::new(dir)).unwrap() {
            if entry.is_file && !["LOCK", "OPEN", "index"].contains(&entry.name.as_str()) {
                let path = Path::new(dir).join(&entry.name);
                copy.put(&path, &disk.bytes(&path).unwrap());
            }
            // What comes while the copy is made may or may not be in it.
            store.put_bytes(content(100, 1000 + fastrand::u64(..)), soon()).await.unwrap();
        }
    }
    copy.put("store/OPEN", b"");
    let restored = start(&copy).await.unwrap();
    for id in ids {
        assert_eq!(
            restored.get_bytes(id, 70_000, soon()).await.unwrap(),
            store.get_bytes(id, 70_000, soon()).await.unwrap()
        );
    }
    assert!(restored.scrub(soon()).await.unwrap().damaged.is_empty());
    host.shutdown().await;
}
