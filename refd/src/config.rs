//! Settings: what there is to set, and whether it fits together. Where values come from is in [`layers`].

pub(crate) mod layers;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use ron_core::net::{Contact, ContactError, rpc::PeersSettings};
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

mod check;
mod dht;
mod index;
mod keeping;
pub(crate) mod memory;
mod node;
mod overlay;
mod registry;
mod sizing;
mod storage;

pub(crate) use check::ConfigError;
use check::in_file;
pub(crate) use dht::DhtSection;
pub(crate) use index::IndexSection;
pub(crate) use keeping::KeepingSection;
pub(crate) use node::{
    AdminSection, LimitsSection, LogSection, NetSection, NodePreset, NodeSection, OtelSection,
};
pub(crate) use overlay::OverlaySection;
pub(crate) use registry::RegistrySection;
pub(crate) use storage::StorageSection;

/// Every section with its keys, in the order in which they are shown.
pub(crate) const SECTIONS: [(&str, &[(&str, &str)]); 12] = [
    ("node", NodeSection::KEYS),
    ("limits", LimitsSection::KEYS),
    ("log", LogSection::KEYS),
    ("net", NetSection::KEYS),
    ("admin", AdminSection::KEYS),
    ("otel", OtelSection::KEYS),
    ("dht", DhtSection::KEYS),
    ("overlay", OverlaySection::KEYS),
    ("storage", StorageSection::KEYS),
    ("keeping", KeepingSection::KEYS),
    ("registry", RegistrySection::KEYS),
    ("index", IndexSection::KEYS),
];

/// Keys without a value unless one is given, and what one looks like.
const OPTIONAL: [(&str, &str, &str); 18] = [
    ("node", "data_dir", "\"DIR\""),
    ("limits", "memory", "1073741824"),
    ("overlay", "bytes_max", "268435456"),
    ("admin", "token_file", "\"FILE\""),
    ("otel", "endpoint", "\"http://127.0.0.1:4318\""),
    ("storage", "scrub_every_hours", "168"),
    ("storage", "quota_objects", "1000000"),
    ("storage", "quota_bytes", "100000000000"),
    ("keeping", "secret_file", "\"FILE\""),
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
    #[arg(long, value_name = "NODE_ID@IP:PORT", value_parser = seed_flag)]
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
    /// What it may take of the machine.
    pub(crate) limits: LimitsSection,
    /// What is logged.
    pub(crate) log: LogSection,
    /// Links to other nodes.
    pub(crate) net: NetSection,
    /// Health, readiness and metrics.
    pub(crate) admin: AdminSection,
    /// Traces.
    pub(crate) otel: OtelSection,
    /// Finding peers and content.
    pub(crate) dht: DhtSection,
    /// Sessions and gossip.
    pub(crate) overlay: OverlaySection,
    /// Keeping objects.
    pub(crate) storage: StorageSection,
    /// Keeping them with others.
    pub(crate) keeping: KeepingSection,
    /// Keeping a log.
    pub(crate) registry: RegistrySection,
    /// Saying where things are.
    pub(crate) index: IndexSection,
}

impl Config {
    /// The limits of links of objects, of logs and of those who keep objects together, based on those of the library.
    pub(crate) fn links(&self, of: PeersSettings) -> PeersSettings {
        PeersSettings {
            queued_bytes_max: self.net.links_bytes,
            requests_bytes_max: self.net.links_bytes,
            sessions_max: of.sessions_max.min(self.dht.sessions_max),
            ..of
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

/// A seed as it is written, checked where the other flags are.
fn seed_flag(text: &str) -> Result<String, String> {
    contact(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
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

    pub(super) fn load(text: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, ConfigError> {
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
