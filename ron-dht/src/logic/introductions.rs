//! Whose word that it takes calls is looked into.
//!
//! To find out means to dial, where the peer says, and to wait. One peer can say it two thousand times a second, with
//! another address each time; so there is one look in a while for each name, and on the open Internet, where names cost
//! nothing, for each network.

use std::{collections::HashMap, time::Duration};

use ron_core::NodeId;

use super::addrs::{AddressPolicy, Sender, Source};

/// How long after a look the same node, or another of its network, has to wait for the next: longer than a dial takes
/// that nobody answers.
pub const INTRODUCTION_PAUSE: Duration = Duration::from_secs(3);

/// Looks that are remembered, at 48 bytes each. More than this many in a pause are more than anybody could carry out.
const REMEMBERED_MAX: usize = 4096;

/// The looks of late.
#[derive(Debug, Default)]
pub struct Introductions {
    last: HashMap<Who, Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Node(NodeId),
    Network(Source),
}

impl Introductions {
    /// Whether to look into what `sender` says of itself, at `now`.
    pub fn admit(&mut self, sender: &Sender, policy: AddressPolicy, now: Duration) -> bool {
        let is_over = |at: &Duration| now.saturating_sub(*at) >= INTRODUCTION_PAUSE;
        let network = (policy == AddressPolicy::Public).then(|| Who::Network(policy.source(sender)));
        let who = || [Some(Who::Node(sender.id)), network].into_iter().flatten();
        if who().any(|who| self.last.get(&who).is_some_and(|at| !is_over(at))) {
            return false;
        }
        // Before it grows, what is over goes: at most twice what matters is kept, and each look is gone through twice.
        if self.last.len() + 2 > self.last.capacity().min(REMEMBERED_MAX) {
            self.last.retain(|_, at| !is_over(at));
            self.last.shrink_to(2 * self.last.len() + 2);
        }
        if self.last.len() + 2 > REMEMBERED_MAX {
            return false;
        }
        self.last.extend(who().map(|who| (who, now)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(id: u32, ip: [u8; 4]) -> Sender {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&id.to_be_bytes());
        Sender { id: NodeId::from_bytes(bytes), ip: ip.into() }
    }

    #[test]
    fn one_look_for_a_name_and_for_a_network() {
        let mut looks = Introductions::default();
        let public = AddressPolicy::Public;
        assert!(looks.admit(&sender(1, [9, 9, 9, 1]), public, Duration::ZERO));
        assert!(!looks.admit(&sender(1, [9, 9, 9, 1]), public, INTRODUCTION_PAUSE / 2));
        assert!(
            !looks.admit(&sender(1, [8, 8, 8, 8]), public, INTRODUCTION_PAUSE / 2),
            "the same name elsewhere"
        );
        assert!(!looks.admit(&sender(2, [9, 9, 9, 2]), public, INTRODUCTION_PAUSE / 2), "the same network");
        assert!(looks.admit(&sender(3, [8, 8, 8, 8]), public, INTRODUCTION_PAUSE / 2));
        assert!(looks.admit(&sender(2, [9, 9, 9, 2]), public, INTRODUCTION_PAUSE));
        // In a cluster everybody is of one network.
        let mut looks = Introductions::default();
        let local = AddressPolicy::Local;
        assert!((0..99).all(|id| looks.admit(&sender(id, [10, 0, 0, 1]), local, Duration::ZERO)));
        assert!(!looks.admit(&sender(5, [10, 0, 0, 1]), local, Duration::ZERO));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut looks = Introductions::default();
        let count = 3 * REMEMBERED_MAX as u32;
        let admitted = (0..count)
            .filter(|id| looks.admit(&sender(*id, [10, 0, 0, 1]), AddressPolicy::Local, Duration::ZERO))
            .count();
        assert!(admitted < REMEMBERED_MAX && looks.last.len() <= REMEMBERED_MAX);
        assert!(looks.admit(&sender(count, [10, 0, 0, 1]), AddressPolicy::Local, INTRODUCTION_PAUSE));
    }

    #[test]
    fn looks_that_are_over_take_no_room() {
        let mut looks = Introductions::default();
        for id in 0..3 * REMEMBERED_MAX as u32 {
            let (sender, at) = (sender(id, [10, 0, 0, 1]), INTRODUCTION_PAUSE * id / 4);
            assert!(looks.admit(&sender, AddressPolicy::Local, at));
            assert!(looks.last.capacity() <= 32, "{} for 4 in a pause", looks.last.capacity());
        }
    }
}
