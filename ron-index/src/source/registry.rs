//! A registry as a source of names, with proof (feature `registry`).

use std::fmt;

use ron_registry::{LogTrust, Registry, RegistryError};

use super::{BoxFuture, Deadline, Name, NameRecord, Names, OWNED_PREFIX, SourceError};

/// Names that a quorum has decided, from a registry in this process: its own, or one that follows another's. Every answer is
/// proven against the signed head, and so is that a name stands for nothing; an answer without proof is not taken.
#[derive(Clone)]
pub struct RegistryNames {
    registry: Registry,
    trust: LogTrust,
}

impl RegistryNames {
    /// Names in `registry`, proven against the keys in `trust`.
    #[must_use]
    pub fn new(registry: &Registry, trust: LogTrust) -> Self {
        RegistryNames { registry: registry.clone(), trust }
    }

    fn look(&self, name: &Name) -> Result<Option<NameRecord>, SourceError> {
        // What is not a valid name in a log stands for nothing there.
        let Ok(name) = name.as_str().parse::<ron_registry::Name>() else { return Ok(None) };
        let answer = match self.registry.name(&name) {
            Ok(answer) => answer,
            // Before the log has begun nothing can be proven, not even that a name stands for nothing.
            Err(RegistryError::NotFound { .. }) => {
                return Err(SourceError::NotReady { gate: "registry.log" });
            }
            Err(error) if error.is_retryable() => return Err(SourceError::Transient(error.to_string())),
            Err(error) => return Err(SourceError::Failed(error.to_string())),
        };
        let latest =
            answer.verify(&name, &self.trust).map_err(|error| SourceError::Invalid(error.to_string()))?;
        Ok(latest.and_then(|latest| {
            let content = latest.content?;
            Some(NameRecord { content, version: latest.version, proven_by: "registry", ttl: None })
        }))
    }
}

impl Names for RegistryNames {
    fn label(&self) -> &'static str {
        "registry"
    }

    /// A name that its owner signs is not for a quorum to decide.
    fn serves(&self, name: &Name) -> bool {
        !name.as_str().starts_with(OWNED_PREFIX)
    }

    fn resolve<'a>(
        &'a self,
        name: &'a Name,
        _: Deadline,
    ) -> BoxFuture<'a, Result<Option<NameRecord>, SourceError>> {
        Box::pin(async move { self.look(name) })
    }
}

impl fmt::Debug for RegistryNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryNames").field("origin", &self.registry.origin()).finish_non_exhaustive()
    }
}
