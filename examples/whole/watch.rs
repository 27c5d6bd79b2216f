//! The checker of what every node promises about itself: queues and memory within their bounds, no task that panicked, and a
//! readiness that is true.

use std::time::Duration;

use bytes::Bytes;
use ron_core::{Counter, Deadline, ErrorKind, ReadyStatus};

use crate::{node::Host, verdict::Verdict};

/// Looks at a node from outside.
pub(crate) fn look(host: &Host, verdict: &Verdict) {
    let Host { number, supervisor, index, .. } = host;
    let metrics = supervisor.metrics();
    for queue in metrics.queues() {
        verdict.count("queues seen");
        verdict.promised(queue.depth <= queue.capacity, || {
            format!("{number}: {} holds {} and takes {}", queue.name, queue.depth, queue.capacity)
        });
    }
    for (what, used, max) in [
        ("the cache of the index", index.status().bytes, index.settings().cache_bytes),
        ("the clients of the index", index.client_memory() as u64, index.client_memory_max() as u64),
    ] {
        verdict.promised(used <= max, || format!("{number}: {what} takes {used} bytes of {max}"));
    }
    let panicked = metrics.total(Counter::TasksPanicked);
    verdict.promised(panicked == 0, || format!("{number}: {panicked} tasks panicked"));
    let failure = supervisor.failure();
    verdict.promised(failure.is_none(), || format!("{number} failed: {failure:?}"));
    why_not(*number, &supervisor.ready().status(), verdict);
}

/// Whoever is not ready says why, and whoever cannot read cannot write.
fn why_not(number: u8, status: &ReadyStatus, verdict: &Verdict) {
    verdict.count(if status.writes { "seen ready" } else { "seen not ready" });
    verdict.promised(status.reads || !status.writes, || {
        format!("{number} is ready for writes and not for reads")
    });
    let says = status.closed().any(|gate| gate.reason.as_ref().is_some_and(|reason| !reason.is_empty()));
    verdict.promised((status.writes && status.reads) || says, || {
        format!("{number} is not ready and does not say why")
    });
}

/// What is not ready, in words.
pub(crate) fn closed(host: &Host) -> Vec<String> {
    let status = host.supervisor.ready().status();
    status
        .closed()
        .map(|gate| format!("{}: {} is closed: {:?}", host.number, gate.name, gate.reason))
        .collect()
}

/// Writes something on a node. If it said before and after that it is ready for writes, it takes it, or is full of callers.
pub(crate) async fn probe(host: &Host, verdict: &Verdict, salt: u64) {
    let before = host.supervisor.ready().status();
    let content = Bytes::from(salt.to_be_bytes().to_vec());
    let written = host.store.put_bytes(content.clone(), Deadline::after(Duration::from_secs(5))).await;
    let after = host.supervisor.ready().status();
    match written {
        Ok(stored) => {
            verdict.count("write taken");
            let deadline = Deadline::after(Duration::from_secs(5));
            let read = host.store.get_bytes(stored.id, u64::MAX, deadline).await;
            match read {
                Ok(bytes) => verdict.promised(bytes == content, || format!("{}: wrong bytes", host.number)),
                Err(error) => {
                    verdict.refused("read what was written", &error);
                    let excused =
                        matches!(error.kind(), ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::Canceled);
                    verdict.promised(excused || !after.reads, || {
                        format!("{} is ready for reads, and: {error}", host.number)
                    });
                }
            }
            let _ = host.store.delete(stored.id, Deadline::after(Duration::from_secs(5))).await;
        }
        Err(error) => {
            verdict.refused("write", &error);
            let excused = matches!(error.kind(), ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::Canceled);
            verdict.promised(excused || !before.writes || !after.writes, || {
                format!("{} is ready for writes, and: {error}", host.number)
            });
        }
    }
}
