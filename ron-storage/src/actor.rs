//! Who runs what: the two pools, and the task that keeps the store in order.

use std::{io, sync::Arc};

use bytes::Bytes;
use ron_core::{Capacity, Inbox, Lane, LaneSpec, Pool, PoolSpec, Reply, Restart, Stop, Supervisor, TaskSpec};

use crate::{
    StorageError,
    handle::{Collected, Gc, Scrubbed},
    objects::{Objects, Read},
    settings::Settings,
};

pub(crate) const GETS: LaneSpec = LaneSpec::new("ron-storage", "get", 512).flow("readers → GET pool").why(
    "one job for each stream there may be; a job is at most a mebibyte, so the last waits for milliseconds",
);

pub(crate) const PUTS: LaneSpec = LaneSpec::new("ron-storage", "put", 512).flow("writers → PUT pool").why(
    "one job for each stream there may be, apart from those that read, so that neither starves the other",
);

pub(crate) const UPKEEP: LaneSpec = LaneSpec::new("ron-storage", "upkeep", 16)
    .flow("callers → keeper")
    .why("a collection or a scrub takes minutes; who finds sixteen waiting asks tomorrow");

pub(crate) const GETTER: TaskSpec = TaskSpec::new("ron-storage", "getter")
    .restart(Restart::Never)
    .what("reads and verifies up to a mebibyte at a time; a job that panics is told to its caller and the worker lives on");

pub(crate) const PUTTER: TaskSpec = TaskSpec::new("ron-storage", "putter")
    .restart(Restart::Never)
    .what("hashes and writes up to a mebibyte of a large object at a time");

pub(crate) const KEEPER: TaskSpec = TaskSpec::new("ron-storage", "keeper")
    .restart(Restart::PATIENT)
    .what("collects, scrubs and compacts, one after the other");

/// Reads a part of an object.
pub(crate) type GetPool = Pool<Read, Result<Bytes, StorageError>>;

/// Starts the workers that read.
pub(crate) fn start_gets(
    group: &Supervisor,
    settings: &Settings,
    objects: &Arc<Objects>,
) -> Result<GetPool, io::Error> {
    let capacity = Capacity::new("get_lane", settings.get_lane).expect("the settings were checked");
    let spec = PoolSpec { lane: GETS.with_capacity(capacity), task: GETTER, workers: settings.get_workers };
    let objects = Arc::clone(objects);
    Pool::start_blocking(group, spec, move |read: Read, _| objects.read(&read))
}

/// Something for the keeper to do.
pub(crate) enum Errand {
    Collect(Gc, Reply<Result<Collected, StorageError>>),
    Scrub(Reply<Result<Scrubbed, StorageError>>),
}

/// Does what is asked for, one after the other, until the stop.
pub(crate) async fn keep(objects: Arc<Objects>, inbox: Inbox<Errand>, _stop: Stop) {
    while let Some(errand) = inbox.recv().await {
        match errand {
            Errand::Collect(gc, reply) => reply.send(Ok(objects.collect(&gc))),
            Errand::Scrub(reply) => reply.send(Ok(objects.scrub())),
        }
    }
}

pub(crate) fn start_keeper(group: &Supervisor, objects: &Arc<Objects>) -> Lane<Errand> {
    let (lane, inbox) = Lane::open(UPKEEP, group.metrics());
    lane.close_on(&group.stop());
    let objects = Arc::clone(objects);
    let _ = group.spawn_restarting(KEEPER, move |stop| keep(Arc::clone(&objects), inbox.clone(), stop));
    lane
}
