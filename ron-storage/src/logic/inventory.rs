//! What two nodes have, compared for less than a list of it.
//!
//! Names are hashes, so their first bits cut them into even parts. A part is told as a count and a fingerprint; where those
//! of both nodes agree, nothing more is said about it. Where they differ the part is cut into sixteen, and a part of few
//! names is listed. So two nodes with the same objects need one question of some fifty bytes, and one name more among `n`
//! costs about three hundred bytes for each of the log16 `n` cuts on the way to it.
//!
//! A fingerprint is made of the sum of the names, so it is kept up to date by one addition for each change. Sums and not
//! exclusive ors: of those, whoever may store some hundred objects of its choice finds a set that cancels out. A sum only
//! makes that dearer: with tens of thousands of objects of its choice some 2^31 steps find a set with a sum of its choice.
//! What must not be missed because a stranger may store is asked for by its name.

use std::collections::BTreeSet;

use ron_core::ContentId;

/// A cut takes so many bits, and makes so many parts.
const CUT_BITS: u16 = 4;
/// Parts of a cut.
pub const PARTS: usize = 1 << CUT_BITS;

/// A part with at most so many names is listed. A list of these is as long as a cut and saves a round trip.
pub const LISTED_MAX: u64 = 16;

/// Parts in one question. Their answers fit into 128 KiB.
pub const QUESTION_PARTS_MAX: usize = 256;

/// Bits of a name.
const BITS: u16 = 256;

/// The names that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    bytes: [u8; 32],
    bits: u16,
}

impl Prefix {
    /// All names.
    pub const ALL: Prefix = Prefix { bytes: [0; 32], bits: 0 };

    /// The names whose first `bits` bits are those of `bytes`; `None` if that is no number of cuts, or if there are bits behind
    /// them.
    #[must_use]
    pub fn new(bytes: &[u8], bits: u16) -> Option<Prefix> {
        let is_cut = bits <= BITS && bits % CUT_BITS == 0;
        if !is_cut || bytes.len() != usize::from(bits.div_ceil(8)) {
            return None;
        }
        if bits % 8 != 0 && bytes.last()? & 0x0f != 0 {
            return None;
        }
        let mut all = [0; 32];
        all[..bytes.len()].copy_from_slice(bytes);
        Some(Prefix { bytes: all, bits })
    }

    /// How many bits they share.
    #[must_use]
    pub fn bits(&self) -> u16 {
        self.bits
    }

    /// The bytes that hold these bits.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.bits.div_ceil(8))]
    }

    /// The smallest name with these bits.
    #[must_use]
    pub fn first(&self) -> ContentId {
        ContentId::from_bytes(self.bytes)
    }

    /// The greatest name with these bits.
    #[must_use]
    pub fn last(&self) -> ContentId {
        let mut bytes = self.bytes;
        let whole = usize::from(self.bits / 8);
        if self.bits % 8 != 0 {
            bytes[whole] |= 0x0f;
        }
        bytes[usize::from(self.bits.div_ceil(8))..].fill(0xff);
        ContentId::from_bytes(bytes)
    }

    /// Whether a name has these bits.
    #[must_use]
    pub fn holds(&self, id: &ContentId) -> bool {
        (self.first()..=self.last()).contains(id)
    }

    /// The parts of a cut, in order; none below the last bit.
    pub fn parts(self) -> impl Iterator<Item = Prefix> {
        let at = usize::from(self.bits / 8);
        let shift = if self.bits % 8 == 0 { 4 } else { 0 };
        (0..PARTS as u8).filter(move |_| self.bits < BITS).map(move |part| {
            let mut bytes = self.bytes;
            bytes[at] |= part << shift;
            Prefix { bytes, bits: self.bits + CUT_BITS }
        })
    }
}

/// Names counted and added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    count: u64,
    /// Modulo 2^256, the lowest first.
    total: [u64; 4],
}

impl Sum {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// With one name more.
    pub fn add(&mut self, id: &ContentId) {
        self.merge(&Sum { count: 1, total: limbs(id) });
    }

    /// With one name less.
    pub fn remove(&mut self, id: &ContentId) {
        let mut borrow = false;
        for (mine, other) in self.total.iter_mut().zip(limbs(id)) {
            let (less, first) = mine.overflowing_sub(other);
            let (less, second) = less.overflowing_sub(u64::from(borrow));
            (*mine, borrow) = (less, first || second);
        }
        self.count = self.count.wrapping_sub(1);
    }

    /// With all those of another.
    pub fn merge(&mut self, other: &Sum) {
        let mut carry = false;
        for (mine, other) in self.total.iter_mut().zip(other.total) {
            let (more, first) = mine.overflowing_add(other);
            let (more, second) = more.overflowing_add(u64::from(carry));
            (*mine, carry) = (more, first || second);
        }
        self.count = self.count.wrapping_add(other.count);
    }

    /// What is told of it.
    #[must_use]
    pub fn told(&self) -> Told {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.count.to_be_bytes());
        for (at, limb) in self.total.iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&limb.to_be_bytes());
        }
        let hash = blake3::hash(&bytes);
        let fingerprint =
            if self.count == 0 { [0; 16] } else { *hash.as_bytes().first_chunk().expect("32 bytes") };
        Told { count: self.count, fingerprint }
    }
}

fn limbs(id: &ContentId) -> [u64; 4] {
    let mut limbs = [0; 4];
    for (limb, bytes) in limbs.iter_mut().zip(id.as_bytes().chunks_exact(8)) {
        *limb = u64::from_be_bytes(*bytes.first_chunk().expect("eight bytes"));
    }
    limbs.reverse();
    limbs
}

impl<'a> FromIterator<&'a ContentId> for Sum {
    fn from_iter<I: IntoIterator<Item = &'a ContentId>>(ids: I) -> Self {
        let mut sum = Sum::default();
        ids.into_iter().for_each(|id| sum.add(id));
        sum
    }
}

/// What one node tells another of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// How many names it has.
    pub count: u64,
    /// The beginning of the hash of its sum; zeroes for no names.
    pub fingerprint: [u8; 16],
}

/// A set of names that can be compared.
pub trait Names {
    /// Those that begin so, counted and added up.
    fn sum(&self, prefix: &Prefix) -> Sum;

    /// Those that begin so, in order, the first `max` of them.
    fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId>;
}

impl Names for BTreeSet<ContentId> {
    fn sum(&self, prefix: &Prefix) -> Sum {
        self.range(prefix.first()..=prefix.last()).collect()
    }

    fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId> {
        self.range(prefix.first()..=prefix.last()).take(max).copied().collect()
    }
}

/// A question: what the asker has in some parts, which are in order and apart: so it costs no more than one look at
/// everything.
pub type Question = Vec<(Prefix, Told)>;

/// What is answered for one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The same as the asker.
    Same,
    /// These names, in order.
    Listed(Vec<ContentId>),
    /// So much in each of its parts.
    Cut(Box<[Told; PARTS]>),
}

/// Answers a question, part by part.
#[must_use]
pub fn answer<N: Names + ?Sized>(names: &N, question: &Question) -> Vec<Part> {
    let part = |(prefix, asked): &(Prefix, Told)| {
        let sum = names.sum(prefix);
        if sum.told() == *asked {
            return Part::Same;
        }
        if sum.count() <= LISTED_MAX || prefix.bits() >= BITS {
            return Part::Listed(names.list(prefix, LISTED_MAX as usize));
        }
        let mut parts = [Told::default(); PARTS];
        for (told, part) in parts.iter_mut().zip(prefix.parts()) {
            *told = names.sum(&part).told();
        }
        Part::Cut(Box::new(parts))
    };
    question.iter().map(part).collect()
}

/// What two nodes do not both have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// Names that only the other node has.
    pub theirs: Vec<ContentId>,
    /// Names that only this node has.
    pub ours: Vec<ContentId>,
}

impl Difference {
    /// How many names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.theirs.len() + self.ours.len()
    }

    /// Whether both have the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a comparison cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The answer has another number of parts than the question, or names where they do not belong.
    #[error("the answer does not belong to the question")]
    Foreign,
    /// More questions than two honest nodes of this size could need.
    #[error("it would take more than {max} questions")]
    Endless {
        /// How many were allowed.
        max: u64,
    },
}

/// A comparison, from the side of the one who asks. Ask what [`poll`](Self::poll) says until it says nothing.
///
/// Both sets may change meanwhile: what is found is what differed when it was looked at. It holds at most a quarter of a
/// million parts, whatever it is told, because the deepest are asked first.
#[derive(Debug)]
pub struct Comparison {
    waiting: Vec<Prefix>,
    asked: Vec<Prefix>,
    parts_left: u64,
    parts_max: u64,
    names_max: usize,
}

impl Comparison {
    /// A comparison of everything, which ends after `parts_max` parts: one who lies could go on for ever.
    #[must_use]
    pub fn new(parts_max: u64) -> Self {
        let (waiting, names_max) = (vec![Prefix::ALL], usize::MAX);
        Comparison { waiting, asked: Vec::new(), parts_left: parts_max, parts_max, names_max }
    }

    /// Lists only some more than so many names of this node for one answer: one who has nothing, or says so, would be told
    /// of everything.
    #[must_use]
    pub fn at_most(mut self, names: usize) -> Self {
        self.names_max = names;
        self
    }

    /// The next question; `None` at the end, and while one is open.
    ///
    /// # Errors
    /// [`CompareError::Endless`].
    pub fn poll<N: Names + ?Sized>(&mut self, names: &N) -> Result<Option<Question>, CompareError> {
        if !self.asked.is_empty() || self.waiting.is_empty() {
            return Ok(None);
        }
        let parts = self.waiting.len().min(QUESTION_PARTS_MAX);
        self.parts_left =
            self.parts_left.checked_sub(parts as u64).ok_or(CompareError::Endless { max: self.parts_max })?;
        self.asked = self.waiting.split_off(self.waiting.len() - parts);
        self.asked.sort_unstable();
        Ok(Some(self.asked.iter().map(|prefix| (*prefix, names.sum(prefix).told())).collect()))
    }

    /// Takes the answer to the last question, and says what it shows to be different.
    ///
    /// # Errors
    /// [`CompareError::Foreign`]; what was found before is still true.
    pub fn on_answer<N: Names + ?Sized>(
        &mut self,
        names: &N,
        answer: &[Part],
    ) -> Result<Difference, CompareError> {
        let asked = std::mem::take(&mut self.asked);
        if asked.len() != answer.len() {
            return Err(CompareError::Foreign);
        }
        let mut found = Difference::default();
        for (prefix, part) in asked.iter().zip(answer) {
            let room = self.names_max.saturating_sub(found.len()).saturating_add(1);
            match part {
                Part::Same => {}
                Part::Listed(theirs) => {
                    let in_order = theirs.is_sorted_by(|one, next| one < next);
                    if !in_order || !theirs.iter().all(|id| prefix.holds(id)) {
                        return Err(CompareError::Foreign);
                    }
                    let max = room.saturating_add(theirs.len());
                    let ours = names.list(prefix, max);
                    // Behind the end of a list that was cut nothing is known.
                    let end = ours.last().filter(|_| ours.len() == max);
                    let missing =
                        |id: &&ContentId| ours.binary_search(id).is_err() && end.is_none_or(|end| *id <= end);
                    found.theirs.extend(theirs.iter().filter(missing));
                    found.ours.extend(ours.iter().filter(|id| theirs.binary_search(id).is_err()));
                }
                Part::Cut(parts) => {
                    for (told, part) in parts.iter().zip(prefix.parts()) {
                        if told.count == 0 {
                            found.ours.extend(names.list(&part, room));
                        } else if names.sum(&part).told() != *told {
                            self.waiting.push(part);
                        }
                    }
                    if prefix.bits() >= BITS {
                        return Err(CompareError::Foreign);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whether everything was compared.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u64) -> ContentId {
        ContentId::of(&number.to_be_bytes())
    }

    /// What a comparison finds, how many round trips it took, and how many bytes both ways, as they are encoded.
    fn compare(ours: &BTreeSet<ContentId>, theirs: &BTreeSet<ContentId>) -> (Difference, u64, usize) {
        let (mut comparison, mut all) = (Comparison::new(1 << 20), Difference::default());
        let (mut trips, mut bytes) = (0, 0);
        while let Some(question) = comparison.poll(ours).unwrap() {
            let told = answer(theirs, &question);
            trips += 1;
            bytes += question.iter().map(|(prefix, _)| prefix.bytes().len() + 3 + 17 + 3).sum::<usize>();
            bytes += told
                .iter()
                .map(|part| match part {
                    Part::Same => 1,
                    Part::Listed(ids) => 2 + 34 * ids.len(),
                    Part::Cut(parts) => 2 + 22 * parts.len(),
                })
                .sum::<usize>();
            let found = comparison.on_answer(ours, &told).unwrap();
            all.theirs.extend(found.theirs);
            all.ours.extend(found.ours);
        }
        assert!(comparison.is_done());
        all.theirs.sort_unstable();
        all.ours.sort_unstable();
        (all, trips, bytes)
    }

    #[test]
    fn equal_sets_cost_one_trip_and_a_few_bytes() {
        for count in [0, 1, 100, 50_000] {
            let set: BTreeSet<_> = (0..count).map(id).collect();
            let (found, trips, bytes) = compare(&set, &set);
            assert!(found.is_empty());
            assert_eq!((trips, bytes), (1, 24), "{count}");
        }
    }

    /// The stated cost: about 400 bytes for each difference and cut on the way to it, and a trip for each cut.
    #[test]
    fn a_few_differences_cost_as_much_as_the_way_to_them() {
        let ours: BTreeSet<_> = (0..50_000).map(id).collect();
        for different in [1, 10, 100, 1000] {
            let theirs: BTreeSet<_> = (different..50_000 + different).map(id).collect();
            let (found, trips, bytes) = compare(&ours, &theirs);
            assert_eq!((found.theirs.len() as u64, found.ours.len() as u64), (different, different));
            let (cuts, differences) = (5, 2 * usize::try_from(different).unwrap());
            assert!(trips <= cuts + differences as u64 / 64, "{different}: {trips}");
            assert!(bytes <= 500 * differences * cuts as usize, "{different}: {bytes}");
            assert!(different > 100 || bytes < 50_000 * 32 / 10, "{different}: {bytes}");
        }
    }

    #[test]
    fn who_has_nothing_learns_of_everything() {
        let (none, all): (BTreeSet<_>, BTreeSet<_>) = (BTreeSet::new(), (0..5000).map(id).collect());
        let (found, _, bytes) = compare(&none, &all);
        assert_eq!(found.theirs, all.iter().copied().collect::<Vec<_>>());
        assert!(bytes < 5000 * 80, "{bytes}");
        let (found, trips, _) = compare(&all, &none);
        assert_eq!((found.ours.len(), trips), (5000, 1));
    }

    /// Names that are not listed by the thousand.
    struct Long(BTreeSet<ContentId>);

    impl Names for Long {
        fn sum(&self, prefix: &Prefix) -> Sum {
            self.0.sum(prefix)
        }

        fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId> {
            assert!(max <= 10 + 1 + LISTED_MAX as usize, "{max}");
            self.0.list(prefix, max)
        }
    }

    #[test]
    fn no_more_is_listed_than_is_wanted() {
        let ours = Long((0..5000).map(id).collect());
        let some: BTreeSet<_> = (4995..5010).map(id).collect();
        for theirs in [BTreeSet::new(), some] {
            let mut comparison = Comparison::new(1 << 20).at_most(10);
            let question = comparison.poll(&ours).unwrap().unwrap();
            let found = comparison.on_answer(&ours, &answer(&theirs, &question)).unwrap();
            assert!(found.ours.len() > 10, "{}", found.ours.len());
            assert!(found.ours.iter().all(|id| !theirs.contains(id)));
            assert!(found.theirs.iter().all(|id| !ours.0.contains(id)));
        }
    }

    #[test]
    fn a_liar_is_left_and_cannot_go_on_for_ever() {
        let ours: BTreeSet<_> = (0..100).map(id).collect();
        let asked = || {
            let mut comparison = Comparison::new(300);
            comparison.poll(&ours).unwrap().unwrap();
            comparison
        };
        assert_eq!(asked().on_answer(&ours, &[]), Err(CompareError::Foreign));
        let twice = Part::Listed(vec![id(1), id(1)]);
        assert_eq!(asked().on_answer(&ours, &[twice]), Err(CompareError::Foreign));
        let mut comparison = asked();
        let lie = Part::Cut(Box::new([Told { count: 7, fingerprint: [7; 16] }; PARTS]));
        comparison.on_answer(&ours, std::slice::from_ref(&lie)).unwrap();
        let ended = loop {
            match comparison.poll(&ours) {
                Ok(Some(question)) => {
                    comparison.on_answer(&ours, &vec![lie.clone(); question.len()]).unwrap();
                }
                ended => break ended,
            }
        };
        assert_eq!(ended, Err(CompareError::Endless { max: 300 }));
    }

    #[test]
    fn prefixes_have_one_form() {
        let half = Prefix::new(&[0xab, 0xc0], 12).unwrap();
        assert_eq!(half.first().as_bytes()[..3], [0xab, 0xc0, 0]);
        assert_eq!(half.last().as_bytes()[..3], [0xab, 0xcf, 0xff]);
        let parts: Vec<_> = half.parts().collect();
        assert_eq!((parts.len(), parts[15].bytes(), parts[15].bits()), (16, &[0xab, 0xcf][..], 16));
        for (bytes, bits) in [(&[0xab, 0xc1][..], 12), (&[0xab], 12), (&[0xa0], 5), (&[0; 33], 264)] {
            assert_eq!(Prefix::new(bytes, bits), None);
        }
        let whole = Prefix::new(&[7; 32], 256).unwrap();
        assert_eq!((whole.first(), whole.parts().count()), (whole.last(), 0));
    }

    proptest! {
        #[test]
        fn what_is_found_is_the_difference(
            both in prop::collection::btree_set(0..500u64, 0..200),
            ours in prop::collection::btree_set(500..600u64, 0..40),
            theirs in prop::collection::btree_set(600..700u64, 0..40),
        ) {
            let set = |own: &BTreeSet<u64>| both.iter().chain(own).map(|number| id(*number)).collect::<BTreeSet<_>>();
            let (mine, other) = (set(&ours), set(&theirs));
            let (found, ..) = compare(&mine, &other);
            prop_assert_eq!(found.theirs, other.difference(&mine).copied().collect::<Vec<_>>());
            prop_assert_eq!(found.ours, mine.difference(&other).copied().collect::<Vec<_>>());
            // And a sum does not care for the way to it.
            let mut sum: Sum = mine.iter().collect();
            other.iter().for_each(|id| sum.add(id));
            mine.iter().for_each(|id| sum.remove(id));
            prop_assert_eq!(sum, other.iter().collect::<Sum>());
        }
    }
}
