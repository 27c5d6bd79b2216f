//! Whether settings make sense, and fit together: what is refused here is what a start would refuse later.

use std::{net::SocketAddr, path::PathBuf};

use ron_core::net::ContactError;
use ron_overlay::OverlayError;

use super::{Config, DhtSection, KeepingSection, NetSection, memory};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value is of the wrong kind.
    #[error("{origin}: {message}")]
    Parse {
        /// The file.
        origin: String,
        /// What is wrong, with the line.
        message: String,
    },
    /// There is no such key.
    #[error("{place}: {name} is not a setting{}", did_you_mean(suggestion.as_deref()))]
    Unknown {
        /// The file and the line, or the environment.
        place: String,
        /// What was written.
        name: String,
        /// What may have been meant.
        suggestion: Option<String>,
    },
    /// A variable is not a setting, or has a value of the wrong kind.
    #[error("{name}: {message}; a value is written as in the file, a list as [\"...\", \"...\"]")]
    Variable {
        /// The variable.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// A seed given as a flag is not `ID@ADDRESS`; others are refused where they are read.
    #[error("--seed {text:?}")]
    Seed {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: ContactError,
    },
    /// A topic cannot be joined.
    #[error("overlay.topics: {name:?}")]
    Topic {
        /// Which.
        name: String,
        /// Why.
        source: OverlayError,
    },
    /// A subsystem would refuse a setting when it starts.
    #[error("{key} is {value}, allowed is {allowed}")]
    Setting {
        /// The setting, as it is in the file.
        key: String,
        /// What it is set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// There is less memory than the parts need.
    #[error(
        "limits.memory is {memory}, allowed is {least} or more: with less the largest parts have no room"
    )]
    TooLittle {
        /// What was allowed.
        memory: u64,
        /// What it takes.
        least: u64,
    },
    /// Keys that were set by hand let the node hold more than it may.
    #[error(
        "limits.memory is {memory}, and what is set can hold {needed}: {parts}; raise it, or lower what was set"
    )]
    Overcommitted {
        /// What was allowed.
        memory: u64,
        /// What could be held.
        needed: u64,
        /// By which part how much.
        parts: String,
    },
    /// Settings that do not fit each other, or nobody could use.
    #[error("{0}")]
    Unfit(String),
    /// There is no place for data.
    #[error("node.data_dir is not set, and neither HOME nor XDG_DATA_HOME tells where data belongs")]
    NoDataDir,
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `refd config template` lists all".to_owned(),
        |name| format!("; did you mean {name}?"),
    )
}

impl Config {
    /// Whether every subsystem takes its settings: what is refused here is what a start would refuse later.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_addresses()?;
        self.check_amnesia()?;
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log.filter) {
            return Err(ConfigError::Unfit(format!("log.filter {:?}: {error}", self.log.filter)));
        }
        self.dht.settings().check().map_err(|error| in_file("dht", error))?;
        self.storage.settings().check().map_err(|error| in_file("storage", error))?;
        self.keeping.check()?;
        self.overlay.check()?;
        self.registry.settings().check().map_err(|error| in_file("registry", error))?;
        self.registry.check_origin()?;
        self.registry.followed()?;
        self.registry.witnesses()?;
        self.index.check()?;
        self.check_least()?;
        self.otel.check()?;
        memory::check(self)?;
        let topics = &self.overlay.topics;
        if topics.iter().any(String::is_empty) {
            return Err(ConfigError::Unfit("overlay.topics: a topic has no name".to_owned()));
        }
        match topics.iter().enumerate().find(|(at, name)| topics[..*at].contains(name)) {
            Some((_, name)) => {
                Err(ConfigError::Unfit(format!("overlay.topics: {name:?} is there more than once")))
            }
            None => Ok(()),
        }
    }

    /// Limits of this program's own, of which the libraries make the best without a word.
    fn check_least(&self) -> Result<(), ConfigError> {
        let at_least_one = [
            ("net.handshakes_max", u64::from(self.net.handshakes_max)),
            ("net.links_bytes", self.net.links_bytes),
            ("admin.max_conns", self.admin.max_conns as u64),
        ];
        match at_least_one.iter().find(|(_, value)| *value == 0) {
            Some((key, value)) => Err(ConfigError::Setting {
                key: (*key).to_owned(),
                value: value.to_string(),
                allowed: "1 or more",
            }),
            None => Ok(()),
        }
    }

    /// A node without a memory that writes its objects down is none.
    fn check_amnesia(&self) -> Result<(), ConfigError> {
        let kept = [("storage.memory", self.storage.memory), ("registry.memory", self.registry.memory)];
        match kept.iter().find(|(_, is_memory)| self.node.amnesia && !is_memory) {
            Some((key, _)) => Err(ConfigError::Unfit(format!(
                "node.amnesia is true and {key} is false; set both or neither"
            ))),
            None => Ok(()),
        }
    }

    /// Others must be able to dial what this node tells them.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        let NetSection { listen, external, .. } = &self.net;
        let is_unspecified = |addr: &&SocketAddr| addr.ip().is_unspecified();
        if let Some(addr) = external.iter().find(|addr| is_unspecified(addr) || addr.port() == 0) {
            return Err(ConfigError::Unfit(format!(
                "net.external has {addr}, which nobody can dial; it is where others reach this node"
            )));
        }
        if !external.is_empty() {
            return Ok(());
        }
        match listen.iter().find(is_unspecified) {
            Some(addr) => {
                let port = if addr.port() == 0 { 4710 } else { addr.port() };
                Err(ConfigError::Unfit(format!(
                    "net.external is not set and net.listen is {}; set net.external = [\"YOUR_IP:{port}\"]",
                    addr.ip()
                )))
            }
            None if listen.is_empty() && self.dht.server => Err(ConfigError::Unfit(
                "net.listen and net.external are empty; set one of them, or dht.server = false".to_owned(),
            )),
            None => Ok(()),
        }
    }
}

/// What a library says of its setting, in the words of the file.
pub(super) fn in_file(section: &str, error: ron_core::ConfigError) -> ConfigError {
    let ron_core::ConfigError::OutOfRange { key, value, allowed } = error else {
        return ConfigError::Unfit(format!("{section}: {error}"));
    };
    let key = match section {
        "dht" => DhtSection::key_of(key),
        "keeping" => KeepingSection::key_of(key),
        _ => key,
    };
    let key = match key {
        "gate.client.in_flight" => "client_in_flight",
        "gate.client.per_second" => "client_per_second",
        "gate.total.in_flight" => "max_inflight",
        "gate.total.per_second" => "max_rps",
        "drain" | "drain_deadline" => "drain_ms",
        "read_timeout" => "read_timeout_ms",
        "write_timeout" => "write_timeout_ms",
        "idle_timeout" => "idle_timeout_ms",
        "handshake_timeout" => "handshake_timeout_ms",
        "scrub_every" => "scrub_every_hours",
        // Pings have no key in the file: it is the time between them that they do not fit.
        "gossip.ping_every" => {
            let allowed = "more than 4000: peers ping every two seconds, and one ping may be lost";
            return ConfigError::Setting {
                key: format!("{section}.idle_timeout_ms"),
                value: "too short".to_owned(),
                allowed,
            };
        }
        key => key.trim_start_matches("peer.").trim_start_matches("gossip."),
    };
    ConfigError::Setting { key: format!("{section}.{key}"), value, allowed }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use crate::config::{Flags, tests::load};

    /// What passed here was refused when the node started.
    #[test]
    fn what_a_start_would_refuse_is_refused_before() {
        let check = |text: &str| load(text, &[], Flags::default()).unwrap().check();
        assert!(check("").is_ok());
        assert!(check("[net]\nlisten = [\"0.0.0.0:1\"]\nexternal = [\"192.0.2.7:1\"]\n").is_ok());
        assert!(check("[net]\nlisten = []\n[dht]\nserver = false\n").is_ok());
        for (text, words) in [
            (
                "[net]\nlisten = [\"0.0.0.0:4710\"]\n",
                "net.external is not set and net.listen is 0.0.0.0; set net.external = [\"YOUR_IP:4710\"]",
            ),
            (
                "[net]\nexternal = [\"0.0.0.0:4710\"]\n",
                "net.external has 0.0.0.0:4710, which nobody can dial; it is where others reach this node",
            ),
            (
                "[net]\nlisten = []\n",
                "net.listen and net.external are empty; set one of them, or dht.server = false",
            ),
            ("[dht]\nhop_budget = 0\n", "dht.hop_budget is 0, allowed is 1 or more"),
            ("[keeping]\ntick_ms = 0\n", "keeping.tick_ms is 0 s, allowed is above zero"),
            ("[keeping]\nlane = 0\n", "keeping.lane is 0, allowed is 1..=1048576"),
            ("[keeping]\nweight = 0\n", "keeping.weight is 0, allowed is 1..=1000000"),
            ("[keeping]\nretention_hours = 1\n", "keeping.retention_hours is 1, allowed is 24 to 87600"),
            (
                "[keeping]\npolicy = \"17\"\n",
                "keeping.policy is \"17\", allowed is 1 to 16 copies, or shards as in 6+3, 32 of them at most",
            ),
            (
                "[keeping]\nack = \"none\"\n",
                "keeping.ack is \"none\", allowed is local, or a number of nodes from 1 to 32",
            ),
            (
                concat!(
                    "[keeping]\nsecret_file = \"x\"\n",
                    "members = [\"1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f@127.0.0.1:1\"]\n"
                ),
                "keeping.secret_file and keeping.members are both set; nodes know each other by one of them",
            ),
            ("[dht]\npaths = 9\n", "dht.paths is 9, allowed is 1..=8"),
            ("[dht]\npeer_per_second = 0\n", "dht.peer_per_second is 0, allowed is 1..=1000000000"),
            ("[dht]\nmax_inflight = 0\n", "dht.max_inflight is 0, allowed is 1 or more"),
            (
                "[dht]\nrpc_timeout_ms = 0\n",
                "dht.rpc_timeout_ms is 0 s, allowed is above zero, at most a day",
            ),
            (
                "[dht]\nrepublish_ms = 86400000\n",
                "dht.republish_ms is 86400 s, allowed is above zero, at most 12 h",
            ),
            ("[dht]\nrecords_max = 0\n", "dht.records_max is 0, allowed is 1 or more"),
            ("[dht]\nbuckets_required = 1.5\n", "dht.buckets_required is 1.5, allowed is 0.0..=1.0"),
            ("[storage]\ndrain_ms = 10\n", "storage.drain_ms is 10ms, allowed is 1 s to 5 s"),
            ("[storage]\nmax_inflight = 0\n", "storage.max_inflight is 0, allowed is 1 or more"),
            ("[overlay]\nmax_conns = 0\n", "overlay.max_conns is 0, allowed is 1..=1048576"),
            ("[overlay]\nmax_rps = 0\n", "overlay.max_rps is 0, allowed is 1..=1048576"),
            ("[overlay]\nread_timeout_ms = 0\n", "overlay.read_timeout_ms is 0 s, allowed is above zero"),
            ("[overlay]\nmax_frame_bytes = 1\n", "overlay.max_frame_bytes is 1, allowed is 65830..=1048576"),
            ("[overlay]\ntopics = [\"\", \"\"]\n", "overlay.topics: a topic has no name"),
            ("[registry]\nproposals_lane = 0\n", "registry.proposals_lane is 0, allowed is 1..=1048576"),
            ("[registry]\norigin = \"a b\"\n", "registry.origin: \"a b\" is not the name of a log"),
            ("[overlay]\ntopics = [\"a\", \"a\"]\n", "overlay.topics: \"a\" is there more than once"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), words);
        }
        for (endpoint, fits) in [
            ("http://127.0.0.1:4318", true),
            ("http://collector:4318/", true),
            ("https://c:1", false),
            ("http://", false),
        ] {
            let checked = check(&format!("[otel]\nendpoint = \"{endpoint}\"\n"));
            assert_eq!(checked.is_ok(), fits && cfg!(feature = "otel"), "{endpoint}");
        }
        let loud = check("[log]\nfilter = \"ron_dht=loud\"\n").unwrap_err().to_string();
        assert!(loud.starts_with("log.filter \"ron_dht=loud\": "), "{loud}");
        let short = check("[overlay]\nidle_timeout_ms = 1000\n").unwrap_err().to_string();
        assert!(short.starts_with("overlay.idle_timeout_ms is too short"), "{short}");
    }
}
