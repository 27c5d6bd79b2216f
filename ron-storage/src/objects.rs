//! What is kept, and where.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use ron_core::{ContentId, Lock, LockSpec, Metrics};

use crate::{
    StorageError,
    handle::{Collected, Cursor, Gc, Page, Scrubbed, Stat, Usage},
    logic::{
        proof::{GroupSet, proof_piece},
        tree::{Shape, Tree, TreeError, check_groups, group_hashes},
    },
    settings::Settings,
};

pub(crate) const OBJECTS: LockSpec = LockSpec::new("ron-storage", "objects", 710)
    .guards("which objects there are; held for one look or one change");

/// A part of an object to be read.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub(crate) id: ContentId,
    pub(crate) bytes: Range<u64>,
    /// The whole proof of which this is a piece, if these bytes, whole groups then, are wanted with their nodes.
    pub(crate) proof: Option<Arc<GroupSet>>,
}

#[derive(Debug)]
struct Kept {
    content: Bytes,
    outboard: Bytes,
    is_pinned: bool,
}

/// The objects of a store in memory.
#[derive(Debug)]
pub(crate) struct Objects {
    kept: Lock<BTreeMap<ContentId, Kept>>,
}

impl Objects {
    pub(crate) fn memory(metrics: &Metrics) -> Self {
        Objects { kept: Lock::new(OBJECTS, BTreeMap::new(), metrics) }
    }

    pub(crate) fn stat(&self, id: &ContentId) -> Option<Stat> {
        self.kept.lock().get(id).map(|kept| stat(*id, kept))
    }

    /// The bytes asked for, once they are seen to be those of the object.
    pub(crate) fn read(&self, read: &Read) -> Result<Bytes, StorageError> {
        let Read { id, bytes, proof } = read;
        let kept = self.kept.lock().get(id).map(|kept| (kept.content.clone(), kept.outboard.clone()));
        let (content, outboard) = kept.ok_or(StorageError::NotFound { id: *id })?;
        let shape = Shape::of(content.len() as u64);
        let groups = shape.covering(bytes.clone());
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let whole = at(shape.group(groups.start).start)..at(shape.group(groups.end.saturating_sub(1)).end);
        let damaged = |error: TreeError| StorageError::Corrupt { id: *id, at: error.offset() };
        if let Some(wanted) = proof {
            return proof_piece(id, shape, wanted, groups, &outboard[..], &content[whole]).map_err(damaged);
        }
        let hashes = group_hashes(id, shape, groups.clone(), &outboard[..]).map_err(damaged)?;
        check_groups(shape, groups.start, &hashes, &content[whole]).map_err(damaged)?;
        Ok(content.slice(at(bytes.start)..at(bytes.end)))
    }

    /// Keeps an object, and says whether it was here already.
    pub(crate) fn insert(
        &self,
        id: ContentId,
        content: Bytes,
        pin: bool,
        settings: &Settings,
    ) -> Result<bool, StorageError> {
        let mut kept = self.kept.lock();
        let (used, objects) = (kept.values().map(|kept| kept.content.len() as u64).sum(), kept.len() as u64);
        match kept.entry(id) {
            btree_map::Entry::Occupied(mut there) => {
                there.get_mut().is_pinned |= pin;
                Ok(true)
            }
            btree_map::Entry::Vacant(place) => {
                settings.check_quota(used, objects, content.len() as u64)?;
                let outboard = Tree::of(&content).nodes;
                place.insert(Kept { content, outboard, is_pinned: pin });
                Ok(false)
            }
        }
    }

    pub(crate) fn remove(&self, id: &ContentId) -> Result<bool, StorageError> {
        let mut kept = self.kept.lock();
        match kept.get(id) {
            Some(kept) if kept.is_pinned => Err(StorageError::Pinned { id: *id }),
            Some(_) => Ok(kept.remove(id).is_some()),
            None => Ok(false),
        }
    }

    pub(crate) fn set_pinned(&self, id: &ContentId, is_pinned: bool) -> Result<bool, StorageError> {
        let mut kept = self.kept.lock();
        let kept = kept.get_mut(id).ok_or(StorageError::NotFound { id: *id })?;
        Ok(std::mem::replace(&mut kept.is_pinned, is_pinned) != is_pinned)
    }

    pub(crate) fn list(&self, after: Option<&Cursor>, limit: usize) -> Page {
        let kept = self.kept.lock();
        let from = after.map_or(std::ops::Bound::Unbounded, |cursor| std::ops::Bound::Excluded(cursor.0));
        let mut all = kept.range((from, std::ops::Bound::Unbounded));
        let objects: Vec<Stat> = all.by_ref().take(limit).map(|(id, kept)| stat(*id, kept)).collect();
        let next = all.next().and_then(|_| objects.last().map(|last| Cursor(last.id)));
        Page { objects, next }
    }

    pub(crate) fn collect(&self, gc: &Gc) -> Collected {
        let mut collected = Collected::default();
        let mut kept = self.kept.lock();
        kept.retain(|id, object| {
            let stays = object.is_pinned || gc.keeps(id);
            if stays {
                collected.kept += 1;
            } else {
                collected.objects += 1;
                collected.bytes += object.content.len() as u64;
            }
            stays || gc.is_dry_run()
        });
        collected
    }

    pub(crate) fn scrub(&self) -> Scrubbed {
        let kept = self.kept.lock();
        let bytes = kept.values().map(|kept| kept.content.len() as u64).sum();
        let damaged =
            kept.iter().filter(|(id, kept)| ContentId::of(&kept.content) != **id).map(|(id, _)| *id);
        Scrubbed { objects: kept.len() as u64, bytes, damaged: damaged.collect() }
    }

    pub(crate) fn usage(&self) -> Usage {
        let kept = self.kept.lock();
        let bytes = kept.values().map(|kept| kept.content.len() as u64).sum();
        let pinned = kept.values().filter(|kept| kept.is_pinned).count() as u64;
        Usage { objects: kept.len() as u64, bytes, pinned, disk_bytes: bytes, ..Usage::default() }
    }
}

fn stat(id: ContentId, kept: &Kept) -> Stat {
    Stat { id, len: kept.content.len() as u64, is_pinned: kept.is_pinned, is_quarantined: false }
}
