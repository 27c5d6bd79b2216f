//! Settings: a file, then variables, then flags, the later winning; unknown keys are refused.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use ron_core::net::{Contact, ContactError};
use ron_dht::Preset;
use ron_overlay::OverlayError;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Before the names of variables: `REFD_NET__LISTEN` is `listen` in the section `net`.
const PREFIX: &str = "REFD_";

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
    /// A seed is not `ID@ADDRESS`.
    #[error("dht.seeds: {text:?}")]
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
    /// There is no place for data.
    #[error("node.data_dir is not set, and neither HOME nor XDG_DATA_HOME tells where data belongs")]
    NoDataDir,
}

/// What a flag can say.
#[derive(Debug, Default, Args)]
pub(crate) struct Flags {
    /// Where keys and records are kept, one directory for each node [default: $XDG_DATA_HOME/refd or
    /// ~/.local/share/refd].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where other nodes reach this one; port 0 takes a free one. May be given several times [default: 127.0.0.1:4710].
    #[arg(long, value_name = "IP:PORT")]
    listen: Vec<SocketAddr>,
    /// Where health, readiness and metrics are served; port 0 takes a free one [default: 127.0.0.1:4711].
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,
    /// A node to begin with, as it prints itself when it starts. May be given several times.
    #[arg(long, value_name = "NODE_ID@IP:PORT")]
    seed: Vec<String>,
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
}

/// The node itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeSection {
    /// Where keys and records are kept; the user's data folder if it is not set.
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
    pub(crate) seeds: Vec<String>,
}

impl Default for DhtSection {
    fn default() -> Self {
        DhtSection { preset: PresetName::Dev, server: true, seeds: Vec::new() }
    }
}

/// Sessions and gossip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OverlaySection {
    /// Topics to be on from the start. Others are joined when somebody publishes or listens.
    pub(crate) topics: Vec<String>,
    /// Sessions at once.
    pub(crate) max_conns: usize,
}

impl Default for OverlaySection {
    fn default() -> Self {
        OverlaySection { topics: Vec::new(), max_conns: ron_overlay::Settings::default().max_conns }
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

    /// The whole configuration as a file.
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain values can be written")
    }
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
    let text = String::deserialize(from)?;
    text.parse()
        .map_err(|_| D::Error::custom(format_args!("{text:?} is not IP:PORT; names are not looked up")))
}

fn addrs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    struct Addr(#[serde(deserialize_with = "addr")] SocketAddr);
    Ok(Vec::<Addr>::deserialize(from)?.into_iter().map(|Addr(addr)| addr).collect())
}

fn seed(text: &str) -> Result<Contact, ConfigError> {
    text.parse().map_err(|source| ConfigError::Seed { text: text.to_owned(), source })
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
    fn what_is_wrong_is_named() {
        let message = |text: &str, variables: &[(&str, &str)]| {
            load(text, variables, Flags::default()).unwrap_err().to_string()
        };
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
        let seed = load("[dht]\nseeds = [\"nobody\"]\n", &[], Flags::default()).unwrap_err();
        assert_eq!(seed.to_string(), "dht.seeds: \"nobody\"");
        let why = std::error::Error::source(&seed).unwrap().to_string();
        assert_eq!(why, "a contact is NODE_ID@IP:PORT, with further addresses behind commas");
        assert!(Config::load(Some(Path::new("/nonexistent")), std::iter::empty(), Flags::default()).is_err());
    }
}
