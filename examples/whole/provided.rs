//! The DHT's checker: what each node provides, by its own word. Whoever looks for it must find it, as long as its provider
//! is up and everybody can reach everybody.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ContentId, Deadline, now};
use ron_dht::Dht;

use crate::{
    node::{Host, contact},
    verdict::Verdict,
};

/// How long a search may take, and how much longer it takes at most.
const PATIENCE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(1);

/// What a node provides, and nobody else: no object of a user is the same. Of a single byte it was, now and then.
pub(crate) fn content(number: u8) -> ContentId {
    ContentId::of(format!("provided by {number}").as_bytes())
}

/// The content of each node that was provided since it last started. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Provided {
    by: Arc<Mutex<BTreeMap<u8, ContentId>>>,
    verdict: Verdict,
}

impl Provided {
    pub(crate) fn new(verdict: &Verdict) -> Self {
        Provided { by: Arc::default(), verdict: verdict.clone() }
    }

    fn by(&self) -> MutexGuard<'_, BTreeMap<u8, ContentId>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server's part: says every minute that it has something.
    pub(crate) async fn live(self, number: u8, dht: Dht) {
        let content = content(number);
        loop {
            let provided = dht.provide(content, Deadline::after(PATIENCE)).await;
            match &provided {
                Ok(_) => {
                    self.verdict.count("provided");
                    self.by().insert(number, content);
                }
                Err(error) => self.verdict.refused("provide", error),
            }
            tokio::time::sleep(Duration::from_secs(if provided.is_ok() { 60 } else { 5 })).await;
        }
    }

    /// The node is about to be gone.
    pub(crate) fn forget(&self, number: u8) {
        self.by().remove(&number);
    }

    /// Something that a node provides.
    pub(crate) fn pick(&self, rng: &mut fastrand::Rng) -> Option<(u8, ContentId)> {
        let by = self.by();
        let at = (!by.is_empty()).then(|| rng.usize(..by.len()))?;
        by.iter().nth(at).map(|(number, content)| (*number, *content))
    }

    pub(crate) fn is_provided(&self, content: &ContentId) -> bool {
        self.by().values().any(|provided| provided == content)
    }

    /// A user looks for what some node provides.
    pub(crate) async fn look(&self, host: &Host, rng: &mut fastrand::Rng, in_peace: bool) {
        let Some((provider, content)) = self.pick(rng) else { return };
        let began = now();
        let first = match host.dht.find_providers(content, NonZeroUsize::MIN, Deadline::after(PATIENCE)) {
            Ok(mut search) => search.next().await,
            Err(error) => Err(error),
        };
        let took = now() - began;
        self.verdict.promised(took <= PATIENCE + GRACE, || format!("{} searched for {took:?}", host.number));
        match first {
            Ok(Some(first)) => {
                let there = contact(provider);
                let is_true = first.id == there.id && first.addrs == *there.addrs;
                self.verdict.count("found");
                self.verdict
                    .promised(is_true, || format!("{} was told that {first:?} provides it", host.number));
            }
            Ok(None) => {
                self.verdict.count("not found");
                self.verdict.promised(!in_peace, || {
                    format!("{} does not find what {provider} provides, in peace", host.number)
                });
            }
            Err(error) => {
                self.verdict.refused("find", &error);
                self.verdict
                    .promised(!in_peace, || format!("{} cannot look, in peace: {error}", host.number));
            }
        }
    }
}
