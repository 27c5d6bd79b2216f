//! Topics of the overlay, and how their nodes find each other: whoever is on one provides its key in the DHT.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{Deadline, Restart, Stop, Supervisor, TaskSpec, net::BoxFuture};
use ron_dht::{Dht, Key};
use ron_overlay::{Contact, Overlay, PeerSource, TopicId};

use crate::{config::ConfigError, providers::others};

const ANNOUNCER: TaskSpec = TaskSpec::new("refd", "announcer")
    .restart(Restart::PATIENT)
    .what("tells the DHT once which topics this node is on; from then on the republisher does");

/// How long one announcement or search may take, and the pause after an announcement that nobody kept.
const TELL_TIMEOUT: Duration = Duration::from_secs(10);
const FIND_TIMEOUT: Duration = Duration::from_secs(5);
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// How long joining a topic may take; it needs no other node.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Finds nodes of a topic as those that provide its key.
#[derive(Debug)]
pub(crate) struct ByDht(pub(crate) Dht);

impl PeerSource for ByDht {
    fn find(&self, topic: TopicId, wanted: usize) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(async move {
            // One more, since this node is on the topic as well and finds itself.
            let wanted = NonZeroUsize::MIN.saturating_add(wanted);
            let found = others(&self.0, key(topic), wanted, Deadline::after(FIND_TIMEOUT)).await;
            // Whatever is missing, the next search is seconds away.
            found.unwrap_or_default()
        })
    }
}

/// Joins `names`, beginning with `seeds`, and lets others find this node on them.
pub(crate) async fn join(
    names: &[String],
    seeds: &[Contact],
    overlay: &Overlay,
    dht: &Dht,
    host: &Supervisor,
) -> Result<(), ConfigError> {
    for name in names {
        let topic = overlay.topic(name.as_str()).join(seeds.iter().cloned(), Deadline::after(JOIN_TIMEOUT));
        topic.await.map_err(|source| ConfigError::Topic { name: name.clone(), source })?;
    }
    if names.is_empty() {
        return Ok(());
    }
    let keys: Vec<Key> = names.iter().map(|name| key(TopicId::of(name))).collect();
    let dht = dht.clone();
    let _ = host.spawn_restarting(ANNOUNCER, move |stop| Box::pin(announce(dht.clone(), keys.clone(), stop)));
    Ok(())
}

async fn announce(dht: Dht, keys: Vec<Key>, stop: Stop) {
    for key in keys {
        loop {
            let told = tokio::select! {
                biased;
                () = stop.requested() => return,
                told = dht.provide(key, Deadline::after(TELL_TIMEOUT)) => told,
            };
            match told {
                Ok(_) => break,
                Err(error) => tracing::debug!(%error, "nobody was told of a topic"),
            }
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = tokio::time::sleep(TELL_AGAIN) => {}
            }
        }
    }
}

/// Where a topic is in the DHT. The name of a topic is a hash already.
fn key(topic: TopicId) -> Key {
    Key::from_bytes(*topic.as_bytes())
}
