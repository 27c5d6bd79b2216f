//! The section `[keeping]`: who keeps objects with this node, and how. Nobody does unless a secret or a list says so.

use std::{
    fs,
    io::Read as _,
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ron_core::net::Contact;
use ron_storage::{
    claims::{Policy, RETENTION_DEFAULT, RETENTION_MAX, RETENTION_MIN},
    http::Wishes,
    members::{Admission, MembersSettings, Secret},
    repair::{Ack, KeepingSettings},
};
use serde::{Deserialize, Deserializer, Serialize};

use super::{ConfigError, in_file, millis, seed, seeds};

documented! {
/// Keeping objects with other nodes. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeepingSection {
    /// The file with the secret that all nodes share which keep objects together; readable only by its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// All of those nodes, each `NODE_ID@IP:PORT`, if they know each other by a list and not by a secret.
    #[serde(deserialize_with = "seeds")]
    pub(crate) members: Vec<String>,
    /// What fails together with this node, such as a machine, a rack or a site: copies go to different zones. Empty means
    /// that the node is a zone of its own.
    pub(crate) zone: String,
    /// How much this node stores compared with others.
    pub(crate) weight: u32,
    /// How an object is kept unless a put says otherwise: a number of copies, or shards as in `6+3`.
    #[serde(deserialize_with = "text_or_number")]
    pub(crate) policy: String,
    /// When a put is answered unless it says otherwise: `local` when this node has it, or a number of nodes that must have
    /// it.
    #[serde(deserialize_with = "text_or_number")]
    pub(crate) ack: String,
    /// How long a put waits for those nodes. After that the object stays here, and the answer says how many have it.
    pub(crate) ack_timeout_ms: u64,
    /// How long a delete is remembered after the last copy is gone.
    pub(crate) retention_hours: u64,
    /// How long a node that is not seen still counts as one of them; when it comes back later, it does again.
    pub(crate) forget_after_hours: u64,
    /// How often nodes compare what they have.
    pub(crate) tick_ms: u64,
    /// How often other nodes are looked for.
    pub(crate) refresh_ms: u64,
    /// How long the copies on a node still count after it stopped answering; longer than a restart.
    pub(crate) grace_ms: u64,
    /// How long the next node in line waits before it does the work of another.
    pub(crate) takeover_ms: u64,
    /// How long to wait after a failed repair; longer after each further failure.
    pub(crate) retry_ms: u64,
    /// Bytes that the repairs of this node may move per second; less while readers wait.
    pub(crate) bytes_per_second: u64,
    /// Repairs at once.
    pub(crate) workers: NonZeroUsize,
    /// Repairs that wait.
    pub(crate) lane: usize,
    /// How long one repair may take before it counts as failed.
    pub(crate) repair_timeout_ms: u64,
    /// How long a stop waits for running repairs.
    pub(crate) drain_ms: u64,
    /// Objects that owners may want kept, as far as this node knows; more are refused.
    pub(crate) claims_max: usize,
    /// The same for one owner. All who know the secret are the same owner.
    pub(crate) owner_claims_max: usize,
}
}

impl Default for KeepingSection {
    fn default() -> Self {
        let (default, members, wishes) =
            (KeepingSettings::default(), MembersSettings::default(), Wishes::default());
        KeepingSection {
            secret_file: None,
            members: Vec::new(),
            zone: members.zone,
            weight: members.weight,
            policy: wishes.policy.to_string(),
            ack: wishes.ack.to_string(),
            ack_timeout_ms: millis(wishes.ack_timeout),
            retention_hours: RETENTION_DEFAULT / 3600,
            forget_after_hours: members.forget_after.as_secs() / 3600,
            tick_ms: millis(default.tick),
            refresh_ms: millis(default.refresh),
            grace_ms: millis(default.grace),
            takeover_ms: millis(default.takeover),
            retry_ms: millis(default.retry),
            bytes_per_second: default.bytes_per_second,
            workers: default.workers,
            lane: default.lane,
            repair_timeout_ms: millis(default.repair_timeout),
            drain_ms: millis(default.drain),
            claims_max: default.claims_max,
            owner_claims_max: default.owner_claims_max,
        }
    }
}

impl KeepingSection {
    /// As keeping takes them.
    pub(crate) fn settings(&self) -> KeepingSettings {
        KeepingSettings {
            tick: Duration::from_millis(self.tick_ms),
            refresh: Duration::from_millis(self.refresh_ms),
            grace: Duration::from_millis(self.grace_ms),
            takeover: Duration::from_millis(self.takeover_ms),
            retry: Duration::from_millis(self.retry_ms),
            bytes_per_second: self.bytes_per_second,
            workers: self.workers,
            lane: self.lane,
            repair_timeout: Duration::from_millis(self.repair_timeout_ms),
            drain: Duration::from_millis(self.drain_ms),
            claims_max: self.claims_max,
            owner_claims_max: self.owner_claims_max,
        }
    }

    /// As membership takes them.
    pub(crate) fn of_members(&self) -> MembersSettings {
        MembersSettings {
            zone: self.zone.clone(),
            weight: self.weight,
            every: Duration::from_millis(self.refresh_ms),
            forget_after: hours(self.forget_after_hours),
        }
    }

    /// What is wished for objects.
    pub(crate) fn wishes(&self) -> Result<Wishes, ConfigError> {
        let wrong = |key: &str, value: &str, allowed| ConfigError::Setting {
            key: format!("keeping.{key}"),
            value: format!("{value:?}"),
            allowed,
        };
        let policy: Policy = self.policy.parse().map_err(|_| {
            wrong("policy", &self.policy, "1 to 16 copies, or shards as in 6+3, 32 of them at most")
        })?;
        let ack: Ack = self
            .ack
            .parse()
            .map_err(|_| wrong("ack", &self.ack, "local, or a number of nodes from 1 to 32"))?;
        Ok(Wishes {
            policy,
            ack,
            ack_timeout: Duration::from_millis(self.ack_timeout_ms),
            retention: hours(self.retention_hours),
        })
    }

    /// How many nodes have to answer for a put to be acknowledged.
    pub(crate) fn answering(wishes: &Wishes) -> usize {
        match wishes.ack {
            Ack::Local => 1,
            Ack::Copies(nodes) => nodes.into(),
        }
    }

    /// The list of nodes.
    pub(crate) fn contacts(&self) -> Result<Vec<Contact>, ConfigError> {
        self.members.iter().map(|text| seed(text)).collect()
    }

    /// Who belongs; nobody unless it is said.
    pub(crate) fn admission(&self) -> Result<Option<Admission>, ConfigError> {
        match &self.secret_file {
            Some(path) => Ok(Some(Admission::Secret(secret(path)?))),
            None if self.members.is_empty() => Ok(None),
            None => Ok(Some(Admission::Listed(self.contacts()?))),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.secret_file.is_some() && !self.members.is_empty() {
            let words =
                "keeping.secret_file and keeping.members are both set; nodes know each other by one of them";
            return Err(ConfigError::Unfit(words.to_owned()));
        }
        self.settings().check().map_err(|error| in_file("keeping", error))?;
        self.of_members().check().map_err(|error| in_file("keeping", error))?;
        self.wishes()?;
        let retention = RETENTION_MIN / 3600..=RETENTION_MAX / 3600;
        if !retention.contains(&self.retention_hours) {
            return Err(ConfigError::Setting {
                key: "keeping.retention_hours".to_owned(),
                value: self.retention_hours.to_string(),
                allowed: "24 to 87600",
            });
        }
        if self.ack_timeout_ms == 0 {
            return Err(ConfigError::Setting {
                key: "keeping.ack_timeout_ms".to_owned(),
                value: "0".to_owned(),
                allowed: "above zero",
            });
        }
        Ok(())
    }

    /// What the libraries call a key, as the file does: with its unit, and as one for the two that ask who there is.
    pub(crate) fn key_of(key: &'static str) -> &'static str {
        match key {
            "tick" => "tick_ms",
            "refresh" | "every" => "refresh_ms",
            "retry" => "retry_ms",
            "repair_timeout" => "repair_timeout_ms",
            "forget_after" => "forget_after_hours",
            key => key,
        }
    }
}

/// A bare number is one too: `ack = 2` can mean nothing else.
fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(u64),
    }
    Ok(match Either::deserialize(from)? {
        Either::Text(text) => text,
        Either::Number(number) => number.to_string(),
    })
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours.saturating_mul(3600))
}

/// Reads a secret that nobody else can read.
fn secret(path: &Path) -> Result<Secret, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    let unfit =
        |words: String| ConfigError::Unfit(format!("keeping.secret_file {}: {words}", path.display()));
    if mode & 0o077 != 0 {
        return Err(unfit(format!(
            "others can read it (mode {mode:o}); chmod 600 it, and change it if they may have"
        )));
    }
    let mut text = String::new();
    file.take(Secret::LENGTH_MAX as u64 + 16).read_to_string(&mut text).map_err(failed)?;
    Secret::new(&text).map_err(|error| unfit(error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;
    use crate::config::{Flags, tests::load};

    #[test]
    fn every_key_of_keeping_reaches_it() {
        let default = KeepingSection::default();
        assert_eq!(default.settings(), ron_storage::repair::KeepingSettings::default());
        assert_eq!(default.of_members(), ron_storage::members::MembersSettings::default());
        assert_eq!(default.wishes().unwrap(), ron_storage::http::Wishes::default());
        assert!(default.admission().unwrap().is_none(), "nobody belongs unless it is said");
        let all = |section: &KeepingSection| {
            (section.settings(), section.of_members(), section.wishes().unwrap(), section.secret_file.clone())
        };
        let text =
            toml::to_string(&KeepingSection { secret_file: Some("x".into()), ..default.clone() }).unwrap();
        let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        assert_eq!(keys.len(), KeepingSection::KEYS.len(), "{keys:?}");
        let mut seen = vec![all(&default)];
        for key in keys.into_iter().filter(|key| *key != "members") {
            let value = match key {
                "secret_file" | "zone" => "\"x\"",
                "policy" => "\"6+3\"",
                "ack" => "\"2\"",
                _ => "9",
            };
            let config = load(&format!("[keeping]\n{key} = {value}\n"), &[], Flags::default()).unwrap();
            let found = all(&config.keeping);
            // Neither the default nor what another key does.
            assert!(!seen.contains(&found), "{key}");
            seen.push(found);
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
        let listed = format!("[keeping]\nmembers = [\"{}@127.0.0.1:1\"]\n", "1f".repeat(32));
        let listed = load(&listed, &[], Flags::default()).unwrap();
        assert!(listed.check().is_ok());
        let variables = [("REFD_KEEPING__ACK", "4")];
        let numbers = load("[keeping]\nack = 2\npolicy = 3\n", &variables, Flags::default()).unwrap();
        assert_eq!((numbers.keeping.policy.as_str(), numbers.keeping.ack.as_str()), ("3", "4"));
        let admission = listed.keeping.admission().unwrap().unwrap();
        assert!(matches!(admission, ron_storage::members::Admission::Listed(list) if list.len() == 1));
    }

    /// What the libraries refuse is refused by its name in the file.
    #[test]
    fn a_refused_key_is_one_of_the_file() {
        for key in [
            "tick_ms",
            "refresh_ms",
            "retry_ms",
            "repair_timeout_ms",
            "lane",
            "bytes_per_second",
            "forget_after_hours",
        ] {
            let config = load(&format!("[keeping]\n{key} = 0\n"), &[], Flags::default()).unwrap();
            let refused = config.keeping.check().unwrap_err();
            let is_named = matches!(&refused, ConfigError::Setting { key: found, .. } if *found == format!("keeping.{key}"));
            assert!(is_named, "{refused:?}");
        }
    }

    /// A secret that others can read is none, nor is one that can be guessed.
    #[test]
    fn a_secret_is_read_and_never_shown() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let of = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            KeepingSection { secret_file: Some(path.clone()), ..KeepingSection::default() }.admission()
        };
        let canary = "canary".repeat(6);
        let good = of(&canary, 0o600).unwrap().unwrap();
        assert!(!format!("{good:?}").contains("canary"));
        for (text, mode, words) in [
            (canary.as_str(), 0o644, "others can read it (mode 644)"),
            ("short", 0o600, "a secret has 26 to 1024 printable characters, and this has 5"),
        ] {
            let error = of(text, mode).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("canary"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let missing = KeepingSection { secret_file: Some(path), ..KeepingSection::default() }.admission();
        assert!(matches!(missing.unwrap_err(), ConfigError::Read { .. }));
    }
}
