//! What is compared: each finds the 16 bytes of an entry by the 32 of a name.

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use redb::{Durability, ReadableDatabase, TableDefinition};
use ron_core::ContentId;
use ron_storage::logic::table::{ENTRY_BYTES, Entry, Home, Spot, Table};

pub(crate) trait Engine {
    /// Takes note of the objects of one commit.
    fn insert(&mut self, objects: &[([u8; 32], [u8; 16])], synced: bool);
    fn get(&self, id: &[u8; 32]) -> Option<[u8; 16]>;
    /// Leaves everything so that it can be opened again.
    fn close(self: Box<Self>);
}

/// The table in memory and its copy, with the store's own code but for the record in the journal that the copy names.
pub(crate) struct Ours {
    table: Table,
    path: PathBuf,
}

impl Ours {
    pub(crate) fn open(dir: &Path) -> Self {
        let path = dir.join("index");
        let mut table = Table::default();
        if let Ok(mut file) = File::open(&path) {
            let (mut sum, mut step) = (blake3::Hasher::new(), vec![0; ENTRY_BYTES << 16]);
            let mut left = file.metadata().expect("it is open").len() - 32;
            while left > 0 {
                let wanted = step.len().min(usize::try_from(left).expect("it is 48 MB long"));
                file.read_exact(&mut step[..wanted]).expect("it is as long as it says");
                sum.update(&step[..wanted]);
                for entry in step[..wanted].chunks_exact(ENTRY_BYTES) {
                    table.insert(Entry::decode(entry.first_chunk().expect("a chunk of this size")));
                }
                left -= wanted as u64;
            }
            let mut found = [0; 32];
            file.read_exact(&mut found).expect("it is as long as it says");
            assert_eq!(found, *sum.finalize().as_bytes(), "the copy is what was written");
        }
        Ours { table, path }
    }
}

impl Engine for Ours {
    fn insert(&mut self, objects: &[([u8; 32], [u8; 16])], _synced: bool) {
        for (id, entry) in objects {
            let number = |at: usize| u64::from_be_bytes(*entry[at..].first_chunk().expect("eight bytes"));
            let (id, home) = (ContentId::from_bytes(*id), Home::Small(Spot::from_number(number(0))));
            self.table.insert(Entry { id, home, len: number(8), is_pinned: false, is_bad: false });
        }
    }

    fn get(&self, id: &[u8; 32]) -> Option<[u8; 16]> {
        let entry = self.table.get(&ContentId::from_bytes(*id))?.encode();
        entry[32..].first_chunk().copied()
    }

    fn close(self: Box<Self>) {
        let mut file = File::create(&self.path).expect("the file can be made");
        let (mut sum, mut after): (_, Option<ContentId>) = (blake3::Hasher::new(), None);
        loop {
            let (page, more) = self.table.page(after.as_ref(), 1 << 16);
            let bytes: Vec<u8> = page.iter().flat_map(Entry::encode).collect();
            sum.update(&bytes);
            file.write_all(&bytes).expect("the disk has room");
            after = page.last().map(|last| last.id);
            if !more {
                break;
            }
        }
        file.write_all(sum.finalize().as_bytes()).expect("the disk has room");
        file.sync_all().expect("the disk works");
    }
}

pub(crate) struct Fjall {
    database: Database,
    index: Keyspace,
}

impl Fjall {
    pub(crate) fn open(dir: &Path) -> Self {
        let database = Database::builder(dir).open().expect("fjall opens");
        let index = database.keyspace("index", KeyspaceCreateOptions::default).expect("fjall opens");
        Fjall { database, index }
    }
}

impl Engine for Fjall {
    fn insert(&mut self, objects: &[([u8; 32], [u8; 16])], synced: bool) {
        let mode = if synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (id, entry) in objects {
            batch.insert(&self.index, &id[..], &entry[..]);
        }
        batch.commit().expect("fjall commits");
    }

    fn get(&self, id: &[u8; 32]) -> Option<[u8; 16]> {
        self.index.get(id).expect("fjall reads")?.first_chunk().copied()
    }

    fn close(self: Box<Self>) {
        self.database.persist(PersistMode::SyncAll).expect("fjall syncs");
    }
}

const TABLE: TableDefinition<&[u8; 32], &[u8; 16]> = TableDefinition::new("index");

pub(crate) struct Redb(redb::Database);

impl Redb {
    pub(crate) fn open(dir: &Path) -> Self {
        Redb(redb::Database::create(dir.join("index")).expect("redb opens"))
    }
}

impl Engine for Redb {
    fn insert(&mut self, objects: &[([u8; 32], [u8; 16])], synced: bool) {
        let mut write = self.0.begin_write().expect("redb writes");
        if !synced {
            write.set_durability(Durability::None).expect("nothing needs more");
        }
        {
            let mut table = write.open_table(TABLE).expect("redb has the table");
            for (id, entry) in objects {
                table.insert(id, entry).expect("redb inserts");
            }
        }
        write.commit().expect("redb commits");
    }

    fn get(&self, id: &[u8; 32]) -> Option<[u8; 16]> {
        let read = self.0.begin_read().expect("redb reads");
        let table = read.open_table(TABLE).expect("redb has the table");
        table.get(id).expect("redb reads").map(|entry| *entry.value())
    }

    fn close(self: Box<Self>) {
        self.0.begin_write().expect("redb writes").commit().expect("redb commits");
    }
}
