//! The claims that a store knows, in memory and in a journal of their own.
//!
//! A claim is written down before it is believed, so what anybody was told of it is true after a crash. The order in which claims
//! reach the disk does not matter, since reading them is hearing them again ([`Claims::merge`]); that is why they need neither
//! the journal of the objects nor its index. The journal is begun with the first claim: a store that nobody shares has none.
//!
//! A manifest is written down before any shard by it is here, with its claim or alone: the word that ends an object does not say what its
//! shards were, so whoever finds one after a crash must know. What is remembered is on the disk, also after everything was written anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Lock, LockSpec, Supervisor,
    disk::{self, Access, Disk, DiskError},
    journal::{self, Item, Journal, JournalError, OnDamage, Position, Salts, record_bytes},
};
use tokio::sync::OnceCell;

pub use crate::logic::{
    claims::{
        CLAIM_BYTES_MAX, CLAIMS_MAX, COPIES_MAX, Claim, ClaimError, ClaimLimits, Claims, Coding, Merged,
        OWNER_CLAIMS_MAX, OWNERS_MAX, Policy, RETENTION_DEFAULT, RETENTION_MAX, RETENTION_MIN, SHARDS_MAX,
        Standing, Verified, Wanted, Word,
    },
    manifest::{MANIFEST_BYTES_MAX, Manifest},
};
use crate::{
    StorageError,
    error::{of_disk, of_journal},
    logic::inventory::{Names, Prefix, Sum},
    planted::{Bug, is_planted},
};

pub(crate) const CLAIMS: LockSpec = LockSpec::new("ron-storage", "claims", 695)
    .guards("which objects are wanted; held for one look or one change");

/// Where the journal is, in the store's directory.
const DIR: &str = "claims";

/// The file that says that this node was told to go; it is empty.
const LEAVING: &str = "LEAVING";

/// A claim, as the journal keeps it.
const CLAIM: u8 = 1;

/// A manifest that no claim names: one is about to, or did.
const MANIFEST: u8 = 2;

/// Size of a file of the journal: some four thousand claims.
const SEGMENT_BYTES: u32 = 1 << 20;

/// Bytes beyond twice what is needed before everything is written anew.
const SLACK_BYTES: u64 = 3 * SEGMENT_BYTES as u64;

/// Claims that are written at once when everything is.
const PIECE: usize = 1024;

/// Manifests of an object that are remembered though no claim names them any more: some of their shards may be here.
const PAST_MAX: usize = 8;

/// What opening may take: a million claims take a second.
const OPENING: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct State {
    claims: Claims,
    manifests: BTreeMap<ContentId, Manifest>,
    /// Which manifests there are of an object.
    cut: BTreeMap<ContentId, BTreeSet<ContentId>>,
    /// Which manifests name a shard.
    shards: BTreeMap<ContentId, BTreeSet<ContentId>>,
    /// What is known, for comparing it with what others know.
    digests: BTreeMap<ContentId, (ContentId, ron_core::net::PublicKey)>,
    /// Manifests by which pieces come here for a claim that nobody has heard yet, and for how many callers.
    coming: BTreeMap<ContentId, usize>,
    /// What is being written, and will be known when it is.
    writing: BTreeMap<u64, (u8, Bytes)>,
    next_writing: u64,
    /// Names of claims that count although nobody knows whether they are written: see [`Writing`].
    doubted: BTreeSet<ContentId>,
    /// Manifests that are known by such a claim alone. They are unwritten still when that claim is over.
    unwritten: BTreeSet<ContentId>,
    /// Bytes of the journal that what is known takes.
    bytes: u64,
    /// The same of all manifests, also those that are written beside their claims.
    manifest_bytes: u64,
    limits: ClaimLimits,
    /// Objects about which something changed since somebody last asked.
    changed: BTreeSet<ContentId>,
    /// How often something changed.
    changes: u64,
}

impl State {
    fn hear(&mut self, claim: Verified, manifest: Option<Manifest>, seen: u64) -> Result<Merged, ClaimError> {
        let (object, owner, digest) = (claim.claim().object, claim.claim().owner, claim.claim().digest());
        let old = self.claims.of(&object, &owner).map(|old| (old.digest(), self.cost(old)));
        let merged = self.claims.merge(claim, seen)?;
        if merged != Merged::New {
            if let Some(manifest) = manifest.filter(|manifest| self.is_late(manifest)) {
                self.remember(manifest);
                self.changed.insert(object);
                self.changes += 1;
            }
            return Ok(merged);
        }
        self.changed.insert(object);
        self.changes += 1;
        if let Some((old, cost)) = old {
            self.digests.remove(&old);
            self.doubted.remove(&old);
            self.bytes = self.bytes.saturating_sub(cost);
        }
        self.digests.insert(digest, (object, owner));
        if let Some(manifest) = manifest {
            self.remember(manifest);
        }
        self.bytes += self.claims.of(&object, &owner).map_or(0, |claim| self.cost(claim));
        self.let_go(&object);
        Ok(merged)
    }

    fn remember(&mut self, manifest: Manifest) {
        let id = manifest.id();
        for shard in &manifest.shards {
            self.shards.entry(*shard).or_default().insert(id);
        }
        self.cut.entry(manifest.object).or_default().insert(id);
        let bytes = manifest_record_bytes(&manifest);
        if self.manifests.insert(id, manifest).is_none() {
            self.manifest_bytes += bytes;
        }
    }

    /// Whether the manifest of a claim that is over says something all the same: a shard may come here after the word that ends it, and
    /// nobody else says what it is of. A few for each object, as of those that were wanted here before.
    fn is_late(&self, manifest: &Manifest) -> bool {
        let id = manifest.id();
        let is_known = self.manifests.contains_key(&id);
        if is_known { self.unwritten.contains(&id) } else { self.past(&manifest.object).len() < PAST_MAX }
    }

    /// Bytes of the journal that a claim takes, with the manifest that is written beside it.
    fn cost(&self, claim: &Claim) -> u64 {
        let manifest = self.manifest_of(claim).map_or(0, |manifest| manifest.encode().len());
        record_bytes(10 + claim.encoded().len() + manifest) as u64
    }

    /// Forgets manifests of an object that no claim names any more: all if nothing is said about it, and none if it is deleted, since
    /// whoever has shards of it must still hear that. Of one that lives, a few are remembered, so that their shards go from here.
    fn let_go(&mut self, object: &ContentId) {
        let few = match self.claims.standing(object) {
            Standing::Deleted => return,
            Standing::Live(_) => PAST_MAX,
            Standing::Unclaimed => 0,
        };
        let past = self.past(object);
        let beyond = past.len().saturating_sub(few);
        past[..beyond].iter().for_each(|id| self.forget_manifest(object, id));
    }

    /// The manifests of an object that no claim names any more.
    fn past(&self, object: &ContentId) -> Vec<ContentId> {
        self.cut.get(object).into_iter().flatten().filter(|id| self.is_past(id)).copied().collect()
    }

    fn is_past(&self, id: &ContentId) -> bool {
        !self.claims.wants_manifest(id) && !self.coming.contains_key(id)
    }

    /// Whether a manifest is on the disk for sure.
    fn is_written(&self, id: &ContentId) -> bool {
        self.manifests.contains_key(id) && !self.unwritten.contains(id)
    }

    /// Manifests that no claim names, as the journal keeps them.
    fn unnamed(&self) -> impl Iterator<Item = &Manifest> {
        let unnamed = self.manifests.iter().filter(|(id, _)| !self.claims.wants_manifest(id));
        unnamed.map(|(_, manifest)| manifest)
    }

    fn forget_manifest(&mut self, object: &ContentId, id: &ContentId) {
        let Some(manifest) = self.manifests.remove(id) else { return };
        self.unwritten.remove(id);
        self.manifest_bytes = self.manifest_bytes.saturating_sub(manifest_record_bytes(&manifest));
        for shard in &manifest.shards {
            if let Some(named) = self.shards.get_mut(shard) {
                named.remove(id);
                if named.is_empty() {
                    self.shards.remove(shard);
                }
            }
        }
        if let Some(known) = self.cut.get_mut(object) {
            known.remove(id);
            if known.is_empty() {
                self.cut.remove(object);
            }
        }
    }
}

/// The claims of one store.
pub(crate) struct Book {
    state: Lock<State>,
    journal: OnceCell<Journal>,
    group: Supervisor,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    leaving: PathBuf,
    is_leaving: AtomicBool,
    salts: Salts,
    clock: UnixClock,
}

impl Book {
    /// Opens what a store knows. If it never knew anything, nothing is touched.
    pub(crate) async fn open(
        group: &Supervisor,
        disk: Arc<dyn Disk>,
        dir: &Path,
        salts: Salts,
        clock: UnixClock,
    ) -> Result<Self, StorageError> {
        let book = Book {
            state: Lock::new(CLAIMS, State::default(), group.metrics()),
            journal: OnceCell::new(),
            group: group.clone(),
            disk,
            dir: dir.join(DIR),
            leaving: dir.join(LEAVING),
            is_leaving: AtomicBool::new(false),
            salts,
            clock,
        };
        let look = {
            let (disk, dir, leaving) = (Arc::clone(&book.disk), book.dir.clone(), book.leaving.clone());
            move || {
                let is_there = match disk.list(&dir) {
                    Ok(names) => !names.is_empty(),
                    Err(DiskError::NotFound { .. }) => false,
                    Err(error) => return Err(of_disk(error)),
                };
                match disk.open(&leaving, Access::Read) {
                    Ok(_) => Ok((is_there, true)),
                    Err(DiskError::NotFound { .. }) => Ok((is_there, false)),
                    Err(error) => Err(of_disk(error)),
                }
            }
        };
        let (is_there, is_leaving) = group.blocking("claims_open", Deadline::after(OPENING), look).await??;
        book.is_leaving.store(is_leaving, Ordering::Release);
        if is_there {
            book.load().await?;
        }
        Ok(book)
    }

    /// Whether this node was told to go, before a restart too.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Tells this node to go, or to stay, durably.
    pub(crate) async fn set_leaving(&self, is_leaving: bool, deadline: Deadline) -> Result<(), StorageError> {
        let (disk, path) = (Arc::clone(&self.disk), self.leaving.clone());
        let write = move || match is_leaving {
            true => disk::replace(&*disk, &path, b""),
            false => match disk.remove(&path) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {
                    disk.sync_dir(path.parent().unwrap_or(Path::new("")))
                }
                Err(error) => Err(error),
            },
        };
        self.group.blocking("leaving", deadline, write).await?.map_err(of_disk)?;
        self.is_leaving.store(is_leaving, Ordering::Release);
        Ok(())
    }

    async fn journal(&self) -> Result<&Journal, StorageError> {
        let open = async || {
            let settings = journal::Settings {
                name: "storage.claims",
                segment_bytes: SEGMENT_BYTES,
                chunk_bytes: SEGMENT_BYTES / 8,
                record_bytes_max: (CLAIM_BYTES_MAX + MANIFEST_BYTES_MAX + 16) as u32,
                pending_bytes_max: 16 << 20,
                on_damage: OnDamage::Report,
                salts: self.salts,
                ..journal::Settings::default()
            };
            let opened = Journal::open(&self.group, Arc::clone(&self.disk), &self.dir, settings).await;
            opened.map(|(journal, _)| journal).map_err(of_journal)
        };
        self.journal.get_or_try_init(open).await
    }

    async fn load(&self) -> Result<(), StorageError> {
        let reader = self.journal().await?.reader();
        let read = move || {
            let mut state = State::default();
            for item in reader.scan(Position::START) {
                match item.map_err(of_journal)? {
                    Item::Record(record) if record.kind == CLAIM => {
                        let Some((claim, manifest, seen)) = read_record(&record.payload) else {
                            tracing::warn!(at = %record.position, "a claim that cannot be read");
                            continue;
                        };
                        if let Err(error) = state.hear(claim, manifest, seen) {
                            tracing::warn!(at = %record.position, %error, "a claim that cannot be kept");
                        }
                    }
                    Item::Record(record) if record.kind == MANIFEST => {
                        match Manifest::decode(&record.payload) {
                            Ok(manifest) => state.remember(manifest),
                            Err(error) => {
                                tracing::warn!(at = %record.position, %error, "a manifest that cannot be read");
                            }
                        }
                    }
                    Item::Record(record) => {
                        tracing::warn!(at = %record.position, kind = record.kind, "a record of a kind that is not known");
                    }
                    // What others know comes back from them; what nobody else knew is lost, and said here.
                    Item::Damaged(damage) => {
                        tracing::error!(from = %damage.from, to = %damage.to, "claims that cannot be read");
                    }
                }
            }
            Ok::<_, StorageError>(state)
        };
        let state = self.group.blocking("claims_open", Deadline::after(OPENING), read).await??;
        let mut loaded = self.state.lock();
        *loaded = State { limits: loaded.limits, ..state };
        Ok(())
    }

    /// Milliseconds since 1970, as this store's clock says.
    pub(crate) fn unix_millis(&self) -> u64 {
        self.clock.millis()
    }

    /// Seconds since 1970, as this store's clock says.
    pub(crate) fn unix_now(&self) -> u64 {
        self.unix_millis() / 1000
    }

    /// Takes a claim in, durably.
    pub(crate) async fn merge(
        &self,
        claim: Verified,
        manifest: Option<Manifest>,
        now: u64,
        deadline: Deadline,
    ) -> Result<Merged, StorageError> {
        {
            // What says nothing new, or finds no room, is not written: whoever brings it may bring it for ever.
            let mut state = self.state.lock();
            match state.claims.weigh(claim.claim(), state.limits)? {
                Merged::New => {}
                // Whoever says it again relies on it.
                Merged::Same if state.doubted.contains(&claim.claim().digest()) => {}
                Merged::Same => return Ok(Merged::Same),
                Merged::Older if manifest.as_ref().is_some_and(|manifest| state.is_late(manifest)) => {}
                Merged::Older => return Ok(state.claims.merge(claim, now)?),
            }
        }
        let manifest = self.fitting(claim.claim(), manifest)?;
        let record: Bytes = write_record(claim.claim(), manifest.as_ref(), now).into();
        if is_planted(Bug::SlowClaim) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let journal = self.journal().await?;
        let number = {
            let mut state = self.state.lock();
            state.next_writing += 1;
            let number = state.next_writing;
            state.writing.insert(number, (CLAIM, record.clone()));
            number
        };
        let writing = Writing { book: self, number, word: Some((claim, manifest, now)) };
        match journal.append(CLAIM, record, deadline).await {
            Ok(_) => Ok(writing.end()?),
            Err(error) => {
                if matches!(error, JournalError::Busy { .. } | JournalError::NoSpace) {
                    writing.withdraw();
                }
                Err(of_journal(error))
            }
        }
    }

    /// Pieces by a manifest are about to come here for a claim that is said when they are. It is written down first: whoever finds some
    /// of them after a crash knows what they are of, and they go with their object. Until what is returned is dropped they are nothing
    /// that is left over.
    pub(crate) async fn expect(
        &self,
        manifest: &Manifest,
        deadline: Deadline,
    ) -> Result<Coming<'_>, StorageError> {
        let id = manifest.id();
        *self.state.lock().coming.entry(id).or_default() += 1;
        let coming = Coming { book: self, id };
        self.write_manifest(manifest, deadline).await?;
        Ok(coming)
    }

    /// Writes a manifest down, unless it is written.
    pub(crate) async fn write_manifest(
        &self,
        manifest: &Manifest,
        deadline: Deadline,
    ) -> Result<(), StorageError> {
        if self.state.lock().is_written(&manifest.id()) {
            return Ok(());
        }
        let record: Bytes = manifest.encode().into();
        let journal = self.journal().await?;
        let number = {
            let mut state = self.state.lock();
            state.next_writing += 1;
            let number = state.next_writing;
            state.writing.insert(number, (MANIFEST, record.clone()));
            number
        };
        let _writing = Writing { book: self, number, word: None };
        journal.append(MANIFEST, record, deadline).await.map_err(of_journal)?;
        let mut state = self.state.lock();
        state.unwritten.remove(&manifest.id());
        state.remember(manifest.clone());
        Ok(())
    }

    /// How many claims are taken from now on.
    pub(crate) fn set_limits(&self, limits: ClaimLimits) {
        self.state.lock().limits = limits;
    }

    /// The manifest that a claim needs, given or known.
    fn fitting(&self, claim: &Claim, given: Option<Manifest>) -> Result<Option<Manifest>, ClaimError> {
        let Word::Erasure(coding) = claim.word else { return Ok(None) };
        let manifest = given.or_else(|| self.state.lock().manifests.get(&coding.manifest).cloned());
        let manifest = manifest.ok_or(ClaimError::NoManifest { id: coding.manifest })?;
        if manifest.coding() != coding || manifest.object != claim.object {
            return Err(ClaimError::ForeignManifest { id: coding.manifest });
        }
        Ok(Some(manifest))
    }

    /// What is said about an object.
    pub(crate) fn standing(&self, object: &ContentId) -> Standing {
        self.state.lock().claims.standing(object)
    }

    /// All words about an object, by owner, with the manifests that they name.
    pub(crate) fn about(&self, object: &ContentId) -> Vec<(Claim, Option<Manifest>)> {
        let state = self.state.lock();
        state.claims.about(object).map(|claim| (claim.clone(), state.manifest_of(claim))).collect()
    }

    /// The manifests of the codings that an object is wanted in, and of a deleted one those that are still known.
    pub(crate) fn manifests_of(&self, object: &ContentId) -> Vec<Manifest> {
        let state = self.state.lock();
        match state.claims.standing(object) {
            Standing::Live(wanted) => wanted
                .codings
                .iter()
                .filter_map(|coding| state.manifests.get(&coding.manifest).cloned())
                .collect(),
            Standing::Unclaimed | Standing::Deleted => {
                let known = state.cut.get(object).into_iter().flatten();
                known.filter_map(|id| state.manifests.get(id).cloned()).collect()
            }
        }
    }

    /// The manifests of an object that no claim names any more.
    pub(crate) fn past_of(&self, object: &ContentId) -> Vec<Manifest> {
        let state = self.state.lock();
        state.past(object).iter().filter_map(|id| state.manifests.get(id).cloned()).collect()
    }

    /// Pieces of an object by manifests that no claim names any more, and those manifests.
    pub(crate) fn left_of(&self, object: &ContentId) -> Vec<ContentId> {
        let state = self.state.lock();
        let pieces = |id: ContentId| {
            let shards = state.manifests.get(&id).map(|manifest| manifest.shards.clone());
            shards.unwrap_or_default().into_iter().chain([id])
        };
        state.past(object).into_iter().flat_map(pieces).collect()
    }

    /// A piece came here. If it is one by a manifest that no claim names any more, the object that it is of is looked at again.
    pub(crate) fn on_piece(&self, piece: &ContentId) {
        let mut state = self.state.lock();
        let named = state.shards.get(piece).into_iter().flatten().chain([piece]);
        let past = named.filter(|id| state.is_past(id)).filter_map(|id| state.manifests.get(id));
        let objects: Vec<ContentId> = past.map(|manifest| manifest.object).collect();
        state.changed.extend(objects);
    }

    /// Whether it is known what a piece is of.
    pub(crate) fn explains(&self, piece: &ContentId) -> bool {
        let state = self.state.lock();
        state.claims.about(piece).next().is_some()
            || state.manifests.contains_key(piece)
            || state.shards.contains_key(piece)
    }

    /// Forgets manifests that no claim names, of objects that are not deleted, if nothing by them is here.
    pub(crate) fn forget_past(&self, is_here: impl Fn(&ContentId) -> bool) {
        let mut state = self.state.lock();
        let cut: Vec<ContentId> = state.cut.keys().copied().collect();
        for object in cut {
            if state.claims.standing(&object) == Standing::Deleted {
                continue;
            }
            for id in state.past(&object) {
                let shards = state.manifests.get(&id).into_iter().flat_map(|manifest| &manifest.shards);
                if !shards.chain([&id]).any(&is_here) {
                    state.forget_manifest(&object, &id);
                }
            }
        }
    }

    /// Whether something is a manifest that is named. Every node that knows the claim has it beside the claim.
    pub(crate) fn is_manifest(&self, id: &ContentId) -> bool {
        self.state.lock().manifests.contains_key(id)
    }

    /// Whether something has to stay: an object that is wanted, a manifest that is named, or a shard of one.
    pub(crate) fn wants(&self, id: &ContentId) -> bool {
        let state = self.state.lock();
        let of_manifest = |manifest: &ContentId| state.claims.wants_manifest(manifest);
        matches!(state.claims.standing(id), Standing::Live(_))
            || of_manifest(id)
            || state.shards.get(id).is_some_and(|named| named.iter().any(of_manifest))
    }

    /// Objects about which something is said, behind `after`.
    pub(crate) fn objects(&self, after: Option<&ContentId>, limit: usize) -> Vec<ContentId> {
        self.state.lock().claims.objects(after).take(limit).copied().collect()
    }

    /// How many claims are known.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().claims.len()
    }

    /// Objects about which something changed since this was last asked, and how often something changed so far.
    pub(crate) fn take_changed(&self) -> (Vec<ContentId>, u64) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.changed).into_iter().collect(), state.changes)
    }

    /// How often something changed.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// The claims with these names.
    pub(crate) fn with_digests(&self, digests: &[ContentId]) -> Vec<(Claim, Option<Manifest>)> {
        let state = self.state.lock();
        let find = |digest: &ContentId| {
            let (object, owner) = state.digests.get(digest)?;
            let claim = state.claims.of(object, owner)?;
            Some((claim.clone(), state.manifest_of(claim)))
        };
        digests.iter().filter_map(find).collect()
    }

    /// Notes that somebody has a copy of something that is deleted.
    pub(crate) fn on_copy(&self, object: &ContentId, now: u64) {
        self.state.lock().claims.on_copy(object, now);
    }

    /// Forgets deletes of which no copy has been seen for their retention: see [`Claims::forget`].
    pub(crate) fn forget(&self, now: u64, has_copy: impl Fn(&ContentId) -> bool) -> usize {
        let mut state = self.state.lock();
        let forgotten = state.claims.forget(now, has_copy);
        if forgotten > 0 {
            let State { claims, digests, changed, doubted, .. } = &mut *state;
            let mut over = BTreeSet::new();
            digests.retain(|_, (object, owner)| {
                let is_known = claims.of(object, owner).is_some();
                if !is_known {
                    over.insert(*object);
                }
                is_known
            });
            changed.extend(&over);
            doubted.retain(|digest| digests.contains_key(digest));
            state.changes += 1;
            over.iter().for_each(|object| state.let_go(object));
            state.bytes = state.claims.iter().map(|(claim, _)| state.cost(claim)).sum();
        }
        forgotten
    }

    /// Writes everything anew if the journal is much longer than it need be. Ask now and then.
    pub(crate) async fn compact(&self, deadline: Deadline) -> Result<(), StorageError> {
        let Some(journal) = self.journal.get() else { return Ok(()) };
        let segments = journal.reader().segments();
        let written: u64 = segments.iter().map(|segment| u64::from(segment.bytes)).sum();
        let Some(last) = segments.last().map(|last| last.sequence) else { return Ok(()) };
        let records: Vec<(u8, Bytes)> = {
            let state = self.state.lock();
            if written <= 2 * (state.bytes + state.manifest_bytes) + SLACK_BYTES {
                return Ok(());
            }
            let claims = state.claims.iter().map(|(claim, seen)| {
                (CLAIM, write_record(claim, state.manifest_of(claim).as_ref(), seen).into())
            });
            let unnamed = state.unnamed().map(|manifest| (MANIFEST, manifest.encode().into()));
            // What is on its way to the journal may be in a segment that goes.
            claims.chain(unnamed).chain(state.writing.values().cloned()).collect()
        };
        for some in records.chunks(PIECE) {
            journal.append_all(some.to_vec(), deadline).await.map_err(of_journal)?;
        }
        journal.remove_before(last, deadline).await.map_err(of_journal)?;
        Ok(())
    }
}

impl State {
    fn manifest_of(&self, claim: &Claim) -> Option<Manifest> {
        let Word::Erasure(coding) = claim.word else { return None };
        self.manifests.get(&coding.manifest).cloned()
    }
}

impl Names for Book {
    fn sum(&self, prefix: &Prefix) -> Sum {
        let state = self.state.lock();
        let mut sum = Sum::default();
        state.digests.range(prefix.first()..=prefix.last()).for_each(|(digest, _)| sum.add(digest));
        sum
    }

    fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId> {
        let state = self.state.lock();
        state.digests.range(prefix.first()..=prefix.last()).map(|(digest, _)| *digest).take(max).collect()
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Book({} claims)", self.count())
    }
}

/// Something on its way to the journal. Whoever is out of time or goes away meanwhile does not learn whether it got there. After a
/// restart a claim may count, so it counts from then on: or what it needs would go, because of the claim before it.
struct Writing<'a> {
    book: &'a Book,
    number: u64,
    word: Option<(Verified, Option<Manifest>, u64)>,
}

impl Writing<'_> {
    /// It is written.
    fn end(mut self) -> Result<Merged, ClaimError> {
        let Some((claim, manifest, now)) = self.word.take() else { return Ok(Merged::Same) };
        let mut state = self.book.state.lock();
        state.doubted.remove(&claim.claim().digest());
        if let Some(manifest) = &manifest {
            state.unwritten.remove(&manifest.id());
        }
        state.hear(claim, manifest, now)
    }

    /// It is not written, and will not be.
    fn withdraw(mut self) {
        self.word = None;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.book.state.lock();
        if let Some((claim, manifest, now)) = self.word.take() {
            let digest = claim.claim().digest();
            // A claim that says nothing new needs no manifest, and what is known beside it has to be on the disk.
            let weight = state.claims.weigh(claim.claim(), state.limits);
            let manifest = manifest.filter(|_| !matches!(weight, Ok(Merged::Same | Merged::Older)));
            let unwritten = manifest.as_ref().map(Manifest::id).filter(|id| !state.is_written(id));
            if state.hear(claim, manifest, now) == Ok(Merged::New) {
                state.doubted.insert(digest);
                state.unwritten.extend(unwritten);
            }
        }
        state.writing.remove(&self.number);
    }
}

/// Pieces by a manifest that come here for a claim that nobody has heard yet: see [`Book::expect`].
pub(crate) struct Coming<'a> {
    book: &'a Book,
    id: ContentId,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut state = self.book.state.lock();
        let Some(count) = state.coming.get_mut(&self.id) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        state.coming.remove(&self.id);
        // What came is left over, if it was not claimed.
        let object = state.manifests.get(&self.id).map(|manifest| manifest.object);
        if state.is_past(&self.id) {
            state.changed.extend(object);
        }
    }
}

fn manifest_record_bytes(manifest: &Manifest) -> u64 {
    record_bytes(manifest.encode().len()) as u64
}

/// When it was last of use, the claim with its length before it, and the manifest if there is one.
fn write_record(claim: &Claim, manifest: Option<&Manifest>, seen: u64) -> Vec<u8> {
    let len = u16::try_from(claim.encoded().len()).expect("claims are short");
    let manifest = manifest.map(Manifest::encode).unwrap_or_default();
    [&seen.to_be_bytes()[..], &len.to_be_bytes(), claim.encoded(), &manifest].concat()
}

fn read_record(payload: &[u8]) -> Option<(Verified, Option<Manifest>, u64)> {
    let (seen, rest) = payload.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (claim, manifest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
    // It was verified before it was written, and the journal's sum says that it is what was written.
    let claim = Claim::decode(claim).ok()?.trusted();
    let manifest = match manifest.is_empty() {
        true => None,
        false => Some(Manifest::decode(manifest).ok()?),
    };
    Some((claim, manifest, u64::from_be_bytes(*seen)))
}

/// What says how long it is since 1970.
#[derive(Clone)]
pub(crate) struct UnixClock(pub(crate) Arc<dyn Fn() -> Duration + Send + Sync>);

impl UnixClock {
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.0().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for UnixClock {
    /// The machine's.
    fn default() -> Self {
        use std::time::SystemTime;
        UnixClock(Arc::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
    }
}

impl fmt::Debug for UnixClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnixClock")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use ron_core::{
        net::Identity,
        sim::{CrashStyle, SimDisk},
    };

    use super::*;

    async fn opened(host: &Supervisor, disk: &SimDisk) -> Book {
        let disk = Arc::new(disk.clone());
        Book::open(host, disk, Path::new("store"), Salts::Seeded(1), UnixClock::default()).await.unwrap()
    }

    fn claim(object: ContentId, version: u64, word: Word) -> Verified {
        Claim::sign(&Identity::from_seed(&[1; 32]), (object, 3), version, 0, word).unwrap()
    }

    /// A claim with its manifest that was called off before it got to the disk counts, and is rewritten by whoever says it again. When it
    /// was over, its manifest was taken for one that is on the disk, so the next shards by it came with nothing written that explains
    /// them, and after a crash they were nobody's.
    #[tokio::test(start_paused = true)]
    async fn a_manifest_is_not_taken_for_written_when_its_claim_is_over() {
        for way in ["told", "cut"] {
            let host = Supervisor::builder("test").inline_blocking(true).start();
            let (disk, soon) = (SimDisk::new(), Deadline::after(Duration::from_secs(60)));
            let book = opened(&host, &disk).await;
            let object = ContentId::of(b"abc");
            let shards: Vec<ContentId> = (0..3_u8).map(|index| ContentId::of(&[index])).collect();
            let manifest = Manifest { object, len: 3, data: 2, shards: shards.clone() };
            let cut = claim(object, 1, Word::Erasure(manifest.coding()));
            book.merge(claim(ContentId::of(b"other"), 1, Word::Pin), None, 0, soon).await.unwrap();
            {
                let called_off = pin!(book.merge(cut.clone(), Some(manifest.clone()), 0, soon));
                assert!(called_off.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            assert!(book.wants(&shards[0]), "it counts");
            book.merge(claim(object, 2, Word::Pin), None, 0, soon).await.unwrap();
            match way {
                // By somebody who has not heard of the second word, and brings a shard.
                "told" => {
                    let told = book.merge(cut, Some(manifest), 0, soon).await;
                    assert_eq!(told.unwrap(), Merged::Older);
                }
                _ => drop(book.expect(&manifest, soon).await.unwrap()),
            }
            let crashed = disk.fork();
            crashed.restart(CrashStyle::LoseUnsynced);
            assert!(opened(&host, &crashed).await.explains(&shards[0]), "{way}");
            host.shutdown().await;
        }
    }
}
