//! A DHT as a source of providers, and of names that their owners sign (feature `dht`).

use std::num::NonZeroUsize;

use ron_core::{ContentId, NodeId, net::PublicKey};
use ron_dht::{Dht, DhtError, Key as DhtKey, Reason, Value};

use super::{
    Answered, Ask, BoxFuture, Deadline, Key, Name, NameRecord, Names, OWNED_PREFIX, Provider, Providers,
    SourceError,
};

/// The context under which a foreign hash becomes a key of the DHT.
const FOREIGN: &str = "ron-index 2026 providers of a multihash";

/// The key of the DHT under which providers of some content are found. Content with a BLAKE3 hash is found under that hash;
/// content with another hash under BLAKE3 of that, with a context of its own so that it cannot be the key of other content.
#[must_use]
pub(crate) fn key_of(content: &Key) -> Option<DhtKey> {
    match content {
        Key::Content(id) => Some((*id).into()),
        Key::Foreign(hash) => {
            let id = ContentId::from_bytes(blake3::derive_key(FOREIGN, &hash.to_bytes()));
            Some(id.into())
        }
        Key::Name(_) => None,
    }
}

/// Providers whose signed records the nodes of a DHT keep. The DHT checks the signatures, and hedges between its own peers.
#[derive(Debug, Clone)]
pub struct DhtProviders(Dht);

impl DhtProviders {
    /// Providers that `dht` finds.
    #[must_use]
    pub fn new(dht: &Dht) -> Self {
        DhtProviders(dht.clone())
    }
}

impl Providers for DhtProviders {
    fn label(&self) -> &'static str {
        "dht"
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        Box::pin(async move {
            let Some(key) = key_of(&ask.content) else { return Ok(Answered { is_final: false }) };
            let enough = NonZeroUsize::new(ask.enough).unwrap_or(NonZeroUsize::MIN);
            let mut found =
                self.0.find_providers(key, enough, ask.deadline).map_err(|error| failure(&error))?;
            while let Some(provider) = found.next().await.map_err(|error| failure(&error))? {
                ask.found(Provider {
                    issued: Some(provider.seq),
                    ..Provider::new(provider.id, provider.addrs)
                        .with_public_key(*provider.public_key.as_bytes())
                });
            }
            // Only a search that asked every peer near the key, and got answers, shows that there is no provider.
            match found.verdict() {
                Some(verdict) if verdict.reason == Reason::Deadline => Err(SourceError::Timeout),
                // No peer answered: that is a failure, and an older answer is better.
                Some(verdict) if verdict.closest.is_empty() => Err(SourceError::NoRoute),
                Some(verdict) => Ok(Answered { is_final: verdict.reason == Reason::Complete }),
                None => Ok(Answered { is_final: false }),
            }
        })
    }

    fn locate(
        &self,
        node: NodeId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        Box::pin(async move {
            let closest = self.0.find_node(node, deadline).await.map_err(|error| failure(&error))?;
            let found = closest.peers.into_iter().find(|contact| contact.id == node);
            Ok(found.map(|contact| Provider::new(contact.id, contact.addrs.iter().copied())))
        })
    }

    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(probe(&self.0, deadline))
    }
}

/// Names that their owners sign: `key:<public key in hex>/<what>` stands for the content whose address the owner has stored
/// in the DHT under `what`, with [`Dht::put_mutable`]. Only the owner can change it.
#[derive(Debug, Clone)]
pub struct DhtNames(Dht);

impl DhtNames {
    /// Names that are stored in `dht`.
    #[must_use]
    pub fn new(dht: &Dht) -> Self {
        DhtNames(dht.clone())
    }

    /// The name under which others resolve what the owner of `key` stored under `what`.
    #[must_use]
    pub fn name_of(key: &PublicKey, what: &str) -> String {
        let hex = data_encoding::HEXLOWER.encode(key.as_bytes());
        format!("{OWNED_PREFIX}{hex}/{what}")
    }
}

impl DhtNames {
    /// A search that found nothing may have got no answers. Only if the peers near the name answer is it certain that it stands
    /// for nothing.
    async fn check_absent(
        &self,
        key: &PublicKey,
        what: &str,
        deadline: Deadline,
    ) -> Result<Option<NameRecord>, SourceError> {
        let near = self.0.find_node(Value::mutable_key(key, what.as_bytes()), deadline).await;
        let verdict = near.map_err(|error| failure(&error))?.verdict;
        match verdict.reason {
            Reason::Complete if !verdict.closest.is_empty() => Ok(None),
            Reason::Deadline => Err(SourceError::Timeout),
            _ => Err(SourceError::NoRoute),
        }
    }
}

/// Whose name it is, and what the owner calls it.
fn owner(name: &Name) -> Option<(PublicKey, &str)> {
    let (hex, what) = name.as_str().strip_prefix(OWNED_PREFIX)?.split_once('/')?;
    let bytes: [u8; 32] = data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()?;
    Some((PublicKey::from_bytes(bytes), what))
}

impl Names for DhtNames {
    fn label(&self) -> &'static str {
        "dht_names"
    }

    fn serves(&self, name: &Name) -> bool {
        owner(name).is_some()
    }

    fn resolve<'a>(
        &'a self,
        name: &'a Name,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Option<NameRecord>, SourceError>> {
        Box::pin(async move {
            let Some((key, what)) = owner(name) else { return Ok(None) };
            // The DHT has checked that the owner signed it, and that it is about this name.
            let value = match self.0.get_mutable(&key, what.as_bytes(), deadline).await {
                Ok(value) => value,
                Err(DhtError::NotFound) => return self.check_absent(&key, what, deadline).await,
                Err(error) => return Err(failure(&error)),
            };
            let text = std::str::from_utf8(value.data()).ok();
            let content = text.and_then(|text| ContentId::parse_any(text.trim()).ok());
            let content =
                content.ok_or_else(|| SourceError::Invalid("it is no content address".to_owned()))?;
            let version = value.signer().map_or(0, |signer| signer.seq);
            Ok(Some(NameRecord { content, version, proven_by: "signature", ttl: None }))
        })
    }

    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(probe(&self.0, deadline))
    }
}

/// Works as soon as some peer answers: then others can be asked too.
async fn probe(dht: &Dht, deadline: Deadline) -> Result<(), SourceError> {
    let found = dht.find_node(dht.node_id(), deadline).await.map_err(|error| failure(&error))?;
    if found.peers.is_empty() { Err(SourceError::NoRoute) } else { Ok(()) }
}

fn failure(error: &DhtError) -> SourceError {
    match error {
        DhtError::NotReady { gate } => SourceError::NotReady { gate },
        DhtError::Timeout { .. } => SourceError::Timeout,
        error if error.is_retryable() => SourceError::Transient(error.to_string()),
        error => SourceError::Failed(error.to_string()),
    }
}
