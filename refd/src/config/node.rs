//! The sections of the program itself: `[node]`, `[limits]`, `[log]`, `[net]`, `[admin]` and `[otel]`.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf};

use ron_core::net::{EndpointSettings, rpc::PeersSettings};
use serde::{Deserialize, Serialize};

use super::{ConfigError, addr, addrs};

documented! {
/// The node itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeSection {
    /// What kind of node it is: `dev`, `lan`, `public` or `amnesia`. It decides the defaults of other keys.
    pub(crate) preset: NodePreset,
    /// Where keys, records and objects are kept; by default the user's data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether nothing at all reaches the disk: the node has a new key at each start, and keeps nothing when the process
    /// ends.
    pub(crate) amnesia: bool,
    /// After a request to stop: how long the node serves on while it says that it is not ready, so that load balancers move
    /// on.
    pub(crate) pre_stop_ms: u64,
    /// Threads of the runtime, which run everything but blocking calls; by default as many as there are cores.
    pub(crate) threads: NonZeroUsize,
}
}

impl Default for NodeSection {
    fn default() -> Self {
        NodeSection {
            preset: NodePreset::default(),
            data_dir: None,
            amnesia: false,
            pre_stop_ms: 0,
            threads: NonZeroUsize::MIN,
        }
    }
}

documented! {
/// What the node may take of the machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsSection {
    /// Bytes that the program with all its queues and caches may take; by default each of these has a limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
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
    /// The addresses that other nodes are told, if they differ from those it listens on.
    #[serde(deserialize_with = "addrs")]
    pub(crate) external: Vec<SocketAddr>,
    /// Incoming handshakes at once.
    pub(crate) handshakes_max: u32,
    /// Bytes that may wait to be written to peers, and as many that requests of peers may hold: once each for objects, for
    /// logs and for keeping.
    pub(crate) links_bytes: u64,
}
}

impl Default for NetSection {
    fn default() -> Self {
        NetSection {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 4710))],
            external: Vec::new(),
            handshakes_max: EndpointSettings::default().handshakes_max,
            links_bytes: PeersSettings::default().queued_bytes_max,
        }
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
    /// Names by which clients call the admin listener, besides `localhost` and addresses. Requests for other names are
    /// refused.
    pub(crate) hosts: Vec<String>,
    /// The file with the token that changes need; by default `token` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// Connections at once; a few more are accepted for health checks only.
    pub(crate) max_conns: usize,
}
}

impl Default for AdminSection {
    fn default() -> Self {
        AdminSection {
            listen: SocketAddr::from(([127, 0, 0, 1], 4711)),
            hosts: Vec::new(),
            token_file: None,
            max_conns: ron_core::http::Settings::default().connections_max,
        }
    }
}

documented! {
/// Traces of requests, for programs that were built with the feature `otel`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OtelSection {
    /// The collector that traces are sent to, as `http://HOST:PORT`; by default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
}
}

impl OtelSection {
    /// Whether it is a collector that this program can speak to.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        if !cfg!(feature = "otel") {
            return Err(ConfigError::Unfit(
                "otel.endpoint is set, and this program was built without the feature otel".to_owned(),
            ));
        }
        let host = endpoint.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
        match host.filter(|host| !host.is_empty() && !host.contains(['/', '@', ' '])) {
            Some(_) => Ok(()),
            None => Err(ConfigError::Setting {
                key: "otel.endpoint".to_owned(),
                value: endpoint.clone(),
                allowed: "http://HOST:PORT: a collector on this machine or in this network, which can speak TLS to others",
            }),
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
    pub(super) fn table(self) -> toml::Table {
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
