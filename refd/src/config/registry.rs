//! The section `[registry]`: what of [`ron_registry::Settings`] a file can say.

use std::time::Duration;

use ron_core::net::Contact;
use ron_registry::{NoteVerifier, Witness, logic::checkpoint::is_origin};
use serde::{Deserialize, Serialize};

use super::{ConfigError, millis};

documented! {
/// Keeping a log, its own or another's. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RegistrySection {
    /// The name of the log; by default made from the node id. It cannot change once the log has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// A log to follow instead of having one: `NODE_ID@IP:PORT`, or `http://HOST:PORT/registry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) follow: Option<String>,
    /// The public key of the followed log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_key: Option<String>,
    /// Witnesses, each `URL KEY`. A log of its own is shown to them; a followed log needs their signatures.
    pub(crate) witnesses: Vec<String>,
    /// How many witnesses must have signed.
    pub(crate) witnesses_needed: usize,
    /// How often a new head is shown to the witnesses.
    pub(crate) witness_interval_ms: u64,
    /// Whether the log is kept in memory only, and lost when the process ends.
    pub(crate) memory: bool,
    /// Entries that are kept; by default nothing is pruned by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_entries: Option<u64>,
    /// How old entries may become; by default nothing is pruned by age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_hours: Option<u64>,
    /// Bytes of entries that are kept; by default nothing is pruned by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_bytes: Option<u64>,
    /// Proposals that wait for the committer.
    pub(crate) proposals_lane: usize,
    /// Approvals that wait for the committer.
    pub(crate) approvals_lane: usize,
    /// Updates that a slow subscriber may be behind before it reads them from the log again.
    pub(crate) channel_bound: usize,
    /// Proposals that wait for approvals.
    pub(crate) pending_max: usize,
    /// Bytes of the proposals that wait for approvals.
    pub(crate) pending_bytes_max: usize,
    /// How long the store may take for a block of entries.
    pub(crate) commit_timeout_ms: u64,
    /// How long it may take before it is reported as slow.
    pub(crate) slow_after_ms: u64,
    /// How often it is checked whether something can be pruned.
    pub(crate) checkpoint_interval_ms: u64,
    /// How often a slice of the log is verified again.
    pub(crate) verify_interval_ms: u64,
    /// Entries in such a slice.
    pub(crate) verify_slice: usize,
    /// How long running work may take after a request to stop.
    pub(crate) drain_ms: u64,
}
}

impl Default for RegistrySection {
    fn default() -> Self {
        let default = ron_registry::Settings::default();
        RegistrySection {
            origin: None,
            follow: None,
            log_key: None,
            witnesses: Vec::new(),
            witnesses_needed: 1,
            witness_interval_ms: 10_000,
            memory: false,
            retain_entries: None,
            retain_hours: None,
            retain_bytes: None,
            proposals_lane: default.proposals_lane,
            approvals_lane: default.approvals_lane,
            channel_bound: default.committed_lane,
            pending_max: default.pending.pending_max,
            pending_bytes_max: default.pending.pending_bytes_max,
            commit_timeout_ms: millis(default.commit_timeout),
            slow_after_ms: millis(default.slow_after),
            checkpoint_interval_ms: millis(default.checkpoint_interval),
            verify_interval_ms: millis(default.verify_interval),
            verify_slice: default.verify_slice,
            drain_ms: millis(default.drain),
        }
    }
}

impl RegistrySection {
    /// The witnesses, if they are some and there are as many as are needed.
    pub(crate) fn witnesses(&self) -> Result<Vec<Witness>, ConfigError> {
        let unfit = |words: String| ConfigError::Unfit(format!("registry.witnesses: {words}"));
        let of = |text: &String| {
            let (url, key) =
                text.split_once(' ').ok_or_else(|| unfit(format!("{text:?} is not \"URL KEY\"")))?;
            let key = key.trim().parse().map_err(|error| unfit(format!("{text:?}: {error}")))?;
            Witness::new(url, key).map_err(|error| unfit(format!("{text:?}: {}", crate::with_causes(&error))))
        };
        let all = self.witnesses.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        if !all.is_empty() && !(1..=all.len()).contains(&self.witnesses_needed) {
            let (needed, count) = (self.witnesses_needed, all.len());
            return Err(ConfigError::Unfit(format!(
                "registry.witnesses_needed is {needed}, allowed is 1..={count}: there are {count}"
            )));
        }
        if self.witness_interval_ms == 0 {
            return Err(ConfigError::Unfit(
                "registry.witness_interval_ms is 0, allowed is 1 and more".to_owned(),
            ));
        }
        Ok(all)
    }

    /// Whether a log may be called so, if it has a name of its own.
    pub(crate) fn check_origin(&self) -> Result<(), ConfigError> {
        match &self.origin {
            Some(origin) if !is_origin(origin) => {
                Err(ConfigError::Unfit(format!("registry.origin: {origin:?} is not the name of a log")))
            }
            _ => Ok(()),
        }
    }

    /// Whose log is followed, and by which key, if it is another's.
    pub(crate) fn followed(&self) -> Result<Option<(&str, NoteVerifier)>, ConfigError> {
        let Some(from) = self.follow.as_deref() else { return Ok(None) };
        let key = self.log_key.as_deref().ok_or_else(|| {
            ConfigError::Unfit("registry.follow needs registry.log_key, the key of that log".to_owned())
        })?;
        let key = key.parse().map_err(|error| ConfigError::Unfit(format!("registry.log_key: {error}")))?;
        if !from.starts_with("http://") {
            from.parse::<Contact>()
                .map_err(|error| ConfigError::Unfit(format!("registry.follow: {error}")))?;
        }
        Ok(Some((from, key)))
    }

    /// As the registry takes them.
    pub(crate) fn settings(&self) -> ron_registry::Settings {
        let default = ron_registry::Settings::default();
        ron_registry::Settings {
            proposals_lane: self.proposals_lane,
            approvals_lane: self.approvals_lane,
            committed_lane: self.channel_bound,
            pending: ron_registry::Limits {
                pending_max: self.pending_max,
                pending_bytes_max: self.pending_bytes_max,
                ..default.pending
            },
            commit_timeout: Duration::from_millis(self.commit_timeout_ms),
            slow_after: Duration::from_millis(self.slow_after_ms),
            checkpoint_interval: Duration::from_millis(self.checkpoint_interval_ms),
            retention: ron_registry::Retention {
                entries: self.retain_entries,
                age: self.retain_hours.map(|hours| Duration::from_secs(hours.saturating_mul(3600))),
                bytes: self.retain_bytes,
            },
            verify_interval: Duration::from_millis(self.verify_interval_ms),
            verify_slice: self.verify_slice,
            drain: Duration::from_millis(self.drain_ms),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use ron_registry::{KeyKind, NoteSigner};

    use super::*;
    use crate::config::{Flags, tests::load};

    #[test]
    fn every_key_of_the_registry_reaches_it() {
        let default = RegistrySection::default();
        assert_eq!(default.settings(), ron_registry::Settings::default());
        let all = RegistrySection {
            retain_entries: Some(7),
            retain_hours: Some(7),
            retain_bytes: Some(7),
            ..default.clone()
        };
        let is_setting = |line: &&str| !line.starts_with("memory") && !line.starts_with("witness");
        for line in toml::to_string(&all).unwrap().lines().filter(is_setting) {
            let (key, _) = line.split_once(" = ").unwrap();
            let config = load(&format!("[registry]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            assert_ne!(config.registry.settings(), default.settings(), "{key}");
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
    }

    #[test]
    fn a_log_is_followed_by_its_key() {
        for (rest, why) in [
            ("follow = \"http://127.0.0.1:1/registry\"", "registry.follow needs registry.log_key"),
            (
                "follow = \"http://127.0.0.1:1/registry\"\nlog_key = \"abc\"",
                "registry.log_key: not a verifier key",
            ),
        ] {
            let read = load(&format!("[registry]\n{rest}\n"), &[], Flags::default());
            let refused = read.and_then(|config| config.check()).unwrap_err().to_string();
            assert!(refused.contains(why), "{rest}: {refused}");
        }
        let signer = NoteSigner::from_seed("log.example/one", KeyKind::Ed25519, &[7; 32]).unwrap();
        let key = signer.verifier();
        let nobody = format!("[registry]\nfollow = \"nobody\"\nlog_key = \"{key}\"\n");
        let refused = load(&nobody, &[], Flags::default()).and_then(|config| config.check()).unwrap_err();
        assert!(refused.to_string().contains("registry.follow: "), "{refused}");
    }

    #[test]
    fn witnesses_are_addresses_with_keys() {
        let key =
            |kind| NoteSigner::from_seed("w.example/one", kind, &[7; 32]).unwrap().verifier().to_string();
        let witness = format!("http://127.0.0.1:1/w {}", key(KeyKind::Cosignature));
        let settings = |rest: &str| load(&format!("[registry]\n{rest}\n"), &[], Flags::default());
        let all = settings(&format!("witnesses = [\"{witness}\"]")).unwrap().registry.witnesses().unwrap();
        assert_eq!((all.len(), all[0].key().name()), (1, "w.example/one"));
        let of_a_log = format!("http://127.0.0.1:1/w {}", key(KeyKind::Ed25519));
        for (rest, why) in [
            ("witnesses = [\"nobody\"]".to_owned(), "is not \"URL KEY\""),
            ("witnesses = [\"http://127.0.0.1:1/w key\"]".to_owned(), "not a verifier key"),
            (format!("witnesses = [\"ftp://x {}\"]", key(KeyKind::Cosignature)), "is no address"),
            (format!("witnesses = [\"{of_a_log}\"]"), "is not the key of a witness"),
            (format!("witnesses = [\"{witness}\"]\nwitnesses_needed = 2"), "allowed is 1..=1"),
            (format!("witnesses = [\"{witness}\"]\nwitnesses_needed = 0"), "allowed is 1..=1"),
            ("witness_interval_ms = 0".to_owned(), "registry.witness_interval_ms is 0"),
        ] {
            let refused = settings(&rest).and_then(|config| config.check()).unwrap_err().to_string();
            assert!(refused.contains(why), "{rest}: {refused}");
        }
    }
}
