//! Settings: a file, then variables, then flags, the later winning; unknown keys are refused.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use ron_core::{
    GateLimits,
    net::{Contact, ContactError},
};
use ron_dht::Preset;
use ron_overlay::OverlayError;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Before the names of variables: `REFD_NET__LISTEN` is `listen` in the section `net`.
const PREFIX: &str = "REFD_";

/// Keys without a value unless one is given, and what they are then.
const OPTIONAL: [(&str, &str, &str); 7] = [
    ("node", "data_dir", "\"DIR\" # the user's data folder if it is not set"),
    ("storage", "scrub_every_hours", "168 # only when asked for if it is not set"),
    ("storage", "quota_objects", "1000000 # no limit if it is not set"),
    ("storage", "quota_bytes", "100000000000 # no limit but the disk's if it is not set"),
    ("registry", "retain_bytes", "1000000000 # everything if none of the three is set"),
    ("registry", "retain_hours", "8760"),
    ("registry", "retain_entries", "1000000"),
];

/// Variables that are not settings.
const NOT_SETTINGS: [&str; 1] = ["REFD_LOG"];

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
    /// The file is not TOML, or has an unknown key, or a value of the wrong kind.
    #[error("{origin}: {message}")]
    Parse {
        /// The file.
        origin: String,
        /// What is wrong, with the line.
        message: String,
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

/// What a flag can say.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flags {
    /// Where keys, records and objects are kept, one directory for each node [default: $XDG_DATA_HOME/refd or
    /// ~/.local/share/refd].
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

/// The node itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeSection {
    /// Where keys, records and objects are kept; the user's data folder if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
}

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

impl Default for NetSection {
    fn default() -> Self {
        NetSection { listen: vec![SocketAddr::from(([127, 0, 0, 1], 4710))], external: Vec::new() }
    }
}

/// Health, readiness and metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdminSection {
    /// Where they are served.
    #[serde(deserialize_with = "addr")]
    pub(crate) listen: SocketAddr,
}

impl Default for AdminSection {
    fn default() -> Self {
        AdminSection { listen: SocketAddr::from(([127, 0, 0, 1], 4711)) }
    }
}

/// Finding peers and content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DhtSection {
    /// `public`, `lan` or `dev`.
    pub(crate) preset: PresetName,
    /// Whether others may ask this node.
    pub(crate) server: bool,
    /// Nodes to begin with, each `NODE_ID@IP:PORT`, further addresses behind commas.
    #[serde(deserialize_with = "seeds")]
    pub(crate) seeds: Vec<String>,
}

impl Default for DhtSection {
    fn default() -> Self {
        DhtSection { preset: PresetName::Dev, server: true, seeds: Vec::new() }
    }
}

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

/// Saying where things are. What is not said is the library's default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IndexSection {
    /// Where this node is, as its operator calls that: providers of the same region come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    /// What one answer may take in all.
    pub(crate) deadline_ms: u64,
    /// Provider sources asked at once.
    pub(crate) alpha: std::num::NonZeroUsize,
    /// Other provider sources asked besides when those are slow.
    pub(crate) beta: usize,
    /// When they are slow, before enough was seen to tell.
    pub(crate) hedge_ms: u64,
    /// Verified providers that make an answer satisfactory.
    pub(crate) enough: std::num::NonZeroUsize,
    /// Lookups that run at once.
    pub(crate) workers: std::num::NonZeroUsize,
    /// Lookups that wait for one of those.
    pub(crate) work_lane: usize,
    /// Bytes of answers kept.
    pub(crate) cache_bytes: u64,
    /// How long answers about names are fresh.
    pub(crate) name_ttl_ms: u64,
    /// How long answers about content are fresh.
    pub(crate) content_ttl_ms: u64,
    /// How long it is remembered that there is nothing.
    pub(crate) negative_ttl_ms: u64,
    /// How long after that an answer is served while it is asked for again.
    pub(crate) stale_while_revalidate_ms: u64,
    /// How long after that an answer is served if asking fails.
    pub(crate) stale_if_error_ms: u64,
    /// Forgets everything that often; never without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) purge_interval_ms: Option<u64>,
    /// Names, addresses and CIDs that are looked up at the start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warmup_keys: Vec<String>,
    /// How long an outcome of a source counts.
    pub(crate) error_window_ms: u64,
    /// The share of failures at which a source is left alone.
    pub(crate) trip_threshold: f64,
    /// For how long.
    pub(crate) cooldown_ms: u64,
    /// Probes that must succeed then.
    pub(crate) half_open_probes: std::num::NonZeroU32,
    /// Questions of one client that may be open at once.
    pub(crate) client_in_flight: u32,
    /// Questions of one client in a second; no limit of its own without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_per_second: Option<u64>,
    /// Questions of all clients in a second.
    pub(crate) max_rps: u64,
    /// Lets fewer lookups in while they take long.
    pub(crate) adaptive: bool,
    /// How long running lookups may take after a stop.
    pub(crate) drain_ms: u64,
}

impl Default for IndexSection {
    fn default() -> Self {
        let default = ron_index::Settings::default();
        IndexSection {
            region: None,
            deadline_ms: millis(default.budget),
            alpha: default.alpha,
            beta: default.beta,
            hedge_ms: millis(default.hedge_after),
            enough: default.enough,
            workers: default.workers,
            work_lane: default.lane,
            cache_bytes: default.cache_bytes,
            name_ttl_ms: millis(default.name_ttl),
            content_ttl_ms: millis(default.content_ttl),
            negative_ttl_ms: millis(default.negative_ttl),
            stale_while_revalidate_ms: millis(default.stale_while_revalidate),
            stale_if_error_ms: millis(default.stale_if_error),
            purge_interval_ms: None,
            warmup_keys: Vec::new(),
            error_window_ms: millis(default.breaker.window),
            trip_threshold: default.breaker.trip_ratio.get(),
            cooldown_ms: millis(default.breaker.cooldown),
            half_open_probes: default.breaker.probes,
            client_in_flight: default.client_in_flight,
            client_per_second: None,
            max_rps: default.total_rate,
            adaptive: default.adaptive,
            drain_ms: millis(default.drain),
        }
    }
}

impl IndexSection {
    /// As the index takes them.
    pub(crate) fn settings(&self) -> ron_index::Settings {
        let default = ron_index::Settings::default();
        let ms = Duration::from_millis;
        ron_index::Settings {
            budget: ms(self.deadline_ms),
            alpha: self.alpha,
            beta: self.beta,
            hedge_after: ms(self.hedge_ms),
            enough: self.enough,
            workers: self.workers,
            lane: self.work_lane,
            cache_bytes: self.cache_bytes,
            name_ttl: ms(self.name_ttl_ms),
            content_ttl: ms(self.content_ttl_ms),
            negative_ttl: ms(self.negative_ttl_ms),
            stale_while_revalidate: ms(self.stale_while_revalidate_ms),
            stale_if_error: ms(self.stale_if_error_ms),
            amnesia: self.purge_interval_ms.map(ms),
            // Those that are none were refused when the file was read.
            warmup: self.warmup_keys.iter().filter_map(|key| key.parse().ok()).collect(),
            breaker: ron_core::BreakerSettings {
                window: ms(self.error_window_ms),
                trip_ratio: ron_core::Ratio::new("index.trip_threshold", self.trip_threshold)
                    .unwrap_or(default.breaker.trip_ratio),
                cooldown: ms(self.cooldown_ms),
                probes: self.half_open_probes,
                ..default.breaker
            },
            client_in_flight: self.client_in_flight,
            client_rate: self
                .client_per_second
                .map(|per_second| ron_index::Rate { per_second, burst: per_second.saturating_mul(2) }),
            total_rate: self.max_rps,
            adaptive: self.adaptive,
            rank: ron_index::RankSettings { region: self.region.clone(), ..default.rank },
            drain: ms(self.drain_ms),
            ..default
        }
    }

    /// What the library cannot see any more.
    fn check(&self) -> Result<(), ConfigError> {
        ron_core::Ratio::new("trip_threshold", self.trip_threshold)
            .map_err(|error| in_file("index", error))?;
        for key in &self.warmup_keys {
            let wrong = |error| ConfigError::Unfit(format!("index.warmup_keys: {key:?}: {error}"));
            key.parse::<ron_index::Key>().map_err(wrong)?;
        }
        self.settings().check().map_err(|error| in_file("index", error))
    }
}

/// A preset by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PresetName {
    /// The open Internet.
    Public,
    /// One building or cluster.
    Lan,
    /// One machine.
    Dev,
}

impl From<PresetName> for Preset {
    fn from(name: PresetName) -> Self {
        match name {
            PresetName::Public => Preset::Public,
            PresetName::Lan => Preset::Lan,
            PresetName::Dev => Preset::Dev,
        }
    }
}

impl Config {
    /// Reads the file if there is one, and lets variables and flags win over it.
    pub(crate) fn load(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Self, ConfigError> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
                // Checked on its own first, so that what is wrong is shown with its line.
                let parse = |error: toml::de::Error| ConfigError::Parse {
                    origin: path.display().to_string(),
                    message: error.to_string().trim_end().to_owned(),
                };
                toml::from_str::<Config>(&text).map_err(parse)?;
                text.parse().map_err(parse)?
            }
        };
        for (name, value) in variables {
            if let Some(key) = name.strip_prefix(PREFIX).filter(|_| !NOT_SETTINGS.contains(&&*name)) {
                let wrong =
                    |message: &str| ConfigError::Variable { name: name.clone(), message: message.to_owned() };
                let key = key.to_lowercase();
                let (section, key) = key
                    .split_once("__")
                    .ok_or_else(|| wrong("settings are REFD_SECTION__KEY, with two underscores between"))?;
                set(&mut table, section, key, &value);
                table
                    .clone()
                    .try_into::<Config>()
                    .map_err(|error: toml::de::Error| wrong(error.message()))?;
            }
        }
        let mut config: Config = table.try_into().map_err(|error: toml::de::Error| ConfigError::Parse {
            origin: "settings".to_owned(),
            message: error.message().to_owned(),
        })?;
        config.apply(flags);
        config.seeds()?;
        Ok(config)
    }

    fn apply(&mut self, flags: Flags) {
        if flags.data_dir.is_some() {
            self.node.data_dir = flags.data_dir;
        }
        if !flags.listen.is_empty() {
            self.net.listen = flags.listen;
        }
        if let Some(admin) = flags.admin {
            self.admin.listen = admin;
        }
        if !flags.seed.is_empty() {
            self.dht.seeds = flags.seed;
        }
    }

    /// Whether every subsystem takes its settings: what is refused here is what a start would refuse later.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_addresses()?;
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
        let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
        data.map(|data| data.join("refd")).ok_or(ConfigError::NoDataDir)
    }

    /// The whole configuration as a file, with the keys that are not set as comments.
    pub(crate) fn to_toml(&self) -> String {
        let mut text = toml::to_string(self).expect("plain values can be written");
        for (section, key, comment) in OPTIONAL {
            let head = format!("[{section}]\n");
            let start = text.find(&head).map_or(text.len(), |at| at + head.len());
            let end = text[start..].find("\n[").map_or(text.len(), |at| start + at + 1);
            if !text[start..end].lines().any(|line| line.starts_with(&format!("{key} = "))) {
                text.insert_str(start, &format!("# {key} = {comment}\n"));
            }
        }
        text
    }
}

/// What a library says of its setting, in the words of the file.
fn in_file(section: &str, error: ron_core::ConfigError) -> ConfigError {
    let ron_core::ConfigError::OutOfRange { key, value, allowed } = error else {
        return ConfigError::Unfit(format!("{section}: {error}"));
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Puts a variable into its section: a bare word is text, a list is in brackets, as in the file.
fn set(table: &mut toml::Table, section: &str, key: &str, value: &str) {
    let parsed = format!("v = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("v"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
    if let Some(section) = section.as_table_mut() {
        section.insert(key.to_owned(), value);
    }
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
        assert_eq!((config.dht.server, config.dht.preset), (false, PresetName::Lan));
        assert_eq!(config.admin.listen.port(), 9);
        assert_eq!(load(&config.to_toml(), &[], Flags::default()).unwrap(), config);
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
            assert_eq!(load(&config.to_toml(), &[], Flags::default()).unwrap(), config);
        }
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
            assert_eq!(load(&config.to_toml(), &[], Flags::default()).unwrap(), config);
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
            assert_eq!(load(&config.to_toml(), &[], Flags::default()).unwrap(), config);
        }
    }

    #[test]
    fn keys_that_are_not_set_are_shown_as_comments() {
        let config = Config::default();
        let text = config.to_toml();
        for (_, key, _) in OPTIONAL {
            assert!(text.contains(&format!("\n# {key} = ")), "{key}: {text}");
        }
        assert_eq!(load(&text, &[], Flags::default()).unwrap(), config);
        // Without the mark they are settings, in the section where they stand.
        let all: String = text.lines().map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
        let all = load(&all, &[], Flags::default()).unwrap();
        assert_eq!((all.storage.quota_objects, all.storage.scrub_every_hours), (Some(1_000_000), Some(168)));
        assert!(!all.to_toml().contains("# "), "{}", all.to_toml());
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
        let name = message("", &[("REFD_LISTEN", "127.0.0.1:1")]);
        assert!(name.starts_with("REFD_LISTEN: settings are REFD_SECTION__KEY"), "{name}");
        for text in ["[net]\nlisten = [\"localhost:1\"]\n", "[admin]\nlisten = \"localhost:1\"\n"] {
            let host = message(text, &[]);
            assert!(host.contains("line 2") && host.contains("\"localhost:1\" is not IP:PORT"), "{host}");
        }
        let section = message("", &[("REFD_NTE__LISTEN", "[]")]);
        assert!(section.contains("nte") && section.contains("net"), "{section}");
        let why = "a contact is NODE_ID@IP:PORT, with further addresses behind commas";
        let seed = message("[dht]\nseeds = [\"nobody\"]\n", &[]);
        assert!(seed.contains("line 2") && seed.contains(&format!("\"nobody\" is no seed: {why}")), "{seed}");
        let unlisted = message(&format!("[dht]\nseeds = [\"{}@\"]\n", "1f".repeat(32)), &[]);
        assert!(unlisted.contains("is not an IP address and a port"), "{unlisted}");
        let flags = Flags { seed: vec!["nobody".to_owned()], ..Flags::default() };
        let seed = load("", &[], flags).unwrap_err();
        assert_eq!(seed.to_string(), "--seed \"nobody\"");
        assert_eq!(std::error::Error::source(&seed).unwrap().to_string(), why);
        assert!(Config::load(Some(Path::new("/nonexistent")), std::iter::empty(), Flags::default()).is_err());
    }
}
