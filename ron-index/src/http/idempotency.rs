//! Changes that are asked for twice and done once, for clients that do not know whether the first time arrived.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::body::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use ron_core::{Lock, LockSpec, Metrics, http::Problem, now};
use tokio::time::Instant;

pub(crate) const IDEMPOTENCY: LockSpec = LockSpec::new("ron-index", "idempotency", 550)
    .guards("which changes were done of late, and what was answered; held for a map operation");

/// The header that a client repeats.
pub(super) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// For how long a change is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Changes that are remembered at most; the oldest is forgotten.
const REMEMBERED_MAX: usize = 1024;

/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = 255;

/// What was asked: who, under which key.
type Owner = (String, String);

/// What is known of a change.
#[derive(Debug, Clone)]
enum State {
    Running,
    Done(StatusCode, Bytes),
}

#[derive(Debug, Default)]
struct Table {
    known: HashMap<Owner, ([u8; 32], State, Instant)>,
    order: VecDeque<(Owner, Instant)>,
}

impl Table {
    /// Forgets what is too old, or too much.
    fn tidy(&mut self, now: Instant) {
        while let Some((owner, since)) = self.order.front() {
            let is_old = now.saturating_duration_since(*since) >= REMEMBERED;
            if !is_old && self.order.len() < REMEMBERED_MAX {
                return;
            }
            if self.known.get(owner).is_some_and(|(_, _, noted)| noted == since) {
                self.known.remove(owner);
            }
            self.order.pop_front();
        }
    }
}

/// The changes of late. Cloning shares them.
#[derive(Clone)]
pub(super) struct Idempotency(Arc<Lock<Table>>);

/// What to do with a request.
pub(super) enum Turn {
    /// It is to be done; say how it went.
    First(Option<Running>),
    /// It was done, and this was answered.
    Again(StatusCode, Bytes),
}

/// A change that is being done. If it is dropped without an answer, it may be asked for again.
pub(super) struct Running {
    table: Idempotency,
    owner: Option<Owner>,
}

impl Idempotency {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Idempotency(Arc::new(Lock::new(IDEMPOTENCY, Table::default(), metrics)))
    }

    /// What to do with a request of `subject` that has these headers and is `what` by its method, path and body.
    pub(super) fn begin(&self, subject: &str, headers: &HeaderMap, what: [u8; 32]) -> Result<Turn, Problem> {
        let Some(key) = headers.get(&HEADER) else { return Ok(Turn::First(None)) };
        let is_plain = |key: &&str| key.bytes().all(|byte| byte.is_ascii_graphic());
        let key = key.to_str().ok().filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len())).filter(is_plain);
        let key = key.ok_or_else(|| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "bad_idempotency_key",
                "an idempotency key has 1 to 255 printable characters and no spaces",
            )
        })?;
        let (owner, now) = ((subject.to_owned(), key.to_owned()), now());
        let mut table = self.0.lock();
        table.tidy(now);
        match table.known.get(&owner) {
            Some((known, ..)) if *known != what => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_mismatch",
                "this idempotency key was used for something else",
            )),
            Some((_, State::Running, _)) => {
                Err(Problem::new(StatusCode::CONFLICT, "in_progress", "the same change is being done")
                    .retry_after(Duration::from_secs(1)))
            }
            Some((_, State::Done(status, body), _)) => Ok(Turn::Again(*status, body.clone())),
            None => {
                table.known.insert(owner.clone(), (what, State::Running, now));
                table.order.push_back((owner.clone(), now));
                Ok(Turn::First(Some(Running { table: self.clone(), owner: Some(owner) })))
            }
        }
    }
}

impl Running {
    /// It is done, and this is answered, now and to whoever asks for it again.
    pub(super) fn done(mut self, status: StatusCode, body: &Bytes) {
        if let Some(owner) = self.owner.take() {
            if let Some((_, state, _)) = self.table.0.lock().known.get_mut(&owner) {
                *state = State::Done(status, body.clone());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.table.0.lock().known.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(key: &str) -> HeaderMap {
        HeaderMap::from_iter([(HEADER, key.parse().unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_done_once_and_answered_twice() {
        let table = Idempotency::new(&Metrics::default());
        let begin = |key: &str, what: u8| table.begin("ann", &headers(key), [what; 32]);
        let Ok(Turn::First(Some(first))) = begin("k", 1) else { panic!("it is new") };
        assert_eq!(begin("k", 1).err().unwrap().status(), 409);
        assert_eq!(begin("k", 2).err().unwrap().status(), 422);
        first.done(StatusCode::OK, &Bytes::from_static(b"{}"));
        assert!(matches!(begin("k", 1), Ok(Turn::Again(StatusCode::OK, body)) if body == "{}"));
        assert!(
            matches!(table.begin("bob", &headers("k"), [1; 32]), Ok(Turn::First(_))),
            "keys are their owner's"
        );
        tokio::time::advance(REMEMBERED).await;
        assert!(matches!(begin("k", 2), Ok(Turn::First(_))), "it is forgotten in time");
        for no_key in ["", "a b", "a\tb", &"k".repeat(KEY_BYTES_MAX + 1)] {
            assert_eq!(begin(no_key, 1).err().unwrap().status(), 400, "{no_key:?}");
        }
        assert!(matches!(table.begin("ann", &HeaderMap::new(), [1; 32]), Ok(Turn::First(None))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_may_be_asked_for_again_and_the_table_has_an_end() {
        let table = Idempotency::new(&Metrics::default());
        let Ok(Turn::First(Some(first))) = table.begin("ann", &headers("k"), [1; 32]) else {
            panic!("it is new")
        };
        drop(first);
        assert!(matches!(table.begin("ann", &headers("k"), [1; 32]), Ok(Turn::First(Some(_)))));
        for number in 0..5000 {
            let turn = table.begin("ann", &headers(&format!("n{number}")), [1; 32]).ok().unwrap();
            let Turn::First(Some(running)) = turn else { panic!("it is new") };
            running.done(StatusCode::OK, &Bytes::new());
        }
        let table = table.0.lock();
        assert!(table.known.len() <= REMEMBERED_MAX && table.order.len() <= REMEMBERED_MAX);
    }
}
