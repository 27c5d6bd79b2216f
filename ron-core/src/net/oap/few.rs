//! A map for what is open on one connection: a few entries, a thousand at most, whose keys mostly come in order.
//!
//! For so few, a sorted list is faster than a hash or a tree, allocates nothing once it has grown, and a peer that
//! chooses its keys to hurt can at worst make us move a thousand entries.

use std::mem;

/// Entries by number.
#[derive(Debug)]
pub(in crate::net) struct Few<V> {
    entries: Vec<(u64, V)>,
}

impl<V> Few<V> {
    pub(in crate::net) const fn new() -> Self {
        Few { entries: Vec::new() }
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        match self.entries.last() {
            Some((last, _)) if *last < key => Err(self.entries.len()),
            None => Err(0),
            Some(_) => self.entries.binary_search_by_key(&key, |(key, _)| *key),
        }
    }

    pub(in crate::net) fn get(&self, key: u64) -> Option<&V> {
        self.find(key).ok().map(|at| &self.entries[at].1)
    }

    pub(in crate::net) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.entries[at].1)
    }

    /// Puts `value` under `key` and hands back what was there.
    pub(in crate::net) fn insert(&mut self, key: u64, value: V) -> Option<V> {
        match self.find(key) {
            Ok(at) => Some(mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                // The first one takes room for itself alone: most connections never have two open at once.
                if self.entries.capacity() == 0 {
                    self.entries.reserve_exact(1);
                }
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    pub(in crate::net) fn remove(&mut self, key: u64) -> Option<V> {
        self.find(key).ok().map(|at| self.entries.remove(at).1)
    }

    pub(in crate::net) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(in crate::net) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// In the order of their keys.
    pub(in crate::net) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (*key, value))
    }

    /// Takes all out, in the order of their keys.
    pub(in crate::net) fn drain(&mut self) -> Vec<V> {
        mem::take(&mut self.entries).into_iter().map(|(_, value)| value).collect()
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done to it, it holds what a tree would.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..24, any::<u32>()), 0..200)) {
            let (mut few, mut tree) = (Few::new(), BTreeMap::new());
            for (inserts, key, value) in steps {
                if inserts {
                    prop_assert_eq!(few.insert(key, value), tree.insert(key, value));
                } else {
                    prop_assert_eq!(few.remove(key), tree.remove(&key));
                }
                prop_assert_eq!(few.get(key), tree.get(&key));
                prop_assert_eq!(few.get_mut(key), tree.get_mut(&key));
                prop_assert_eq!((few.len(), few.is_empty()), (tree.len(), tree.is_empty()));
            }
            let pairs: Vec<_> = few.iter_mut().map(|(key, value)| (key, *value)).collect();
            prop_assert_eq!(pairs, tree.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>());
            prop_assert_eq!(few.drain(), tree.into_values().collect::<Vec<_>>());
            prop_assert!(few.is_empty());
        }
    }
}
