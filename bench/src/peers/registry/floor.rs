//! The least that a committer with one writer must do: a bounded queue, one thread that chains what waits, one write and one
//! `fdatasync` for a group, and the answers. No policy, no proofs, no names, no index.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::measure::Outcome;

/// As many as a registry's lane has, and as many as it commits at once.
const QUEUE: usize = 512;

/// Version and hash.
type Head = (u64, [u8; 32]);

struct Job {
    payload: Bytes,
    expected: Option<Head>,
    reply: oneshot::Sender<bool>,
}

#[derive(Clone)]
pub(crate) struct Floor {
    jobs: mpsc::Sender<Job>,
    head: Arc<Mutex<Head>>,
}

impl Floor {
    pub(crate) fn open(dir: &Path) -> Outcome<Self> {
        let file = OpenOptions::new().create(true).append(true).open(dir.join("floor"))?;
        let (jobs, inbox) = mpsc::channel(QUEUE);
        let head = Arc::new(Mutex::new((0, [0; 32])));
        let shown = Arc::clone(&head);
        std::thread::spawn(move || run(file, inbox, &shown));
        Ok(Floor { jobs, head })
    }

    async fn ask(&self, payload: Bytes, expected: Option<Head>) -> Outcome<bool> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { payload, expected, reply }).await.map_err(|_| "its thread is gone")?;
        Ok(answer.await?)
    }

    pub(crate) async fn put(&self, payload: Bytes) -> Outcome<()> {
        self.ask(payload, None).await.map(drop)
    }

    pub(crate) async fn cas(&self, payload: Bytes) -> Outcome<bool> {
        let head = *self.head.lock().unwrap_or_else(PoisonError::into_inner);
        self.ask(payload, Some(head)).await
    }
}

fn run(mut file: File, mut inbox: mpsc::Receiver<Job>, shown: &Mutex<Head>) {
    let (mut buffer, mut waiting, mut head): (Vec<u8>, Vec<_>, Head) = (Vec::new(), Vec::new(), (0, [0; 32]));
    while let Some(first) = inbox.blocking_recv() {
        let mut next = Some(first);
        while let Some(Job { payload, expected, reply }) = next {
            if expected.is_some_and(|expected| expected != head) {
                let _ = reply.send(false);
            } else {
                let mut link = blake3::Hasher::new();
                link.update(&head.1).update(&(head.0 + 1).to_be_bytes()).update(&payload);
                head = (head.0 + 1, *link.finalize().as_bytes());
                buffer.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
                buffer.extend_from_slice(&head.1);
                buffer.extend_from_slice(&payload);
                waiting.push(reply);
            }
            next = if waiting.len() < QUEUE { inbox.try_recv().ok() } else { None };
        }
        if waiting.is_empty() {
            continue;
        }
        if file.write_all(&buffer).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        buffer.clear();
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = head;
        for reply in waiting.drain(..) {
            let _ = reply.send(true);
        }
    }
}
