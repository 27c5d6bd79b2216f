//! The cache of answers: bounded in bytes, with a lifetime for each entry.
//!
//! An entry is fresh at first; then stale, and served while it is refreshed; then served only if refreshing it fails; then
//! removed. "There is nothing" is cached only when a source with the authority to say so has said it, for a short time, and is
//! never served stale. What is served stale is marked as such.
//!
//! The table has one writer, the janitor, which holds the [`CacheWriter`]; everybody else reads.

use std::{
    any::Any,
    hash::RandomState,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, sync::Cache};
use tokio::time::Instant;

use super::{key::Key, rank::Ranked};
use crate::source::{Manifest, NameRecord};

/// What an entry takes beside its own bytes: its place in the table, measured and rounded up.
const PLACE_BYTES: usize = 160;

/// Parts of the table with a lock each. Sixteen let two of eight cores rarely meet, and leave each part of the smallest
/// table 64 KiB, which is more than the largest entry.
pub const SHARDS: usize = 16;

/// The smallest table.
pub const BYTES_MIN: u64 = 1 << 20;

/// The largest entry; a part of the table must hold it.
pub const ENTRY_BYTES_MAX: usize = 48 << 10;

/// What an entry is expected to take on average; only memory for the table's own bookkeeping follows from it.
const ENTRY_BYTES_EXPECTED: u64 = 1024;

/// The last part of its life, one of so many, in which an entry that is asked for is asked for anew ahead of time.
const AHEAD: u32 = 10;

/// One verified answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution {
    /// What was asked for.
    pub key: Key,
    /// What the name stands for, if the key is a name.
    pub name: Option<NameRecord>,
    /// The content: what the name stands for, or the key itself.
    pub content: Key,
    /// What it is made of; `None` if no source knows.
    pub manifest: Option<Manifest>,
    /// Who provides it, best first.
    pub providers: Vec<Ranked>,
    /// Whether every source answered: neither the budget nor a failure cut the lookup short.
    pub is_complete: bool,
}

impl Resolution {
    fn heap_bytes(&self) -> usize {
        let providers: usize = self.providers.iter().map(|ranked| ranked.provider.heap_bytes()).sum();
        let slots = self.providers.capacity() * size_of::<Ranked>();
        self.key.heap_bytes() + self.content.heap_bytes() + slots + providers
    }

    /// An upper bound of the bytes of the rendered HTTP answer, body and head, which is kept once it was made.
    fn text_bytes(&self) -> usize {
        let providers = self.providers.iter().take(crate::LIMIT_DEFAULT);
        let bytes: usize = providers
            .map(|ranked| {
                let provider = &ranked.provider;
                let words: usize = provider.protocols.iter().map(|word| word.len() + 3).sum();
                256 + provider.addrs.len() * 64
                    + words
                    + provider.region.as_ref().map_or(0, |region| region.len())
            })
            .sum();
        2048 + bytes
    }
}

/// How long things may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// After its life, while it is asked for again.
    pub while_revalidate: Duration,
    /// After its life, if that fails.
    pub if_error: Duration,
}

/// What an entry is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// To be served.
    Fresh {
        /// Whether its life is nearly over and somebody should ask again.
        is_nearly_over: bool,
    },
    /// To be served, marked, while somebody asks again.
    WhileRevalidate,
    /// To be served, marked, if asking fails.
    IfError,
    /// For nothing.
    Over,
}

/// An answer and its life.
#[derive(Debug)]
pub struct Entry {
    /// The answer; nothing if there is certainly nothing.
    pub found: Option<Resolution>,
    /// When it was made.
    pub born: Instant,
    /// How long it is fresh.
    pub ttl: Duration,
    /// The same, by the wall clock in seconds since 1970.
    pub born_unix: u64,
    /// Times it was served.
    pub hits: AtomicU32,
    /// Whether somebody is asking for it anew.
    pub is_refreshing: AtomicBool,
    /// Whether it stays when others have to go.
    pub is_pinned: AtomicBool,
    /// Until when asking again is pointless, in milliseconds after its birth: it has just failed.
    pub failed_until_ms: AtomicU64,
    /// The answer as the HTTP routes have rendered it, for the next request. Its type is known only there; its size is counted
    /// in the entry from the beginning.
    pub rendered: OnceLock<Box<dyn Any + Send + Sync>>,
    bytes: u32,
}

impl Entry {
    /// An entry that is born now.
    #[must_use]
    pub fn new(key: &Key, found: Option<Resolution>, ttl: Duration, now: Instant, unix_secs: u64) -> Self {
        let text = found.as_ref().map_or(0, |found| found.heap_bytes() + found.text_bytes());
        let bytes = PLACE_BYTES + size_of::<Entry>() + size_of::<Key>() + key.heap_bytes() + text;
        Entry {
            found,
            born: now,
            ttl,
            born_unix: unix_secs,
            hits: AtomicU32::new(0),
            is_refreshing: AtomicBool::new(false),
            is_pinned: AtomicBool::new(false),
            failed_until_ms: AtomicU64::new(0),
            rendered: OnceLock::new(),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// How old it is.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.born)
    }

    /// What it is good for.
    #[must_use]
    pub fn freshness(&self, now: Instant, staleness: &Staleness) -> Freshness {
        let age = self.age(now);
        if age < self.ttl {
            return Freshness::Fresh { is_nearly_over: self.is_nearly_over(age) };
        }
        // That there is nothing is never said of a time gone by.
        if self.found.is_none() {
            return Freshness::Over;
        }
        let over = age - self.ttl;
        if over < staleness.while_revalidate {
            Freshness::WhileRevalidate
        } else if over < staleness.if_error {
            Freshness::IfError
        } else {
            Freshness::Over
        }
    }

    /// Whether it is fresh and not due for a refresh, which can be told without the settings.
    #[must_use]
    pub fn is_young(&self, age: Duration) -> bool {
        age < self.ttl && !self.is_nearly_over(age)
    }

    fn is_nearly_over(&self, age: Duration) -> bool {
        age >= self.ttl - self.ttl / AHEAD
    }

    /// Whether asking again failed so lately that it is not worth another try.
    #[must_use]
    pub fn has_just_failed(&self, now: Instant) -> bool {
        let age = u64::try_from(self.age(now).as_millis()).unwrap_or(u64::MAX);
        age < self.failed_until_ms.load(Ordering::Relaxed)
    }

    /// Asking again failed; not worth another try for `pause`.
    pub fn on_failure(&self, now: Instant, pause: Duration) {
        let until = u64::try_from((self.age(now) + pause).as_millis()).unwrap_or(u64::MAX);
        self.failed_until_ms.store(until, Ordering::Relaxed);
    }

    /// Who has proven what the name stands for, and in which version.
    fn version(&self) -> Option<(&'static str, u64)> {
        self.found.as_ref()?.name.as_ref().map(|name| (name.proven_by, name.version))
    }

    /// Whether both are what one and the same source has proven of a name, and this is the later. The numbers of different
    /// sources say nothing about each other.
    #[must_use]
    pub fn is_newer_than(&self, other: &Entry) -> bool {
        match (self.version(), other.version()) {
            (Some((by, this)), Some((other_by, other))) => by == other_by && this > other,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Weigh;

impl Weighter<Key, Arc<Entry>> for Weigh {
    fn weight(&self, _: &Key, entry: &Arc<Entry>) -> u64 {
        entry.bytes.into()
    }
}

#[derive(Debug, Clone, Copy)]
struct Pins;

impl Lifecycle<Key, Arc<Entry>> for Pins {
    type RequestState = Vec<Arc<Entry>>;

    fn is_pinned(&self, _: &Key, entry: &Arc<Entry>) -> bool {
        entry.is_pinned.load(Ordering::Relaxed)
    }

    /// Dropped after the lock of the part is.
    fn on_evict(&self, state: &mut Self::RequestState, _: Key, entry: Arc<Entry>) {
        state.push(entry);
    }
}

type Table = Cache<Key, Arc<Entry>, Weigh, RandomState, Pins>;

/// The reader's side. Cloning shares the table.
#[derive(Debug, Clone)]
pub struct CacheReader(Arc<Table>);

/// The writer's side: one, and the janitor has it.
#[derive(Debug)]
pub struct CacheWriter(Arc<Table>);

/// A table of at most so many bytes.
#[must_use]
pub fn table(bytes_max: u64) -> (CacheReader, CacheWriter) {
    let options = OptionsBuilder::new()
        .shards(SHARDS)
        .estimated_items_capacity((bytes_max / ENTRY_BYTES_EXPECTED).max(64 * SHARDS as u64) as usize)
        .weight_capacity(bytes_max)
        .build()
        .expect("both capacities are given");
    // Names come from strangers: the hash is keyed, so that nobody can make them collide.
    let table = Arc::new(Cache::with_options(options, Weigh, RandomState::new(), Pins));
    (CacheReader(Arc::clone(&table)), CacheWriter(table))
}

impl CacheReader {
    /// What is known about `key`, fresh or not.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.get(key)
    }

    /// The same, without counting as a use.
    #[must_use]
    pub fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.peek(key)
    }

    /// Entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

impl CacheWriter {
    /// Takes an answer in, unless a newer one of the same name is there. Says whether it did.
    pub fn put(&self, key: &Key, entry: &Arc<Entry>) -> bool {
        if let Some(known) = self.0.peek(key) {
            if known.is_newer_than(entry) {
                return false;
            }
            entry.is_pinned.store(known.is_pinned.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if entry.bytes() > ENTRY_BYTES_MAX {
            return false;
        }
        self.0.insert(key.clone(), Arc::clone(entry));
        true
    }

    /// Forgets a key. Says whether it was there.
    pub fn remove(&self, key: &Key) -> bool {
        self.0.remove(key).is_some()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.0.clear();
    }

    /// Forgets what is good for nothing any more, and says how much that was. Each part of the table is locked while it is
    /// looked through.
    pub fn sweep(&self, now: Instant, staleness: &Staleness) -> usize {
        let before = self.0.len();
        self.0.retain(|_, entry| {
            entry.is_pinned.load(Ordering::Relaxed) || entry.freshness(now, staleness) != Freshness::Over
        });
        before.saturating_sub(self.0.len())
    }

    /// Another size. What does not fit any more goes, the least useful first.
    pub fn resize(&self, bytes_max: u64) {
        self.0.set_capacity(bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use ron_core::{ContentId, NodeId};

    use super::*;
    use crate::{
        logic::rank::{RankSettings, Reputation, rank},
        source::Provider,
    };

    const STALENESS: Staleness =
        Staleness { while_revalidate: Duration::from_secs(30), if_error: Duration::from_secs(3600) };
    const TTL: Duration = Duration::from_secs(100);

    fn resolution(key: &Key, version: Option<u64>, providers: u8) -> Resolution {
        let content = ContentId::of(b"it");
        let providers = (0..providers)
            .map(|id| (Provider::new(NodeId::from_bytes([id; 32]), [([127, 0, 0, 1], 80).into()]), "test"))
            .collect();
        Resolution {
            key: key.clone(),
            name: version.map(|version| NameRecord { content, version, proven_by: "test", ttl: None }),
            content: content.into(),
            manifest: None,
            providers: rank(providers, &Reputation::new(1), &RankSettings::default(), 0),
            is_complete: true,
        }
    }

    fn entry(key: &Key, version: Option<u64>, now: Instant) -> Arc<Entry> {
        Arc::new(Entry::new(key, Some(resolution(key, version, 3)), TTL, now, 0))
    }

    fn name(number: u32) -> Key {
        Key::Name(format!("n/{number}").parse().unwrap())
    }

    #[test]
    fn an_entry_is_fresh_then_stale_then_over() {
        let now = ron_core::now();
        let positive = entry(&name(1), None, now);
        let negative = Entry::new(&name(1), None, TTL, now, 0);
        for (at, expected, of_nothing) in [
            (0, Freshness::Fresh { is_nearly_over: false }, Freshness::Fresh { is_nearly_over: false }),
            (89, Freshness::Fresh { is_nearly_over: false }, Freshness::Fresh { is_nearly_over: false }),
            (90, Freshness::Fresh { is_nearly_over: true }, Freshness::Fresh { is_nearly_over: true }),
            (100, Freshness::WhileRevalidate, Freshness::Over),
            (129, Freshness::WhileRevalidate, Freshness::Over),
            (130, Freshness::IfError, Freshness::Over),
            (3699, Freshness::IfError, Freshness::Over),
            (3700, Freshness::Over, Freshness::Over),
        ] {
            let then = now + Duration::from_secs(at);
            assert_eq!(positive.freshness(then, &STALENESS), expected, "at {at}");
            assert_eq!(negative.freshness(then, &STALENESS), of_nothing, "at {at}");
        }
    }

    #[test]
    fn it_never_takes_more_bytes_than_it_may() {
        let (reader, writer) = table(BYTES_MIN);
        let now = ron_core::now();
        for number in 0..20_000 {
            let key = name(number);
            writer.put(&key, &entry(&key, None, now));
            assert!(reader.bytes() <= BYTES_MIN, "{}", reader.bytes());
        }
        assert!(
            reader.bytes() > BYTES_MIN / 2 && reader.len() > 200,
            "{} in {}",
            reader.len(),
            reader.bytes()
        );
        writer.resize(BYTES_MIN / 2);
        assert!(reader.bytes() <= BYTES_MIN / 2);
        writer.clear();
        assert!(reader.is_empty());
    }

    #[test]
    fn what_is_pinned_stays() {
        let (reader, writer) = table(BYTES_MIN);
        let now = ron_core::now();
        let pinned = name(7_000_000);
        let kept = entry(&pinned, None, now);
        kept.is_pinned.store(true, Ordering::Relaxed);
        writer.put(&pinned, &kept);
        for number in 0..20_000 {
            writer.put(&name(number), &entry(&name(number), None, now));
        }
        assert!(reader.get(&pinned).is_some());
        // A newer answer takes the pin over.
        writer.put(&pinned, &entry(&pinned, None, now));
        assert!(reader.get(&pinned).unwrap().is_pinned.load(Ordering::Relaxed));
        assert!(writer.sweep(now + Duration::from_secs(999_999), &STALENESS) > 100);
        assert_eq!(reader.len(), 1);
    }

    #[test]
    fn an_older_answer_never_replaces_a_newer_one() {
        let (reader, writer) = table(BYTES_MIN);
        let now = ron_core::now();
        assert!(writer.put(&name(1), &entry(&name(1), Some(5), now)));
        assert!(!writer.put(&name(1), &entry(&name(1), Some(4), now)));
        assert_eq!(reader.get(&name(1)).unwrap().version(), Some(("test", 5)));
        assert!(writer.put(&name(1), &entry(&name(1), Some(5), now)), "the same again is newer");
        assert!(
            writer.put(&name(1), &Arc::new(Entry::new(&name(1), None, TTL, now, 0))),
            "it may be retired"
        );
    }

    #[test]
    fn what_has_just_failed_is_left_alone_for_a_while() {
        let now = ron_core::now();
        let entry = entry(&name(1), None, now);
        let later = now + Duration::from_secs(200);
        assert!(!entry.has_just_failed(later));
        entry.on_failure(later, Duration::from_secs(5));
        assert!(entry.has_just_failed(later + Duration::from_secs(4)));
        assert!(!entry.has_just_failed(later + Duration::from_secs(5)));
    }

    #[test]
    fn the_largest_entry_fits_into_a_part_of_the_smallest_table() {
        let key = name(1);
        let mut resolution = resolution(&key, Some(1), 32);
        for ranked in &mut resolution.providers {
            ranked.provider.addrs = vec![([127, 0, 0, 1], 80).into(); crate::source::ADDRS_MAX];
            ranked.provider.protocols = vec!["p".repeat(63).into(); 4];
            ranked.provider.region = Some("r".repeat(64).into());
        }
        let entry = Arc::new(Entry::new(&key, Some(resolution), TTL, ron_core::now(), 0));
        assert!(entry.bytes() <= ENTRY_BYTES_MAX, "{}", entry.bytes());
        let (reader, writer) = table(BYTES_MIN);
        assert!(writer.put(&key, &entry) && reader.get(&key).is_some());
    }
}
