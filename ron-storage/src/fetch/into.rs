//! Where what is fetched goes: into the store, or into a file.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::BytesMut;
use ron_core::{ContentId, Deadline, disk::File, now};

use super::{Engine, FetchError, Fetched, engine::Got};
use crate::{
    Durability, Put, StorageError, Store, Stored,
    actor::run,
    error::of_disk,
    handle::Inner,
    holds::Hold,
    logic::tree::Shape,
    partial::{Arrived, Partial},
};

/// Bytes that are written by one job, and jobs that are under way at once: what a fetch holds besides what is on its links.
const WRITE_BYTES: usize = 1 << 20;
const WRITES_MAX: usize = 4;

/// What may be lost by a crash: it is written down when so much has come, or after so long.
const NOTED_EVERY: u64 = 64 << 20;
const NOTED_AFTER: Duration = Duration::from_secs(5);

type Job = Pin<Box<dyn Future<Output = Result<(), StorageError>> + Send>>;

/// Jobs that are under way.
#[derive(Default)]
struct Jobs(Vec<Job>);

impl Jobs {
    /// The end of one of them; never, if there is none.
    async fn ended(&mut self) -> Result<(), StorageError> {
        poll_fn(|cx| {
            for place in 0..self.0.len() {
                if let Poll::Ready(ended) = self.0[place].as_mut().poll(cx) {
                    drop(self.0.swap_remove(place));
                    return Poll::Ready(ended);
                }
            }
            Poll::Pending
        })
        .await
    }

    async fn all(&mut self) -> Result<(), StorageError> {
        while !self.0.is_empty() {
            self.ended().await?;
        }
        Ok(())
    }
}

/// Brings an object into the store.
pub(crate) async fn into_store(
    store: &Store,
    mut engine: Engine,
    put: Put,
    deadline: Deadline,
) -> Result<Fetched, FetchError> {
    let (inner, id) = (store.inner(), engine.id());
    let put = Put { expect: Some(id), len: None, ..put };
    let one = inner.objects.fetching.take(id).await;
    if let Some(stored) = store.put_known(id, put, deadline).await? {
        return Ok(Fetched { stored, received: 0, peers: engine.outcomes() });
    }
    let place = store.admit_put()?;
    let settings = inner.settings.load();
    let resumed = match inner.objects.partials.map_of(&id) {
        Some(_) => {
            let partials = Arc::clone(&inner.objects.partials);
            run(&inner.puts, deadline, move || partials.resume(id, one)).await??
        }
        None => Err(one),
    };
    let first = match &resumed {
        Ok(partial) => {
            engine.resume(Shape::of(partial.len()), partial.map());
            None
        }
        // Whatever it is, its nodes may be needed.
        Err(_) => {
            engine.keep_nodes();
            engine.next().await?
        }
    };
    engine.keep_nodes();
    let shape = engine.shape().expect("known with the first group");
    let len = shape.size();
    let (existed, durability) = if resumed.is_err() && len <= u64::from(settings.small_bytes_max) {
        let reserved = inner.objects.reserve(Some(&id), len, &settings)?;
        let mut content = BytesMut::new();
        let mut got = first;
        let content = loop {
            let Some(group) = got else { break content.freeze() };
            if shape.groups() == 1 {
                break group.bytes;
            }
            if content.is_empty() {
                content.resize(usize::try_from(len).unwrap_or(0), 0);
            }
            let at = usize::try_from(shape.group(group.group).start).unwrap_or(0);
            content[at..at + group.bytes.len()].copy_from_slice(&group.bytes);
            place.moved("fetch")?;
            got = engine.next().await?;
        };
        inner.objects.put_small(id, content, (put, reserved.len()), &settings, deadline).await?
    } else {
        let partial = match resumed {
            Ok(partial) => partial,
            Err(one) => begin(inner, (id, len), one, deadline).await?,
        };
        let partial = Arc::new(partial);
        let gathered = gather(inner, &mut engine, &partial, first, deadline, || place.moved("fetch")).await;
        if let Err(error) = gathered {
            // What came is not lost. If it cannot be written down now, it is still there until a restart.
            let noted = Arc::clone(&partial);
            let _ = run(&inner.syncs, deadline, move || noted.checkpoint()).await;
            return Err(error);
        }
        complete(inner, partial, (id, len), put, deadline).await?
    };
    let stored = Stored { id, len, durability, existed };
    store.note_stored(&stored);
    Ok(Fetched { stored, received: engine.received(), peers: engine.outcomes() })
}

/// Makes room for a large object and begins it.
async fn begin(
    inner: &Inner,
    (id, len): (ContentId, u64),
    one: Hold,
    deadline: Deadline,
) -> Result<Partial, FetchError> {
    let settings = inner.settings.load();
    // Not spent: each piece asks again, and others may have been quicker.
    inner.objects.check_space(len, &settings)?;
    let objects = Arc::clone(&inner.objects);
    // Both or none, also if nobody waits for it any more.
    let both = move || {
        let reserved = objects.reserve(Some(&id), len, &settings)?;
        let partial = objects.partials.begin(id, len, one)?;
        // From here on until it is an object or swept.
        reserved.keep();
        Ok::<_, StorageError>(partial)
    };
    Ok(run(&inner.puts, deadline, both).await??)
}

/// Writes everything that the engine brings.
async fn gather(
    inner: &Inner,
    engine: &mut Engine,
    partial: &Arc<Partial>,
    first: Option<Got>,
    deadline: Deadline,
    moved: impl Fn() -> Result<(), StorageError>,
) -> Result<(), FetchError> {
    let settings = inner.settings.load();
    let (mut jobs, mut noting) = (Jobs::default(), Jobs::default());
    let (mut batch, mut nodes, mut bytes) = (Vec::new(), Vec::new(), 0);
    let (mut unnoted, mut noted) = (0, now());
    let (mut next, mut is_over, mut failed) = (first, false, None);
    while !is_over || next.is_some() {
        let got = match next.take() {
            Some(got) => Some(got),
            None => tokio::select! {
                biased;
                ended = jobs.ended(), if !jobs.0.is_empty() => {
                    ended?;
                    continue;
                }
                ended = noting.ended(), if !noting.0.is_empty() => {
                    ended?;
                    continue;
                }
                // What came before a failure is kept too.
                got = engine.next(), if jobs.0.len() < WRITES_MAX => got.unwrap_or_else(|error| {
                    failed = Some(error);
                    None
                }),
            },
        };
        match got {
            Some(Got { group, bytes: content, nodes: came }) => {
                bytes += content.len();
                nodes.extend(came);
                batch.push(Arrived { group, bytes: content });
            }
            None => is_over = true,
        }
        if bytes < WRITE_BYTES && !is_over {
            continue;
        }
        moved()?;
        inner.objects.check_room(bytes as u64, &settings)?;
        unnoted += bytes as u64;
        bytes = 0;
        let (groups, nodes) = (std::mem::take(&mut batch), std::mem::take(&mut nodes));
        let (pool, writing) = (inner.puts.clone(), Arc::clone(partial));
        jobs.0.push(Box::pin(
            async move { run(&pool, deadline, move || writing.write(&groups, nodes)).await? },
        ));
        let is_due = unnoted >= NOTED_EVERY || now().saturating_duration_since(noted) >= NOTED_AFTER;
        if is_due && noting.0.is_empty() && !is_over {
            (unnoted, noted) = (0, now());
            let (pool, noting_it) = (inner.syncs.clone(), Arc::clone(partial));
            noting
                .0
                .push(Box::pin(async move { run(&pool, deadline, move || noting_it.checkpoint()).await? }));
        }
    }
    noting.all().await?;
    jobs.all().await?;
    failed.map_or(Ok(()), Err)
}

/// Makes an object of what is complete.
async fn complete(
    inner: &Inner,
    partial: Arc<Partial>,
    (id, len): (ContentId, u64),
    put: Put,
    deadline: Deadline,
) -> Result<(bool, Durability), FetchError> {
    let settings = inner.settings.load();
    let finishing = Arc::clone(&partial);
    run(&inner.puts, deadline, move || finishing.finish()).await??;
    // All jobs have ended, so nobody else has it.
    let mut partial = Arc::into_inner(partial).ok_or(FetchError::Timeout { op: "fetch" })?;
    let ingest = partial.hand_over().ok_or(FetchError::Canceled)?;
    let syncing = Arc::clone(&ingest);
    let sync = async { run(&inner.syncs, deadline, move || syncing.sync()).await? };
    let put = inner.objects.put_large((id, len), ingest, (put, len), &settings, deadline, sync).await;
    // It is an object now, or its files are gone.
    partial.end();
    inner.objects.unreserve(len);
    Ok(put?)
}

/// Writes an object into a file.
pub(super) async fn into_file(
    store: &Store,
    mut engine: Engine,
    file: Arc<File>,
    deadline: Deadline,
) -> Result<u64, FetchError> {
    let inner = store.inner();
    let mut jobs = Jobs::default();
    loop {
        let got = tokio::select! {
            biased;
            ended = jobs.ended(), if !jobs.0.is_empty() => {
                ended?;
                continue;
            }
            got = engine.next(), if jobs.0.len() < WRITES_MAX * 4 => got?,
        };
        let Some(Got { group, bytes, .. }) = got else { break };
        let at = engine.shape().map_or(0, |shape| shape.group(group).start);
        let (pool, file) = (inner.puts.clone(), Arc::clone(&file));
        jobs.0.push(Box::pin(async move {
            run(&pool, deadline, move || file.write_at(at, &bytes).map_err(of_disk)).await?
        }));
    }
    jobs.all().await?;
    run(&inner.syncs, deadline, move || file.sync_data().map_err(of_disk)).await??;
    Ok(engine.shape().map_or(0, |shape| shape.size()))
}
