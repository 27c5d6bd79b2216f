//! Who is in the routing table: a bucket's rules, and the walk from the nearest bucket to the farthest.
//!
//! Only peers that answered us enter, so nobody gets in by being talked about. The longest-known peer that still
//! answers stays: age predicts staying, and a flood of fresh ids cannot push it out. A newcomer to a full bucket waits
//! among the spares until a peer of the bucket fails.
//!
//! A peer that stops answering while nobody waits for its place is kept, marked silent and no longer named to anyone:
//! a node whose own link is down would otherwise throw away its whole table, and have nobody to ask when it is back.
//!
//! One writer owns a [`Bucket`]; readers hold its [snapshots](Bucket::snapshot), which never change.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use ron_core::{Distance, NodeId};

use super::{Contact, Key, Rtt};

/// Peers per bucket, and peers named in an answer: Kademlia's k.
pub const K: usize = 20;

/// Buckets of a table: one for each bit at which an id can begin to differ from ours.
pub const BUCKETS: usize = 256;

/// Newcomers that wait for a place. Half of k survives half a bucket failing at once; more would only be older.
const SPARES_MAX: usize = 10;

/// Failures in a row after which a peer is silent. One lost packet in ten makes three in a row once in a thousand.
const FAILURES_MAX: u8 = 3;

/// The same while somebody waits for the place. Not one: a flood of newcomers would turn every lost packet into an
/// old peer's end. The peer we pinged because of a newcomer does go at its first failure.
const FAILURES_MAX_WHILE_WAITED_FOR: u8 = 2;

/// A peer heard within this time is not pinged for a newcomer's sake, and one bucket asks for one ping in this time:
/// newcomers are free to make, pings are not.
const PING_PAUSE: Duration = Duration::from_secs(10);

/// Spares heard within this time count as equally fresh, and the fastest of them goes first.
const SPARE_FRESH: Duration = Duration::from_secs(600);

/// At most this many peers of one address prefix in a bucket, and in the table. Addresses cost an attacker more than
/// ids do: k of one bucket need ten networks, and one network holds ten places of the two hundred or so in a table.
const PREFIX_PEERS_PER_BUCKET: usize = 2;
const PREFIX_PEERS_PER_TABLE: usize = 10;

/// A peer of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Who and where.
    pub contact: Contact,
    /// How fast it answers.
    pub rtt: Rtt,
    prefix: Prefix,
    /// When it last answered us, in tenths of a second: thirteen years in four bytes. A table is three hundred of these.
    seen: u32,
    failures: u8,
}

impl Entry {
    /// When it last answered us, to a tenth of a second.
    #[must_use]
    pub(crate) fn seen(&self) -> Duration {
        Duration::from_millis(u64::from(self.seen) * 100)
    }

    /// Whether it has failed too often in a row to be named to others. It may come back.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

/// What became of a peer that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// It was in the bucket and is refreshed.
    Known,
    /// It is in the bucket now.
    Entered,
    /// It waits for a place, and nobody has to be asked about it now.
    Waits,
    /// It waits for a place. Ping this peer, the one unheard for longest, and report how that went.
    PingOldest(Contact),
    /// Its network has its share of places already. It is not in the bucket (any more).
    Crowded,
}

/// What became of a peer that failed to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// It is not in the bucket.
    Unknown,
    /// It stays, with one more failure to its name, or [silent](Entry::is_silent).
    Stays,
    /// It was replaced by this peer, which had been waiting.
    Replaced(Contact),
}

/// The peers that share the same number of leading bits with us, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Bucket {
    entries: Arc<[Entry]>,
    /// Least recently heard first.
    spares: Vec<Entry>,
    /// Whom we last asked to be pinged, and when.
    pinged: Option<(NodeId, Duration)>,
}

impl Bucket {
    /// A bucket without peers.
    #[must_use]
    pub fn new() -> Self {
        Bucket::default()
    }

    /// Its peers as they are now, the longest-known first. Sharing it is cheap; the next change copies.
    #[must_use]
    pub fn snapshot(&self) -> Arc<[Entry]> {
        Arc::clone(&self.entries)
    }

    /// `contact` answered us from `observed` after `rtt`. `observed` is where the connection goes, not what the peer
    /// says of itself.
    pub fn on_answer(
        &mut self,
        contact: Contact,
        observed: IpAddr,
        rtt: Duration,
        diversity: &mut Diversity,
        now: Duration,
    ) -> Answered {
        let prefix = Prefix::of(observed);
        if self.pinged.is_some_and(|(id, _)| id == contact.id) {
            self.pinged = None;
        }
        if let Some(at) = position(&self.entries, &contact.id) {
            return self.refresh(at, contact, prefix, rtt, diversity, now);
        }
        let mut entry = match position(&self.spares, &contact.id) {
            Some(at) => self.spares.remove(at),
            None => Entry { contact: contact.clone(), rtt: Rtt::UNKNOWN, prefix, seen: 0, failures: 0 },
        };
        entry.touch(contact, prefix, rtt, now);
        if self.entries.len() < K {
            if !diversity.admits(&self.entries, prefix) {
                return Answered::Crowded;
            }
            self.enter(entry, diversity);
            return Answered::Entered;
        }
        if let Some(at) = self.silent_to_replace(prefix) {
            let gone = self.leave(at, diversity);
            if diversity.admits(&self.entries, prefix) {
                self.enter(entry, diversity);
                return Answered::Entered;
            }
            self.insert(at, gone, diversity);
            return Answered::Crowded;
        }
        if !diversity.admits(&self.spares, prefix) {
            return Answered::Crowded;
        }
        if self.spares.len() == SPARES_MAX {
            self.spares.remove(0);
        }
        if self.spares.capacity() == 0 {
            self.spares.reserve_exact(SPARES_MAX);
        }
        self.spares.push(entry);
        match self.oldest_worth_a_ping(now) {
            Some(oldest) => {
                self.pinged = Some((oldest.id, now));
                Answered::PingOldest(oldest)
            }
            None => Answered::Waits,
        }
    }

    /// A request to `id` got no answer: refused, garbled or not in time. An answer that came and said it was too busy
    /// is an answer.
    pub fn on_failure(&mut self, id: &NodeId, diversity: &mut Diversity, now: Duration) -> Failed {
        if let Some(at) = position(&self.spares, id) {
            self.spares.remove(at);
            return Failed::Unknown;
        }
        let Some(at) = position(&self.entries, id) else { return Failed::Unknown };
        let pinged = self.pinged.take_if(|(pinged, _)| pinged == id).is_some();
        let entry = &mut Arc::make_mut(&mut self.entries)[at];
        entry.failures = entry.failures.saturating_add(1);
        // What was known of its speed is in doubt: a timeout that fitted the old speed would never see the new one.
        entry.rtt = Rtt::UNKNOWN;
        let failures_max = if pinged { 1 } else { FAILURES_MAX_WHILE_WAITED_FOR };
        if entry.failures < failures_max {
            return Failed::Stays;
        }
        let gone = self.leave(at, diversity);
        match self.promote(diversity, now) {
            Some(contact) => Failed::Replaced(contact),
            None => {
                // Nobody fits. It keeps its place in the order of age as well, should it come back.
                self.insert(at, gone, diversity);
                Failed::Stays
            }
        }
    }

    fn refresh(
        &mut self,
        at: usize,
        contact: Contact,
        prefix: Prefix,
        rtt: Duration,
        diversity: &mut Diversity,
        now: Duration,
    ) -> Answered {
        if self.entries[at].prefix == prefix {
            Arc::make_mut(&mut self.entries)[at].touch(contact, prefix, rtt, now);
            return Answered::Known;
        }
        // It moved. Places held in many networks must not end up in one.
        let mut entry = self.leave(at, diversity);
        if diversity.admits(&self.entries, prefix) {
            entry.touch(contact, prefix, rtt, now);
            self.insert(at, entry, diversity);
            return Answered::Known;
        }
        self.promote(diversity, now);
        Answered::Crowded
    }

    /// The freshest spare that fits takes the free place.
    fn promote(&mut self, diversity: &mut Diversity, now: Duration) -> Option<Contact> {
        let fits = |(_, spare): &(usize, &Entry)| diversity.admits(&self.entries, spare.prefix);
        let ranked = self.spares.iter().enumerate().filter(fits);
        let (at, _) = ranked.min_by_key(|(_, spare)| spare.rank(now))?;
        let spare = self.spares.remove(at);
        let contact = spare.contact.clone();
        self.enter(spare, diversity);
        Some(contact)
    }

    /// A silent peer whose place a newcomer may take, if possible one of the same network: its share is free then.
    fn silent_to_replace(&self, prefix: Prefix) -> Option<usize> {
        let silent = || self.entries.iter().enumerate().filter(|(_, entry)| entry.is_silent());
        silent().find(|(_, entry)| entry.prefix == prefix).or_else(|| silent().next()).map(|(at, _)| at)
    }

    fn oldest_worth_a_ping(&self, now: Duration) -> Option<Contact> {
        let long_ago = |then: Duration| now.saturating_sub(then) >= PING_PAUSE;
        if self.pinged.is_some_and(|(_, at)| !long_ago(at)) {
            return None;
        }
        let oldest = self.entries.iter().min_by_key(|entry| entry.seen)?;
        long_ago(oldest.seen()).then(|| oldest.contact.clone())
    }

    fn enter(&mut self, entry: Entry, diversity: &mut Diversity) {
        self.insert(self.entries.len(), entry, diversity);
    }

    fn insert(&mut self, at: usize, entry: Entry, diversity: &mut Diversity) {
        diversity.count(entry.prefix);
        let (older, younger) = self.entries.split_at(at);
        self.entries = older.iter().cloned().chain([entry]).chain(younger.iter().cloned()).collect();
    }

    fn leave(&mut self, at: usize, diversity: &mut Diversity) -> Entry {
        let mut entries = self.entries.to_vec();
        let gone = entries.remove(at);
        diversity.uncount(gone.prefix);
        self.entries = entries.into();
        gone
    }
}

impl Entry {
    fn touch(&mut self, contact: Contact, prefix: Prefix, rtt: Duration, now: Duration) {
        // An equal list is not worth a second allocation: most answers change nothing.
        if self.contact != contact {
            self.contact = contact;
        }
        self.prefix = prefix;
        self.rtt.on_sample(rtt);
        self.seen = u32::try_from(now.as_millis() / 100).unwrap_or(u32::MAX);
        self.failures = 0;
    }

    /// Spares in the order in which they are called in: those heard of late by speed, then the others by age.
    fn rank(&self, now: Duration) -> (Duration, Option<Duration>) {
        let unheard = now.saturating_sub(self.seen());
        if unheard <= SPARE_FRESH { (Duration::ZERO, self.rtt.mean()) } else { (unheard, None) }
    }
}

fn position(entries: &[Entry], id: &NodeId) -> Option<usize> {
    entries.iter().position(|entry| entry.contact.id == *id)
}

/// The network an address belongs to, as far as it can be told: a /24, or a /48 of IPv6. The smallest blocks that are
/// routed, so the smallest that somebody has to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Prefix(u64);

impl Prefix {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Prefix(u64::from(v4.to_bits() >> 8) | 1 << 63),
            IpAddr::V6(v6) => Prefix(Self::top_48_bits(v6)),
        }
    }

    fn top_48_bits(address: Ipv6Addr) -> u64 {
        let [a, b, c, ..] = address.segments();
        u64::from(a) << 32 | u64::from(b) << 16 | u64::from(c)
    }
}

/// How many places of the table each network holds. Shared by the writers of all buckets, each for the moment of a
/// change.
#[derive(Debug, Clone, Default)]
pub struct Diversity {
    /// `None` where networks are not limited.
    held: Option<HashMap<Prefix, usize>>,
}

impl Diversity {
    /// No limits: on one desk or in one building every peer is of the same network, and a limit would keep the
    /// cluster from forming.
    #[must_use]
    pub fn unlimited() -> Self {
        Diversity { held: None }
    }

    /// The limits for peers nobody chose: two of a /24 or IPv6 /48 in a bucket, ten in the table.
    #[must_use]
    pub fn public() -> Self {
        Diversity { held: Some(HashMap::new()) }
    }

    fn admits(&self, beside: &[Entry], prefix: Prefix) -> bool {
        let Some(held) = &self.held else { return true };
        held.get(&prefix).is_none_or(|held| *held < PREFIX_PEERS_PER_TABLE)
            && beside.iter().filter(|entry| entry.prefix == prefix).count() < PREFIX_PEERS_PER_BUCKET
    }

    fn count(&mut self, prefix: Prefix) {
        if let Some(held) = &mut self.held {
            *held.entry(prefix).or_default() += 1;
        }
    }

    fn uncount(&mut self, prefix: Prefix) {
        let Some(held) = &mut self.held else { return };
        if let Some(places) = held.get_mut(&prefix) {
            *places -= 1;
            if *places == 0 {
                held.remove(&prefix);
            }
        }
    }
}

/// The bucket where `id` belongs in the table of `own`: the number of leading bits they share, so bucket 0 holds half
/// of the network. `None` for `own` itself.
#[must_use]
pub fn bucket_index(own: &NodeId, id: &NodeId) -> Option<usize> {
    let shared = own.distance(id).leading_zeros() as usize;
    (shared < BUCKETS).then_some(shared)
}

/// Shows `visit` the peers nearest to `target` in the table of `own`, the nearest first, silent ones left out, until it
/// has seen `count`.
///
/// `bucket` gives the snapshot of a bucket, or nothing if it has none; it is asked for the first `buckets` in order of
/// distance and no further than needed.
pub fn visit_closest<S: AsRef<[Entry]>>(
    own: &NodeId,
    target: &Key,
    count: usize,
    buckets: usize,
    mut bucket: impl FnMut(usize) -> Option<S>,
    mut visit: impl FnMut(&Entry),
) {
    let mut room = count;
    let mut live: Vec<(Distance, usize)> = Vec::with_capacity(K);
    for index in by_distance(own, target, buckets) {
        if room == 0 {
            break;
        }
        let Some(snapshot) = bucket(index) else { continue };
        let entries = snapshot.as_ref();
        let alive = entries.iter().enumerate().filter(|(_, entry)| !entry.is_silent());
        live.clear();
        live.extend(alive.map(|(at, entry)| (target.distance(&entry.contact.id), at)));
        live.sort_unstable();
        live.truncate(room);
        room -= live.len();
        live.iter().for_each(|(_, at)| visit(&entries[*at]));
    }
}

/// The first `buckets`, so that every peer of one is nearer to `target` than any peer of the next.
///
/// A peer of bucket `b` has our bits before `b`, the other bit at `b`, and any after. Where we differ from the target,
/// being different from us is being nearer, and the earlier the bit the more it weighs; where we agree it is farther.
fn by_distance(own: &NodeId, target: &Key, buckets: usize) -> impl Iterator<Item = usize> + use<> {
    let distance = own.distance(target);
    let differs = move |bit: &usize| distance.as_bytes()[bit / 8] >> (7 - bit % 8) & 1 == 1;
    (0..buckets).filter(differs).chain((0..buckets).rev().filter(move |bit| !differs(bit)))
}

/// A random key that belongs in bucket `index` of the table of `own`: what to look for to fill that bucket.
///
/// # Panics
/// If there is no bucket `index`.
#[must_use]
pub fn random_key_in(own: &NodeId, index: usize, rng: &mut fastrand::Rng) -> Key {
    assert!(index < BUCKETS, "a table has {BUCKETS} buckets");
    let (byte, bit) = (index / 8, 0x80 >> (index % 8));
    let mut key = *own.as_bytes();
    // Below the bit everything is random, the bit itself is flipped, above it nothing changes.
    key[byte] ^= bit | rng.u8(..) & (bit - 1);
    key[byte + 1..].fill_with(|| rng.u8(..));
    Key::from_bytes(key)
}

#[cfg(test)]
impl Entry {
    /// A peer that answered once, at the beginning of time.
    pub(crate) fn heard(contact: Contact, rtt: Duration) -> Self {
        let mut entry = Entry { contact, rtt: Rtt::UNKNOWN, prefix: Prefix(0), seen: 0, failures: 0 };
        entry.rtt.on_sample(rtt);
        entry
    }
}

#[cfg(test)]
impl Bucket {
    /// A bucket with these peers, nobody waiting.
    pub(crate) fn of(entries: Arc<[Entry]>) -> Self {
        Bucket { entries, ..Bucket::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RTT: Duration = Duration::from_millis(30);

    fn id(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn contact(n: u8) -> Contact {
        Contact { id: id(n), addrs: Arc::new([([10, 0, n, 1], 4000).into()]) }
    }

    /// Every `n` in a network of its own.
    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, n, 1])
    }

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// A bucket of `count` peers that answered at seconds 0, 1, 2...
    fn filled(count: u8) -> (Bucket, Diversity) {
        let (mut bucket, mut diversity) = (Bucket::new(), Diversity::public());
        for n in 0..count {
            let entered = bucket.on_answer(contact(n), address(n), RTT, &mut diversity, secs(u64::from(n)));
            assert_eq!(entered, Answered::Entered);
        }
        (bucket, diversity)
    }

    fn ids(bucket: &Bucket) -> Vec<NodeId> {
        bucket.snapshot().iter().map(|entry| entry.contact.id).collect()
    }

    #[test]
    fn a_full_bucket_keeps_its_old_peers_and_asks_after_the_oldest() {
        let (mut bucket, mut diversity) = filled(20);
        let before = ids(&bucket);
        let mut answer = |n, at| bucket.on_answer(contact(n), address(n), RTT, &mut diversity, secs(at));
        assert_eq!(answer(20, 100), Answered::PingOldest(contact(0)));
        // One ping at a time, however many come.
        assert_eq!(answer(21, 100), Answered::Waits);
        // The ping was answered, and everybody else spoke as well: nobody is worth a ping.
        for n in 0..20 {
            assert_eq!(answer(n, 101), Answered::Known);
        }
        assert_eq!(answer(22, 105), Answered::Waits);
        assert_eq!(ids(&bucket), before);
    }

    #[test]
    fn the_pinged_one_goes_at_its_first_failure() {
        let (mut bucket, mut diversity) = filled(20);
        let asked = bucket.on_answer(contact(20), address(20), RTT, &mut diversity, secs(100));
        assert_eq!(asked, Answered::PingOldest(contact(0)));
        assert_eq!(
            bucket.on_failure(&id(0), &mut diversity, secs(101)),
            Failed::Replaced(contact(20)),
            "nobody else waits"
        );
        assert!(!ids(&bucket).contains(&id(0)));
        assert_eq!(bucket.on_failure(&id(0), &mut diversity, secs(102)), Failed::Unknown);
    }

    #[test]
    fn others_go_at_their_second_while_somebody_waits() {
        let (mut bucket, mut diversity) = filled(20);
        bucket.on_answer(contact(20), address(20), RTT, &mut diversity, secs(15));
        assert_eq!(bucket.on_failure(&id(7), &mut diversity, secs(16)), Failed::Stays);
        bucket.on_answer(contact(7), address(7), RTT, &mut diversity, secs(17));
        assert_eq!(bucket.on_failure(&id(7), &mut diversity, secs(18)), Failed::Stays, "not in a row");
        assert_eq!(bucket.on_failure(&id(7), &mut diversity, secs(19)), Failed::Replaced(contact(20)));
    }

    /// A node whose own link was down for a minute used to come back with an empty table and only its seeds to ask.
    #[test]
    fn an_outage_of_our_own_empties_no_table() {
        let (mut bucket, mut diversity) = filled(20);
        for n in (0..20).chain(0..20).chain(0..20) {
            assert_eq!(bucket.on_failure(&id(n), &mut diversity, secs(30)), Failed::Stays);
        }
        assert_eq!(bucket.snapshot().len(), 20);
        assert!(bucket.snapshot().iter().all(Entry::is_silent));
        let mut named = Vec::new();
        let snapshot = |_| Some(bucket.snapshot());
        visit_closest(&id(255), &Key::from(id(0)), 20, BUCKETS, snapshot, |entry| named.push(entry.clone()));
        assert_eq!(named, [], "silent peers are not named");
        // Whoever answers is back, in its old place; a stranger takes the place of a silent one at once.
        assert_eq!(bucket.on_answer(contact(3), address(3), RTT, &mut diversity, secs(60)), Answered::Known);
        assert_eq!(
            bucket.on_answer(contact(30), address(30), RTT, &mut diversity, secs(60)),
            Answered::Entered
        );
        assert_eq!(bucket.snapshot().len(), 20);
        assert_eq!(bucket.snapshot()[2].contact.id, id(3));
    }

    #[test]
    fn the_fastest_of_the_fresh_spares_is_called_in() {
        let (mut bucket, mut diversity) = filled(20);
        for (n, rtt, at) in [(20, 5, 20), (21, 90, 1000), (22, 40, 1001), (23, 60, 1002)] {
            bucket.on_answer(contact(n), address(n), Duration::from_millis(rtt), &mut diversity, secs(at));
        }
        // 20 was heard too long ago to count, fast as it was.
        bucket.on_failure(&id(1), &mut diversity, secs(1003));
        assert_eq!(bucket.on_failure(&id(1), &mut diversity, secs(1003)), Failed::Replaced(contact(22)));
        bucket.on_failure(&id(2), &mut diversity, secs(1003));
        assert_eq!(bucket.on_failure(&id(2), &mut diversity, secs(1003)), Failed::Replaced(contact(23)));
    }

    #[test]
    fn addresses_and_speed_follow_the_peer() {
        let (mut bucket, mut diversity) = filled(3);
        let moved = Contact { id: id(1), addrs: Arc::new([([192, 0, 2, 9], 9).into()]) };
        bucket.on_answer(
            moved.clone(),
            [192, 0, 2, 9].into(),
            Duration::from_millis(110),
            &mut diversity,
            secs(9),
        );
        let entry = bucket.snapshot()[1].clone();
        assert_eq!((entry.seen(), entry.contact), (secs(9), moved));
        assert_eq!(entry.rtt.mean(), Some(Duration::from_millis(40)));
        bucket.on_failure(&id(1), &mut diversity, secs(10));
        assert_eq!(bucket.snapshot()[1].rtt, Rtt::UNKNOWN);
    }

    #[test]
    fn one_network_gets_two_places_in_a_bucket_and_ten_in_the_table() {
        let here = IpAddr::from([198, 51, 100, 7]);
        let mut diversity = Diversity::public();
        let mut entered = 0;
        for n in 0..8 {
            let mut bucket = Bucket::new();
            for m in 0..4 {
                let answer = bucket.on_answer(contact(4 * n + m), here, RTT, &mut diversity, secs(1));
                entered += usize::from(answer == Answered::Entered);
            }
            assert!(bucket.snapshot().len() <= 2);
        }
        assert_eq!(entered, 10);
        let mut bucket = Bucket::new();
        let mut diversity = Diversity::unlimited();
        for n in 0..20 {
            assert_eq!(bucket.on_answer(contact(n), here, RTT, &mut diversity, secs(1)), Answered::Entered);
        }
    }

    #[test]
    fn prefixes_are_what_is_routed() {
        let same = |a: &str, b: &str| {
            Prefix::of(a.parse().expect("an address")) == Prefix::of(b.parse().expect("an address"))
        };
        assert!(same("203.0.113.1", "203.0.113.254"));
        assert!(!same("203.0.113.1", "203.0.112.1"));
        assert!(same("2001:db8:1:2::3", "2001:db8:1:ffff::1"));
        assert!(!same("2001:db8:1::", "2001:db8:2::"));
        assert!(same("::ffff:203.0.113.9", "203.0.113.1"));
        assert!(!same("::", "0.0.0.0"));
    }

    #[test]
    fn half_of_the_key_space_is_bucket_zero() {
        let own = id(0);
        assert_eq!(bucket_index(&own, &own), None);
        assert_eq!(bucket_index(&own, &id(0x80)), Some(0));
        assert_eq!(bucket_index(&own, &id(0x01)), Some(7));
        let mut nearest = [0; 32];
        nearest[31] = 1;
        assert_eq!(bucket_index(&own, &NodeId::from_bytes(nearest)), Some(255));
    }

    #[test]
    fn an_entry_stays_small() {
        // Ten thousand nodes in one process: 14 buckets of 30 entries each are 37 KiB a node, with the addresses 60.
        assert!(size_of::<Entry>() <= 96, "{} bytes", size_of::<Entry>());
    }

    proptest! {
        #[test]
        fn random_keys_fall_into_their_bucket(own: [u8; 32], index in 0..BUCKETS, seed: u64) {
            let own = NodeId::from_bytes(own);
            let key = random_key_in(&own, index, &mut fastrand::Rng::with_seed(seed));
            prop_assert_eq!(bucket_index(&own, &NodeId::from_bytes(*key.as_bytes())), Some(index));
        }

        #[test]
        fn the_walk_finds_what_sorting_finds(seed: u64, near in 0_u8..32, peers in 0_usize..200, count in 0_usize..30) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let own = random_id(&mut rng);
            let mut table: Vec<Bucket> = (0..BUCKETS).map(|_| Bucket::new()).collect();
            let mut diversity = Diversity::unlimited();
            for _ in 0..peers {
                // Deep buckets would stay empty with ids that are all random.
                let at = rng.usize(0..=usize::from(near));
                let id = NodeId::from_bytes(*random_key_in(&own, at, &mut rng).as_bytes());
                let contact = Contact { id, addrs: Arc::new([]) };
                let index = bucket_index(&own, &id).expect("not our own");
                table[index].on_answer(contact, address(1), RTT, &mut diversity, secs(1));
            }
            let target = random_key_in(&own, rng.usize(0..=usize::from(near)), &mut rng);
            for target in [target, Key::from(own), Key::from(random_id(&mut rng))] {
                let mut all: Vec<Entry> = table.iter().flat_map(|bucket| bucket.snapshot().to_vec()).collect();
                all.sort_by_key(|entry| target.distance(&entry.contact.id));
                all.truncate(count);
                let mut found = Vec::new();
                let snapshot = |index: usize| Some(table[index].snapshot());
                visit_closest(&own, &target, count, BUCKETS, snapshot, |entry| found.push(entry.clone()));
                prop_assert_eq!(found, all);
            }
        }

        /// Whatever peers do: bounds hold, nobody is there twice, limits hold and what is counted is what is there.
        #[test]
        fn a_bucket_keeps_its_bounds(events in prop::collection::vec((0_u8..60, 0_u8..12, any::<bool>(), 0_u64..30), 0..400)) {
            let (mut bucket, mut other) = (Bucket::new(), Bucket::new());
            let mut diversity = Diversity::public();
            let mut now = Duration::ZERO;
            for (n, network, answers, later) in events {
                now += secs(later);
                let bucket = if n % 4 == 0 { &mut other } else { &mut bucket };
                let before = bucket.snapshot();
                let peer = id(n);
                if answers {
                    let answer = bucket.on_answer(contact(n), address(network), RTT, &mut diversity, now);
                    let inside = ids(bucket).contains(&peer);
                    prop_assert_eq!(inside, matches!(answer, Answered::Known | Answered::Entered));
                    if let Answered::PingOldest(oldest) = answer {
                        prop_assert!(ids(bucket).contains(&oldest.id));
                    }
                } else {
                    let failed = bucket.on_failure(&peer, &mut diversity, now);
                    prop_assert_eq!(ids(bucket).contains(&peer), failed == Failed::Stays);
                    prop_assert_eq!(before.len(), bucket.snapshot().len(), "a failure leaves no hole");
                }
                prop_assert!(bucket.snapshot().len() <= K && bucket.spares.len() <= SPARES_MAX);
                // Nobody who answers is replaced by somebody else's answer.
                for entry in before.iter().filter(|entry| !entry.is_silent() && entry.contact.id != peer) {
                    prop_assert!(ids(bucket).contains(&entry.contact.id));
                }
                let mut everyone: Vec<NodeId> = ids(bucket);
                everyone.extend(bucket.spares.iter().map(|spare| spare.contact.id));
                everyone.sort();
                let count = everyone.len();
                everyone.dedup();
                prop_assert_eq!(everyone.len(), count, "twice the same");
            }
            let mut held: HashMap<Prefix, usize> = HashMap::new();
            for snapshot in [bucket.snapshot(), other.snapshot()] {
                for entry in snapshot.iter() {
                    *held.entry(entry.prefix).or_default() += 1;
                    let beside = snapshot.iter().filter(|other| other.prefix == entry.prefix).count();
                    prop_assert!(beside <= PREFIX_PEERS_PER_BUCKET);
                }
            }
            prop_assert!(held.values().all(|held| *held <= PREFIX_PEERS_PER_TABLE));
            prop_assert_eq!(diversity.held, Some(held));
        }
    }

    fn random_id(rng: &mut fastrand::Rng) -> NodeId {
        let mut bytes = [0; 32];
        rng.fill(&mut bytes);
        NodeId::from_bytes(bytes)
    }
}
