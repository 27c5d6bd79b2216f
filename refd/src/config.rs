//! Settings: what there is to set, and whether it fits together. Where values come from is in [`layers`].

pub(crate) mod layers;

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::Args;
use ron_core::{
    GateLimits,
    net::{Contact, ContactError},
};
use ron_overlay::OverlayError;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Takes a section as it is declared, and keeps what is said of each key for who asks for a template.
macro_rules! documented {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[doc = $doc:literal])+ $(#[serde $serde:tt])* $of:vis $key:ident: $kind:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $doc])+ $(#[serde $serde])* $of $key: $kind,)*
        }

        impl $name {
            /// Each key, and what it is.
            pub(crate) const KEYS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($key), concat!($($doc),+)),)*];
        }
    };
}

mod dht;
mod index;

pub(crate) use dht::DhtSection;
pub(crate) use index::IndexSection;

/// Every section with its keys, in the order in which they are shown.
pub(crate) const SECTIONS: [(&str, &[(&str, &str)]); 9] = [
    ("node", NodeSection::KEYS),
    ("log", LogSection::KEYS),
    ("net", NetSection::KEYS),
    ("admin", AdminSection::KEYS),
    ("dht", DhtSection::KEYS),
    ("overlay", OverlaySection::KEYS),
    ("storage", StorageSection::KEYS),
    ("registry", RegistrySection::KEYS),
    ("index", IndexSection::KEYS),
];

/// Keys without a value unless one is given, and what one looks like.
const OPTIONAL: [(&str, &str, &str); 14] = [
    ("node", "data_dir", "\"DIR\""),
    ("admin", "token_file", "\"FILE\""),
    ("storage", "scrub_every_hours", "168"),
    ("storage", "quota_objects", "1000000"),
    ("storage", "quota_bytes", "100000000000"),
    ("registry", "origin", "\"example.com/log\""),
    ("registry", "follow", "\"NODE_ID@IP:PORT\""),
    ("registry", "log_key", "\"KEY\""),
    ("registry", "retain_bytes", "1000000000"),
    ("registry", "retain_hours", "8760"),
    ("registry", "retain_entries", "1000000"),
    ("index", "region", "\"eu\""),
    ("index", "purge_interval_ms", "3600000"),
    ("index", "client_per_second", "100"),
];

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

/// What a flag can say.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flags {
    /// What kind of node it is: the settings that this stands for, unless they are set otherwise [default: dev].
    #[arg(long, value_name = "PRESET")]
    preset: Option<NodePreset>,
    /// Where keys, records and objects are kept, one directory for each node [default: the user's data folder].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where other nodes reach this one; port 0 takes a free one. May be given several times [default: 127.0.0.1:4710].
    #[arg(long, value_name = "IP:PORT", value_parser = ip_port)]
    listen: Vec<SocketAddr>,
    /// Where health, readiness and metrics are served; port 0 takes a free one [default: 127.0.0.1:4711].
    #[arg(long, value_name = "IP:PORT", value_parser = ip_port)]
    admin: Option<SocketAddr>,
    /// A node to begin with, as it prints itself when it starts. May be given several times.
    #[arg(long, value_name = "NODE_ID@IP:PORT")]
    seed: Vec<String>,
}

impl Flags {
    /// Only this one.
    pub(crate) fn in_dir(data_dir: Option<PathBuf>) -> Self {
        Flags { data_dir, ..Flags::default() }
    }
}

/// All settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The node itself.
    pub(crate) node: NodeSection,
    /// What is logged.
    pub(crate) log: LogSection,
    /// Links to other nodes.
    pub(crate) net: NetSection,
    /// Health, readiness and metrics.
    pub(crate) admin: AdminSection,
    /// Finding peers and content.
    pub(crate) dht: DhtSection,
    /// Sessions and gossip.
    pub(crate) overlay: OverlaySection,
    /// Keeping objects.
    pub(crate) storage: StorageSection,
    /// Keeping a log.
    pub(crate) registry: RegistrySection,
    /// Saying where things are.
    pub(crate) index: IndexSection,
}

documented! {
/// The node itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeSection {
    /// What kind of node it is: `dev`, `lan`, `public` or `amnesia`. It decides the defaults of other keys.
    pub(crate) preset: NodePreset,
    /// Where keys, records and objects are kept; the user's data folder if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether nothing at all reaches the disk: the node has a new key at each start, and is gone with the process.
    pub(crate) amnesia: bool,
    /// How long the node goes on after a request to stop while it says that it is not ready, so that balancers look elsewhere.
    pub(crate) pre_stop_ms: u64,
}
}

documented! {
/// What is logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// What is logged to standard error, as in `info` or `warn,ron_dht=debug`. The variable may be called `REFD_LOG` too.
    pub(crate) filter: String,
}
}

impl Default for LogSection {
    fn default() -> Self {
        LogSection { filter: "warn".to_owned() }
    }
}

documented! {
/// Links to other nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NetSection {
    /// Where to listen.
    #[serde(deserialize_with = "addrs")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Where others can reach this node, if it is elsewhere.
    #[serde(deserialize_with = "addrs")]
    pub(crate) external: Vec<SocketAddr>,
}
}

impl Default for NetSection {
    fn default() -> Self {
        NetSection { listen: vec![SocketAddr::from(([127, 0, 0, 1], 4710))], external: Vec::new() }
    }
}

documented! {
/// Health, readiness and metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdminSection {
    /// Where they are served.
    #[serde(deserialize_with = "addr")]
    pub(crate) listen: SocketAddr,
    /// Names that it is called by, besides `localhost` and addresses. Requests that name others are refused.
    pub(crate) hosts: Vec<String>,
    /// The file with the token that changes need; `token` in the data directory if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
}
}

impl Default for AdminSection {
    fn default() -> Self {
        AdminSection { listen: SocketAddr::from(([127, 0, 0, 1], 4711)), hosts: Vec::new(), token_file: None }
    }
}

documented! {
/// Sessions and gossip. What is not said is the library's default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OverlaySection {
    /// Topics to be on from the start.
    pub(crate) topics: Vec<String>,
    /// Sessions at once.
    pub(crate) max_conns: usize,
    /// Frames that may wait for one peer.
    pub(crate) inflight_frames: usize,
    /// Words that one peer may say in a second.
    pub(crate) max_rps: u32,
    /// Copies of one message that are pushed at most.
    pub(crate) relay_fanout: usize,
    /// Messages that one peer may be sent in a second because it asked.
    pub(crate) burst_budget_frames: u32,
    /// Bytes of a large message that travel together.
    pub(crate) chunk_bytes: usize,
    /// Longest frame.
    pub(crate) max_frame_bytes: usize,
    /// How long a frame that has begun may take to come.
    pub(crate) read_timeout_ms: u64,
    /// How long a peer may take to take what is sent.
    pub(crate) write_timeout_ms: u64,
    /// How long a session may be silent.
    pub(crate) idle_timeout_ms: u64,
    /// How long HELLO may take.
    pub(crate) handshake_timeout_ms: u64,
    /// How long a stop may take to leave and to send what waits.
    pub(crate) drain_ms: u64,
}
}

impl Default for OverlaySection {
    fn default() -> Self {
        let default = ron_overlay::Settings::default();
        OverlaySection {
            topics: Vec::new(),
            max_conns: default.max_conns,
            inflight_frames: default.peer.inflight_frames,
            max_rps: default.peer.max_rps,
            relay_fanout: default.gossip.relay_fanout,
            burst_budget_frames: default.gossip.burst_budget_frames,
            chunk_bytes: default.chunk_bytes,
            max_frame_bytes: default.max_frame_bytes,
            read_timeout_ms: millis(default.read_timeout),
            write_timeout_ms: millis(default.write_timeout),
            idle_timeout_ms: millis(default.idle_timeout),
            handshake_timeout_ms: millis(default.handshake_timeout),
            drain_ms: millis(default.drain_deadline),
        }
    }
}

impl OverlaySection {
    /// As the overlay takes them.
    pub(crate) fn settings(&self) -> ron_overlay::Settings {
        let mut settings = ron_overlay::Settings {
            max_conns: self.max_conns,
            chunk_bytes: self.chunk_bytes,
            max_frame_bytes: self.max_frame_bytes,
            read_timeout: Duration::from_millis(self.read_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms),
            drain_deadline: Duration::from_millis(self.drain_ms),
            ..ron_overlay::Settings::default()
        };
        settings.peer.inflight_frames = self.inflight_frames;
        settings.peer.max_rps = self.max_rps;
        settings.gossip.relay_fanout = self.relay_fanout;
        settings.gossip.burst_budget_frames = self.burst_budget_frames;
        settings
    }
}

documented! {
/// Keeping objects. What is not said is the library's default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StorageSection {
    /// Whether objects are only kept in memory, and gone with the process.
    pub(crate) memory: bool,
    /// Longest object.
    pub(crate) object_bytes_max: u64,
    /// Bytes of content in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_bytes: Option<u64>,
    /// Objects in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_objects: Option<u64>,
    /// Free space that puts leave on the disk.
    pub(crate) reserve_bytes: u64,
    /// Objects up to this long are records of the journal.
    pub(crate) small_bytes_max: u32,
    /// Most that one job reads or writes.
    pub(crate) chunk_bytes: u32,
    /// Jobs that read at once.
    pub(crate) get_workers: NonZeroUsize,
    /// Jobs that write at once.
    pub(crate) put_workers: NonZeroUsize,
    /// Reading jobs that wait.
    pub(crate) get_lane: usize,
    /// Writing jobs that wait.
    pub(crate) put_lane: usize,
    /// Objects that are read at once.
    pub(crate) get_streams: usize,
    /// Objects that are written at once.
    pub(crate) put_streams: usize,
    /// Bytes that all streams of one direction hold together.
    pub(crate) stream_bytes_max: u64,
    /// Requests of one client in work at once.
    pub(crate) client_in_flight: u32,
    /// Requests of one client a second.
    pub(crate) client_per_second: u64,
    /// Requests of all clients in work at once.
    pub(crate) max_inflight: u32,
    /// Requests of all clients a second.
    pub(crate) max_rps: u64,
    /// How long the disk may take for one job of a read.
    pub(crate) read_timeout_ms: u64,
    /// How long the disk may take for one job of a write.
    pub(crate) write_timeout_ms: u64,
    /// How long a stream may stand still.
    pub(crate) idle_timeout_ms: u64,
    /// How long running work may take after a stop.
    pub(crate) drain_ms: u64,
    /// Bytes that compaction and scrubbing may read per second.
    pub(crate) upkeep_bytes_per_second: u64,
    /// How often everything is read to see whether it is still right; only when asked for without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrub_every_hours: Option<u64>,
    /// Size of a file of the journal.
    pub(crate) segment_bytes: u32,
    /// The share of the journal that may be garbage before it is compacted.
    pub(crate) garbage_max: f64,
    /// How long what was put is safe from a collection without a pin.
    pub(crate) collect_grace_ms: u64,
}
}

impl Default for StorageSection {
    fn default() -> Self {
        let default = ron_storage::Settings::default();
        StorageSection {
            memory: false,
            object_bytes_max: default.object_bytes_max,
            quota_bytes: default.quota_bytes,
            quota_objects: default.quota_objects,
            reserve_bytes: default.reserve_bytes,
            small_bytes_max: default.small_bytes_max,
            chunk_bytes: default.chunk_bytes,
            get_workers: default.get_workers,
            put_workers: default.put_workers,
            get_lane: default.get_lane,
            put_lane: default.put_lane,
            get_streams: default.get_streams,
            put_streams: default.put_streams,
            stream_bytes_max: default.stream_bytes_max,
            client_in_flight: default.client_limits.in_flight,
            client_per_second: default.client_limits.per_second,
            max_inflight: default.total_limits.in_flight,
            max_rps: default.total_limits.per_second,
            read_timeout_ms: millis(default.read_timeout),
            write_timeout_ms: millis(default.write_timeout),
            idle_timeout_ms: millis(default.idle_timeout),
            drain_ms: millis(default.drain),
            upkeep_bytes_per_second: default.upkeep_bytes_per_second,
            scrub_every_hours: default.scrub_every.map(|every| every.as_secs() / 3600),
            segment_bytes: default.segment_bytes,
            garbage_max: default.garbage_max,
            collect_grace_ms: millis(default.collect_grace),
        }
    }
}

impl StorageSection {
    /// As the store takes them. A burst is two seconds' worth of requests.
    pub(crate) fn settings(&self) -> ron_storage::Settings {
        let default = ron_storage::Settings::default();
        let limits = |limits: GateLimits, per_second: u64, in_flight| GateLimits {
            per_second,
            burst: per_second.saturating_mul(2),
            in_flight,
            ..limits
        };
        ron_storage::Settings {
            object_bytes_max: self.object_bytes_max,
            quota_bytes: self.quota_bytes,
            quota_objects: self.quota_objects,
            reserve_bytes: self.reserve_bytes,
            small_bytes_max: self.small_bytes_max,
            chunk_bytes: self.chunk_bytes,
            get_workers: self.get_workers,
            put_workers: self.put_workers,
            get_lane: self.get_lane,
            put_lane: self.put_lane,
            get_streams: self.get_streams,
            put_streams: self.put_streams,
            stream_bytes_max: self.stream_bytes_max,
            client_limits: limits(default.client_limits, self.client_per_second, self.client_in_flight),
            total_limits: limits(default.total_limits, self.max_rps, self.max_inflight),
            read_timeout: Duration::from_millis(self.read_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            drain: Duration::from_millis(self.drain_ms),
            upkeep_bytes_per_second: self.upkeep_bytes_per_second,
            segment_bytes: self.segment_bytes,
            garbage_max: self.garbage_max,
            collect_grace: Duration::from_millis(self.collect_grace_ms),
            scrub_every: self.scrub_every_hours.map(|hours| Duration::from_secs(hours.saturating_mul(3600))),
            ..default
        }
    }
}

documented! {
/// Keeping a log, its own or another's. What is not said is the library's default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RegistrySection {
    /// What the log is called; by the node if it is not set. It cannot change once the log has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// Whose log to follow instead of having one: `NODE_ID@IP:PORT`, or `http://HOST:PORT/registry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) follow: Option<String>,
    /// The key of the followed log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_key: Option<String>,
    /// Whether the log is only kept in memory, and gone with the process.
    pub(crate) memory: bool,
    /// Entries that are kept at least; nothing is pruned by number without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_entries: Option<u64>,
    /// How old an entry may become; nothing is pruned by age without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_hours: Option<u64>,
    /// Bytes of entries that are kept at most; nothing is pruned by size without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain_bytes: Option<u64>,
    /// Proposals that wait for the committer.
    pub(crate) proposals_lane: usize,
    /// Approvals that wait for the committer.
    pub(crate) approvals_lane: usize,
    /// Updates that a slow reader may be behind in memory.
    pub(crate) channel_bound: usize,
    /// Proposals that wait for approvals.
    pub(crate) pending_max: usize,
    /// Their bytes.
    pub(crate) pending_bytes_max: usize,
    /// How long the store may take for a block.
    pub(crate) commit_timeout_ms: u64,
    /// From when on it is said to be slow.
    pub(crate) slow_after_ms: u64,
    /// How often it is looked whether something can be pruned.
    pub(crate) checkpoint_interval_ms: u64,
    /// How often a slice of the log is verified again.
    pub(crate) verify_interval_ms: u64,
    /// Entries of a slice.
    pub(crate) verify_slice: usize,
    /// How long running work may take after a stop.
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

/// What kind of node it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodePreset {
    /// One machine: everything on the loopback interface.
    #[default]
    Dev,
    /// One building or cluster: listens on all interfaces.
    Lan,
    /// The open Internet: listens on all interfaces, and trusts nobody's address.
    Public,
    /// Nothing reaches the disk.
    Amnesia,
}

impl NodePreset {
    /// What it sets, unless that is set otherwise.
    fn table(self) -> toml::Table {
        let text = match self {
            NodePreset::Dev => "",
            NodePreset::Lan => "dht.preset = \"lan\"\nnet.listen = [\"0.0.0.0:4710\"]",
            NodePreset::Public => "dht.preset = \"public\"\nnet.listen = [\"0.0.0.0:4710\"]",
            NodePreset::Amnesia => "node.amnesia = true\nstorage.memory = true\nregistry.memory = true",
        };
        text.parse().expect("written above")
    }

    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            NodePreset::Dev => "dev",
            NodePreset::Lan => "lan",
            NodePreset::Public => "public",
            NodePreset::Amnesia => "amnesia",
        }
    }
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
        self.overlay.settings().check().map_err(|error| in_file("overlay", error))?;
        self.registry.settings().check().map_err(|error| in_file("registry", error))?;
        self.index.check()?;
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
        let NetSection { listen, external } = &self.net;
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

    /// The seeds as contacts.
    pub(crate) fn seeds(&self) -> Result<Vec<Contact>, ConfigError> {
        self.dht.seeds.iter().map(|text| seed(text)).collect()
    }

    /// Where data is kept.
    pub(crate) fn data_dir(&self) -> Result<PathBuf, ConfigError> {
        if let Some(dir) = &self.node.data_dir {
            return Ok(dir.clone());
        }
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || set("HOME");
        let data = if cfg!(target_os = "macos") {
            home().map(|home| home.join("Library/Application Support"))
        } else {
            set("XDG_DATA_HOME").or_else(|| home().map(|home| home.join(".local/share")))
        };
        data.map(|data| data.join("refd")).ok_or(ConfigError::NoDataDir)
    }

    /// Where the token is. A node without a memory has it where what is written is gone with the machine's session.
    pub(crate) fn token_file(&self) -> Result<PathBuf, ConfigError> {
        match (&self.admin.token_file, self.node.amnesia) {
            (Some(path), _) => Ok(path.clone()),
            (None, false) => Ok(self.data_dir()?.join("token")),
            (None, true) => match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
                Some(dir) => Ok(PathBuf::from(dir).join("refd/token")),
                None => Err(ConfigError::Unfit(
                    "node.amnesia is true and there is no XDG_RUNTIME_DIR for the token; set admin.token_file to a file in \
                     memory, such as /dev/shm/refd/token"
                        .to_owned(),
                )),
            },
        }
    }
}

/// What a library says of its setting, in the words of the file.
fn in_file(section: &str, error: ron_core::ConfigError) -> ConfigError {
    let ron_core::ConfigError::OutOfRange { key, value, allowed } = error else {
        return ConfigError::Unfit(format!("{section}: {error}"));
    };
    let key = if section == "dht" { DhtSection::key_of(key) } else { key };
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An address that says what one looks like when it is none.
fn addr<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    ip_port(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn ip_port(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not IP:PORT; names are not looked up"))
}

/// Seeds, checked where their line is known.
fn seeds<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Checked(String);
    impl<'de> Deserialize<'de> for Checked {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let text = String::deserialize(from)?;
            match contact(&text) {
                Ok(_) => Ok(Checked(text)),
                Err(error) => Err(D::Error::custom(format_args!("{text:?} is no seed: {error}"))),
            }
        }
    }
    Ok(Vec::<Checked>::deserialize(from)?.into_iter().map(|Checked(text)| text).collect())
}

fn addrs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    struct Addr(#[serde(deserialize_with = "addr")] SocketAddr);
    Ok(Vec::<Addr>::deserialize(from)?.into_iter().map(|Addr(addr)| addr).collect())
}

fn seed(text: &str) -> Result<Contact, ConfigError> {
    contact(text).map_err(|source| ConfigError::Seed { text: text.to_owned(), source })
}

/// A contact that can be dialled.
fn contact(text: &str) -> Result<Contact, ContactError> {
    let contact: Contact = text.parse()?;
    match contact.addrs.is_empty() {
        true => Err(ContactError::Addr { text: String::new() }),
        false => Ok(contact),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;

    fn load(text: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::load(Some(file.path()), variables, flags)
    }

    #[test]
    fn later_wins_and_what_is_not_said_is_the_default() {
        let flags = Flags { admin: Some("127.0.0.1:9".parse().unwrap()), ..Flags::default() };
        let variables =
            [("REFD_NET__LISTEN", "[\"127.0.0.1:2\"]"), ("REFD_DHT__PRESET", "lan"), ("HOME", "/x")];
        let config =
            load("[net]\nlisten = [\"127.0.0.1:1\"]\n[dht]\nserver = false\n", &variables, flags).unwrap();
        assert_eq!(config.net.listen, ["127.0.0.1:2".parse().unwrap()]);
        assert_eq!((config.dht.server, config.dht.preset), (false, dht::PresetName::Lan));
        assert_eq!(config.admin.listen.port(), 9);
        assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
    }

    #[test]
    fn every_key_of_the_store_reaches_it() {
        let default = StorageSection::default();
        assert_eq!(default.settings(), ron_storage::Settings::default());
        // Each key changed by itself changes the settings, and is the same when it is read back.
        let text = toml::to_string(&StorageSection {
            quota_bytes: Some(7),
            quota_objects: Some(7),
            scrub_every_hours: Some(7),
            ..default.clone()
        })
        .unwrap();
        for line in text.lines().filter(|line| !line.starts_with("memory")) {
            let (key, _) = line.split_once(" = ").unwrap();
            let config = load(&format!("[storage]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            assert_ne!(config.storage.settings(), default.settings(), "{key}");
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
    }

    #[test]
    fn every_key_of_the_dht_reaches_it() {
        let default = DhtSection::default();
        assert_eq!(default.settings(), ron_dht::Settings::default());
        let text = toml::to_string(&default).unwrap();
        let mut seen = vec![default.settings()];
        for line in text.lines().filter(|line| !line.starts_with("seeds = ")) {
            let (key, value) = line.split_once(" = ").unwrap();
            let value = match value {
                "true" => "false",
                "\"dev\"" => "\"public\"",
                _ if key == "buckets_required" => "0.9",
                _ => "9",
            };
            let config = load(&format!("[dht]\n{key} = {value}\n"), &[], Flags::default()).unwrap();
            let settings = config.dht.settings();
            // Neither the default nor what another key does.
            assert!(!seen.contains(&settings), "{key}");
            seen.push(settings);
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
        assert_eq!(seen.len(), 39);
    }

    #[test]
    fn every_key_of_the_overlay_reaches_it() {
        let default = OverlaySection::default();
        assert_eq!(default.settings(), ron_overlay::Settings::default());
        let text = toml::to_string(&default).unwrap();
        let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        assert_eq!(keys.len(), 13, "{keys:?}");
        let mut seen = vec![default.settings()];
        for key in keys.into_iter().filter(|key| *key != "topics") {
            let config = load(&format!("[overlay]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            let settings = config.overlay.settings();
            // Neither the default nor what another key does.
            assert!(!seen.contains(&settings), "{key}");
            seen.push(settings);
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
        let topics = [("REFD_OVERLAY__TOPICS", "[\"news\", \"weather\"]")];
        let config = load("", &topics, Flags::default()).unwrap();
        assert_eq!(config.overlay.topics, ["news", "weather"]);
    }

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
        for line in toml::to_string(&all).unwrap().lines().filter(|line| !line.starts_with("memory")) {
            let (key, _) = line.split_once(" = ").unwrap();
            let config = load(&format!("[registry]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            assert_ne!(config.registry.settings(), default.settings(), "{key}");
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
    }

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
            ("[overlay]\ntopics = [\"a\", \"a\"]\n", "overlay.topics: \"a\" is there more than once"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), words);
        }
        let loud = check("[log]\nfilter = \"ron_dht=loud\"\n").unwrap_err().to_string();
        assert!(loud.starts_with("log.filter \"ron_dht=loud\": "), "{loud}");
        let short = check("[overlay]\nidle_timeout_ms = 1000\n").unwrap_err().to_string();
        assert!(short.starts_with("overlay.idle_timeout_ms is too short"), "{short}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text: &str, variables: &[(&str, &str)]| {
            load(text, variables, Flags::default()).unwrap_err().to_string()
        };
        let storage = message("[storage]\nquota = 5\n", &[]);
        assert!(storage.contains("quota_bytes") && storage.contains("line 2"), "{storage}");
        let overlay = message("[overlay]\ntopic = []\n", &[]);
        assert!(overlay.contains("topics") && overlay.contains("line 2"), "{overlay}");
        let unknown = message("[dht]\nsedes = []\n", &[]);
        assert!(
            unknown.contains("sedes") && unknown.contains("seeds") && unknown.contains("line 2"),
            "{unknown}"
        );
        let wrong = message("", &[("REFD_ADMIN__LISTEN", "here")]);
        assert!(wrong.starts_with("REFD_ADMIN__LISTEN: "), "{wrong}");
        let bare = message("", &[("REFD_NET__LISTEN", "127.0.0.1:1")]);
        assert!(bare.starts_with("REFD_NET__LISTEN: ") && bare.contains("a list as [\"...\""), "{bare}");
        for text in ["[net]\nlisten = [\"localhost:1\"]\n", "[admin]\nlisten = \"localhost:1\"\n"] {
            let host = message(text, &[]);
            assert!(host.contains("line 2") && host.contains("\"localhost:1\" is not IP:PORT"), "{host}");
        }
        let why = "a contact is NODE_ID@IP:PORT, with further addresses behind commas";
        let seed = message("[dht]\nseeds = [\"nobody\"]\n", &[]);
        assert!(seed.contains("line 2") && seed.contains(&format!("\"nobody\" is no seed: {why}")), "{seed}");
        let unlisted = message(&format!("[dht]\nseeds = [\"{}@\"]\n", "1f".repeat(32)), &[]);
        assert!(unlisted.contains("is not an IP address and a port"), "{unlisted}");
        let flags = Flags { seed: vec!["nobody".to_owned()], ..Flags::default() };
        let seed = load("", &[], flags).unwrap_err();
        assert_eq!(seed.to_string(), "--seed \"nobody\"");
        assert_eq!(std::error::Error::source(&seed).unwrap().to_string(), why);
        assert!(
            Config::load(Some(std::path::Path::new("/nonexistent")), std::iter::empty(), Flags::default())
                .is_err()
        );
    }
}
