//! A fixed list of providers: mirrors, gateways, the nodes of one's own cluster.

use std::collections::HashMap;

use ron_core::NodeId;

use super::{Answered, Ask, BoxFuture, Deadline, Key, Provider, Providers, SourceError};

/// A list of providers: some for all content, some for one key each.
#[derive(Debug, Default, Clone)]
pub struct FixedProviders {
    everything: Vec<Provider>,
    one: HashMap<Key, Vec<Provider>>,
}

impl FixedProviders {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a mirror: a provider that is named for all content.
    #[must_use]
    pub fn mirror(mut self, provider: Provider) -> Self {
        self.everything.push(provider);
        self
    }

    /// Adds a provider of this content.
    #[must_use]
    pub fn of(mut self, content: impl Into<Key>, provider: Provider) -> Self {
        self.one.entry(content.into()).or_default().push(provider);
        self
    }
}

impl Providers for FixedProviders {
    fn label(&self) -> &'static str {
        "fixed"
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        let one = self.one.get(&ask.content).into_iter().flatten();
        one.chain(&self.everything).cloned().for_each(|provider| ask.found(provider));
        // Others may provide it too: a list does not know.
        Box::pin(async { Ok(Answered { is_final: false }) })
    }

    fn locate(&self, node: NodeId, _: Deadline) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let known = self.everything.iter().chain(self.one.values().flatten());
        let found = known.filter(|provider| provider.id == node).max_by_key(|provider| provider.issued);
        let found = found.cloned();
        Box::pin(async { Ok(found) })
    }
}
