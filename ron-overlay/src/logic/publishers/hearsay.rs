//! From where on we are owed what a publisher says that began before we came and was not heard yet.
//!
//! What was said before we came is owed to nobody, and only peers know how much that is: what a peer says first of such a
//! publisher was there when we came, more or less. Nothing proves it, so one of many must not decide: who names a number that
//! is too high would make all that comes below it unowed, which nobody asks for and nobody is told of. Of two words the lower
//! holds, and of more the lowest but one: so one that lies about a number moves it no further than others do, and many that name high
//! numbers move nothing. One that lies among two can name a low number: more is asked for then than is owed.
//!
//! It decides what is asked for and told as missing, never what is taken.

use std::collections::BTreeMap;

use ron_core::NodeId;

use super::{
    Mark, Summary,
    holders::{Held, Holders},
};

/// Words about one publisher that are kept, the lowest. More do not change which one is the lowest but one.
const WORDS_MAX: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Hearsay {
    publishers: BTreeMap<NodeId, Words>,
    holders: Holders,
}

/// What each peer said first, the lowest first.
#[derive(Debug)]
struct Words {
    held: Held,
    first: Vec<(Mark, NodeId)>,
}

impl Hearsay {
    /// A peer says what there is of a publisher. So many publishers at most are remembered.
    pub(super) fn on_said(&mut self, from: NodeId, said: &Summary, most: usize) {
        let publisher = said.publisher;
        if !self.publishers.contains_key(&publisher) {
            if most == 0 {
                return;
            }
            while self.publishers.len() >= most {
                let one = self.holders.dispensable().expect("each that is remembered is held by somebody");
                self.take(&one);
            }
            let held = self.holders.hold(publisher, from);
            self.publishers.insert(publisher, Words { held, first: Vec::new() });
        }
        let Some(words) = self.publishers.get_mut(&publisher) else { return };
        if words.first.iter().any(|(_, peer)| *peer == from) {
            return;
        }
        words.first.push(((said.since, said.high), from));
        words.first.sort_unstable();
        words.first.truncate(WORDS_MAX);
        if words.first.len() > 1 {
            self.holders.confirm(publisher, &mut words.held);
        }
    }

    /// Up to where nothing is owed: of earlier beginnings nothing, of later ones all.
    pub(super) fn not_owed(&self, publisher: &NodeId) -> Option<Mark> {
        self.publishers.get(publisher).and_then(Words::believed)
    }

    /// The same, of a publisher that is heard now: it needs no hearsay any more.
    pub(super) fn take(&mut self, publisher: &NodeId) -> Option<Mark> {
        let words = self.publishers.remove(publisher)?;
        self.holders.let_go(publisher, words.held);
        words.believed()
    }
}

impl Words {
    fn believed(&self) -> Option<Mark> {
        let place = usize::from(self.first.len() >= WORDS_MAX);
        self.first.get(place).map(|(mark, _)| *mark)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn said(of: u8, (since, high): Mark) -> Summary {
        Summary { publisher: id(of), since, high }
    }

    fn believed(words: &[(u8, Mark)]) -> Option<Mark> {
        let mut hearsay = Hearsay::default();
        words.iter().for_each(|(from, mark)| hearsay.on_said(id(*from), &said(0, *mark), 8));
        hearsay.not_owed(&id(0))
    }

    #[test]
    fn of_two_words_the_lower_is_believed_and_of_more_the_lowest_but_one() {
        assert_eq!(believed(&[]), None);
        assert_eq!(believed(&[(1, (5, 7))]), Some((5, 7)));
        assert_eq!(believed(&[(1, (5, 7)), (1, (5, 9))]), Some((5, 7)), "what it says first");
        assert_eq!(believed(&[(1, (5, 1 << 40)), (2, (5, 7))]), Some((5, 7)));
        assert_eq!(believed(&[(1, (5, 1)), (2, (5, 7)), (3, (5, 8))]), Some((5, 7)));
        assert_eq!(believed(&[(1, (4, 9)), (2, (5, 7)), (3, (5, 8))]), Some((5, 7)));
        let high = (1..100).map(|from| (from, (9, 9)));
        let words: Vec<(u8, Mark)> = high.chain([(100, (5, 7)), (101, (5, 8))]).collect();
        assert_eq!(believed(&words), Some((5, 8)), "however many name a high one");
    }

    proptest! {
        /// What others say holds a liar: with one, what is believed lies between the words of the others, if those are two or more.
        #[test]
        fn one_that_lies_moves_nothing_beyond_what_others_say(
            words in prop::collection::vec((1_u64..4, 1_u64..9), 2..6),
            lie in (0_u64..9, 0_u64..20),
            place in 0_usize..6,
        ) {
            let (low, high) = (words.iter().min().copied(), words.iter().max().copied());
            let mut all = words;
            all.insert(place.min(all.len()), lie);
            let all: Vec<(u8, Mark)> = (1..).zip(all).collect();
            prop_assert!((low..=high).contains(&believed(&all)));
        }

        /// Each that is remembered is remembered because of somebody, and they are not more than so many.
        #[test]
        fn the_holders_agree_with_what_is_remembered(
            steps in prop::collection::vec((0_u8..12, 0_u8..30, (1_u64..4, 1_u64..9), any::<bool>()), 1..200),
        ) {
            let mut hearsay = Hearsay::default();
            for (from, of, mark, is_heard) in steps {
                if is_heard {
                    hearsay.take(&id(of));
                } else {
                    hearsay.on_said(id(from), &said(of, mark), 8);
                }
                prop_assert!(hearsay.publishers.len() <= 8);
                let all = hearsay.publishers.iter().map(|(id, words)| (*id, words.held));
                prop_assert!(hearsay.holders.are(all));
            }
        }
    }
}
