//! Where a setting comes from: defaults, a preset, a file, variables, flags, the later winning.
//!
//! A key that nobody knows is refused wherever it is written: a setting that is silently not taken is found out when it is
//! needed.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{Config, ConfigError, Flags, NodePreset, OPTIONAL, SECTIONS, memory, sizing};

/// Before the names of variables: `REFD_NET__LISTEN` is `listen` in the section `net`.
const PREFIX: &str = "REFD_";

/// The variables of this process. What is not text is no setting of ours, unless it has the name of one: then it is refused, since
/// what stands for the bytes that are no text is nowhere a value.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let value = value.into_string().unwrap_or_else(|value| value.to_string_lossy().into_owned());
        Some((name.into_string().ok()?, value))
    })
}

/// Variables that are not settings.
const NOT_SETTINGS: [&str; 1] = ["REFD_TOKEN_FILE"];

/// The short name of a variable that is typed often.
const SHORT: (&str, &str) = ("REFD_LOG", "REFD_LOG__FILTER");

/// How alike two names are before one is suggested for the other, between 0 and 1.
const ALIKE: f64 = 0.8;

/// What set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody.
    Default,
    /// The cores of the machine.
    Sized,
    /// The memory that the node may take.
    Memory,
    /// The kind of node.
    Preset(NodePreset),
    /// A line in a file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
    /// An argument.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Sized => f.write_str("sized"),
            Origin::Memory => f.write_str("limits.memory"),
            Origin::Preset(preset) => write!(f, "preset {}", preset.name()),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// Settings, and what set each.
#[derive(Debug, Clone)]
pub(crate) struct Layered {
    /// All of them.
    pub(crate) config: Config,
    origins: BTreeMap<(String, String), Origin>,
}

impl Config {
    /// Reads the file if there is one, and lets variables and flags win over it.
    pub(crate) fn load(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Self, ConfigError> {
        Ok(Layered::load(file, variables, flags)?.config)
    }
}

impl Layered {
    /// As [`Config::load`].
    pub(crate) fn load(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Self, ConfigError> {
        Self::load_on(sizing::cores(), file, variables, flags)
    }

    /// As [`load`](Self::load), on a machine with so many cores.
    fn load_on(
        cores: NonZeroUsize,
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: Flags,
    ) -> Result<Self, ConfigError> {
        let mut set = Layers::default();
        if let Some(path) = file {
            set.lay(read(path)?, &Origin::File(path.to_owned()));
        }
        let mut variables: Vec<(String, String)> = variables.collect();
        // The short name first: who writes out the long one means it.
        variables.sort_by_key(|(name, _)| name != SHORT.0);
        for (name, value) in variables {
            let full = if name == SHORT.0 { SHORT.1 } else { &name };
            if NOT_SETTINGS.contains(&&*name) || !full.starts_with(PREFIX) {
                continue;
            }
            let (section, key) = variable(full)?;
            if value.contains(char::REPLACEMENT_CHARACTER) {
                return Err(ConfigError::Variable { name, message: "it is not UTF-8".to_owned() });
            }
            set.lay(table_of(&section, &key, &value), &Origin::Variable(name.clone()));
            // Checked now, while it is known which one it is.
            set.typed().map_err(|message| ConfigError::Variable { name, message })?;
        }
        let preset = flags.preset.map_or_else(|| set.typed().map(|config| config.node.preset), Ok);
        let unfit = |message| ConfigError::Parse { origin: "settings".to_owned(), message };
        let preset = preset.map_err(unfit)?;
        let over = |shares: Option<toml::Table>| {
            let mut all = Layers::default();
            all.lay(sizing::table(cores), &Origin::Sized);
            all.lay(preset.table(), &Origin::Preset(preset));
            all.lay(shares.unwrap_or_default(), &Origin::Memory);
            all.lay(set.table.clone(), &Origin::Default);
            all.origins.extend(set.origins.clone());
            all
        };
        let mut all = over(None);
        let mut config = all.typed().map_err(unfit)?;
        if let Some(bytes) = config.limits.memory {
            all = over(Some(memory::split(bytes, &config)?));
            config = all.typed().map_err(unfit)?;
        }
        let mut layered = Layered { config, origins: all.origins };
        layered.apply(flags);
        layered.config.seeds()?;
        Ok(layered)
    }

    fn apply(&mut self, flags: Flags) {
        let config = &mut self.config;
        let mut by = |section: &str, key: &str, flag| {
            self.origins.insert((section.to_owned(), key.to_owned()), Origin::Flag(flag));
        };
        if let Some(preset) = flags.preset {
            config.node.preset = preset;
            by("node", "preset", "--preset");
        }
        if flags.data_dir.is_some() {
            config.node.data_dir = flags.data_dir;
            by("node", "data_dir", "--data-dir");
        }
        if !flags.listen.is_empty() {
            config.net.listen = flags.listen;
            by("net", "listen", "--listen");
        }
        if let Some(admin) = flags.admin {
            config.admin.listen = admin;
            by("admin", "listen", "--admin");
        }
        if !flags.seed.is_empty() {
            config.dht.seeds = flags.seed;
            by("dht", "seeds", "--seed");
        }
    }

    /// What set a value.
    pub(crate) fn origin(&self, section: &str, key: &str) -> &Origin {
        self.origins.get(&(section.to_owned(), key.to_owned())).unwrap_or(&Origin::Default)
    }

    /// All settings as a file, each with what set it if `with_origin`.
    pub(crate) fn to_toml(&self, with_origin: bool) -> String {
        let values = values(&self.config);
        let mut text = String::new();
        for (section, keys) in SECTIONS {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}[{section}]\n");
            for (key, _) in keys {
                let line = match values.get(&(section, *key)) {
                    Some(value) => format!("{key} = {value}"),
                    None => format!("# {key} = {}", example(section, key)),
                };
                text += &match with_origin {
                    true => format!("{line:<50} # {}\n", self.origin(section, key)),
                    false => format!("{line}\n"),
                };
            }
        }
        let held: Vec<String> =
            memory::held(&self.config).iter().map(|(part, bytes)| format!("{part} {bytes}")).collect();
        text + &format!("\n# What can be held at most: {}\n", held.join(", "))
    }

    /// One value a line: the key, its value, and what set it.
    pub(crate) fn to_json(&self) -> String {
        let values = values(&self.config);
        let mut text = String::new();
        for (section, keys) in SECTIONS {
            for (key, _) in keys {
                let value = values.get(&(section, *key)).map_or(json!(null), |value| json!(value));
                let origin = self.origin(section, key).to_string();
                text += &format!(
                    "{}\n",
                    json!({"key": format!("{section}.{key}"), "value": value, "origin": origin})
                );
            }
        }
        text
    }
}

/// A file to begin with: every key with what it is and its default, as a comment.
pub(crate) fn template(preset: NodePreset, set: &[(&str, &str, String)]) -> String {
    let mut all = Layers::default();
    all.lay(sizing::table(sizing::cores()), &Origin::Sized);
    all.lay(preset.table(), &Origin::Preset(preset));
    let mut config = all.typed().expect("a preset is made of settings");
    config.node.preset = preset;
    let values = values(&config);
    let mut text =
        "# Settings of refd. A key that is a comment has the value that it shows, or none.\n".to_owned();
    for (section, keys) in SECTIONS {
        text += &format!("\n[{section}]\n");
        for (key, what) in keys {
            text += &format!("#{what}\n");
            text += &match set.iter().find(|(of, name, _)| (*of, *name) == (section, *key)) {
                Some((_, _, value)) => format!("{key} = {value}\n"),
                None => match values.get(&(section, *key)) {
                    Some(value) => format!("# {key} = {value}\n"),
                    None => format!("# {key} = {}\n", example(section, key)),
                },
            };
        }
    }
    text
}

/// The keys whose values differ, as `section.key`.
pub(crate) fn changed(old: &Config, new: &Config) -> Vec<(&'static str, &'static str)> {
    let (old, new) = (values(old), values(new));
    let keys = SECTIONS.iter().flat_map(|(section, keys)| keys.iter().map(move |(key, _)| (*section, *key)));
    keys.filter(|key| old.get(key) != new.get(key)).collect()
}

/// `old`, but for one key, which is as in `new`.
pub(crate) fn with_one(old: &Config, new: &Config, section: &str, key: &str) -> Config {
    let (mut table, new) = (as_table(old), as_table(new));
    let of_new = new.get(section).and_then(|section| section.get(key)).cloned();
    if let Some(section) = table.get_mut(section).and_then(toml::Value::as_table_mut) {
        match of_new {
            Some(value) => section.insert(key.to_owned(), value),
            None => section.remove(key),
        };
    }
    table.try_into().expect("each value was one of this key")
}

fn as_table(config: &Config) -> toml::Table {
    let mut config = config.clone();
    // A path that is not text has no form in a file, and is left out.
    config.node.data_dir = config.node.data_dir.filter(|dir| dir.to_str().is_some());
    config.admin.token_file = config.admin.token_file.filter(|file| file.to_str().is_some());
    config.keeping.secret_file = config.keeping.secret_file.filter(|file| file.to_str().is_some());
    toml::Table::try_from(config).expect("plain values can be written")
}

/// Every value that is set or has a default.
fn values(config: &Config) -> BTreeMap<(&'static str, &'static str), toml::Value> {
    let table = as_table(config);
    let mut values = BTreeMap::new();
    for (section, keys) in SECTIONS {
        for (key, _) in keys {
            if let Some(value) = table.get(section).and_then(|section| section.get(key)) {
                values.insert((section, *key), value.clone());
            }
        }
    }
    values
}

fn example(section: &str, key: &str) -> &'static str {
    let found = OPTIONAL.iter().find(|(of, name, _)| (*of, *name) == (section, key));
    found.map_or("...", |(_, _, example)| example)
}

/// Tables laid over each other.
#[derive(Debug, Default)]
struct Layers {
    table: toml::Table,
    origins: BTreeMap<(String, String), Origin>,
}

impl Layers {
    fn lay(&mut self, over: toml::Table, origin: &Origin) {
        for (section, keys) in over {
            let toml::Value::Table(keys) = keys else { continue };
            let entry = self.table.entry(section.clone()).or_insert_with(|| toml::Table::new().into());
            let Some(under) = entry.as_table_mut() else { continue };
            for (key, value) in keys {
                self.origins.insert((section.clone(), key.clone()), origin.clone());
                under.insert(key, value);
            }
        }
    }

    fn typed(&self) -> Result<Config, String> {
        self.table.clone().try_into().map_err(|error: toml::de::Error| error.message().to_owned())
    }
}

/// The file, with nothing in it that is no setting.
fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let parse = |error: toml::de::Error| ConfigError::Parse {
        origin: path.display().to_string(),
        message: error.to_string().trim_end().to_owned(),
    };
    let written = toml::de::DeTable::parse(&text).map_err(parse)?;
    let line = |at: usize| text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n'));
    let unknown = |at: usize, name: String, suggestion| ConfigError::Unknown {
        place: format!("{}, line {}", path.display(), line(at)),
        name,
        suggestion,
    };
    for (section, keys) in written.get_ref() {
        let name = section.get_ref();
        if !SECTIONS.iter().any(|(known, _)| known == name) {
            let suggestion = nearest(SECTIONS.iter().map(|(known, _)| *known), name);
            return Err(unknown(section.span().start, name.to_string(), suggestion.map(str::to_owned)));
        }
        let Some(keys) = keys.get_ref().as_table() else { continue };
        for key in keys.keys() {
            if !is_known(name, key.get_ref()) {
                let suggestion =
                    suggest(name, key.get_ref()).map(|(section, key)| format!("{section}.{key}"));
                return Err(unknown(key.span().start, format!("{name}.{}", key.get_ref()), suggestion));
            }
        }
    }
    // Checked on its own, so that what is wrong is shown with its line.
    toml::from_str::<Config>(&text).map_err(parse)?;
    text.parse().map_err(parse)
}

/// The section and the key that a variable names.
fn variable(name: &str) -> Result<(String, String), ConfigError> {
    let lower = name.trim_start_matches(PREFIX).to_lowercase();
    let (section, key) = lower.split_once("__").unwrap_or(("", &lower));
    if is_known(section, key) {
        return Ok((section.to_owned(), key.to_owned()));
    }
    let suggestion = suggest(section, key)
        .map(|(section, key)| format!("{PREFIX}{}__{}", section.to_uppercase(), key.to_uppercase()));
    Err(ConfigError::Unknown { place: "environment".to_owned(), name: name.to_owned(), suggestion })
}

/// A variable as a table: a bare word is text, a list is in brackets, as in the file.
fn table_of(section: &str, key: &str, value: &str) -> toml::Table {
    let parsed = format!("v = {value}").parse::<toml::Table>().ok();
    // One value and nothing behind it: what would be another key in a file is no part of this one.
    let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("v"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let keys = toml::Table::from_iter([(key.to_owned(), value)]);
    toml::Table::from_iter([(section.to_owned(), keys.into())])
}

fn is_known(section: &str, key: &str) -> bool {
    SECTIONS.iter().any(|(known, keys)| *known == section && keys.iter().any(|(name, _)| *name == key))
}

/// The setting that may have been meant: one whose key is alike, and of those the one whose section is.
fn suggest(section: &str, key: &str) -> Option<(&'static str, &'static str)> {
    let all = SECTIONS.iter().flat_map(|(section, keys)| keys.iter().map(move |(key, _)| (*section, *key)));
    let scored = all.map(|(of, name)| (of, name, strsim::jaro_winkler(name, key)));
    let alike = scored.filter(|(_, _, likeness)| *likeness >= ALIKE);
    let best = alike.map(|(of, name, likeness)| (likeness + strsim::jaro_winkler(of, section), (of, name)));
    best.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, found)| found)
}

fn nearest(names: impl Iterator<Item = &'static str>, to: &str) -> Option<&'static str> {
    let scored = names.map(|name| (strsim::jaro_winkler(name, to), name));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, name)| name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;

    fn load(text: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Layered, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Layered::load_on(NonZeroUsize::MIN, Some(file.path()), variables, flags)
    }

    /// Serde says what it takes when it is given what it does not, so the list cannot forget a key.
    #[test]
    fn every_key_that_is_read_is_listed() {
        let expected = |text: &str| {
            let message = toml::from_str::<Config>(text).unwrap_err().message().to_owned();
            let (_, list) = message.split_once("expected ").unwrap();
            let mut names: Vec<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            names.sort();
            names
        };
        let mut sections: Vec<&str> = SECTIONS.iter().map(|(section, _)| *section).collect();
        sections.sort_unstable();
        assert_eq!(expected("nonsense = 1"), sections);
        for (section, keys) in SECTIONS {
            let mut keys: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            assert_eq!(expected(&format!("[{section}]\nnonsense = 1")), keys, "{section}");
        }
    }

    /// What `docs/operating.md` has a row for is what can be set: each key once, and nothing else.
    #[test]
    fn every_key_is_documented_once() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let (_, settings) = docs.split_once("\n### Settings\n").unwrap();
        let settings = settings.split("\n### ").next().unwrap();
        let (_, settings) = settings.split_once("| Setting | Flag |").unwrap();
        let rows = settings.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let mut documented: Vec<&str> =
            rows.flat_map(|keys| keys.split("`, `")).map(|key| key.trim_end_matches('`')).collect();
        documented.sort_unstable();
        let of = |(section, keys): &(&str, &[(&str, &str)])| {
            keys.iter().map(|(key, _)| format!("{section}.{key}")).collect::<Vec<_>>()
        };
        let mut known: Vec<String> = SECTIONS.iter().flat_map(of).collect();
        known.sort_unstable();
        assert_eq!(documented, known);
    }

    #[test]
    fn what_set_a_value_is_known() {
        let flags = Flags { admin: Some("127.0.0.1:9".parse().unwrap()), ..Flags::default() };
        let variables = [("REFD_LOG", "info"), ("REFD_STORAGE__MEMORY", "true"), ("PATH", "/bin")];
        let layered = load("[node]\npreset = \"lan\"\n[dht]\nserver = false\n", &variables, flags).unwrap();
        let origin = |section, key| layered.origin(section, key).to_string();
        assert_eq!(origin("dht", "preset"), "preset lan");
        assert_eq!(origin("log", "filter"), "REFD_LOG");
        assert_eq!(origin("storage", "memory"), "REFD_STORAGE__MEMORY");
        assert_eq!(origin("admin", "listen"), "--admin");
        assert_eq!(origin("storage", "put_lane"), "default");
        assert!(matches!(layered.origin("dht", "server"), Origin::File(_)));
        assert_eq!(origin("index", "workers"), "sized");
        let small = load("[limits]\nmemory = 400000000\n[storage]\nget_workers = 3\n", &[], Flags::default())
            .unwrap();
        assert_eq!(small.origin("index", "cache_bytes"), &Origin::Memory);
        assert!(matches!(small.origin("storage", "get_workers"), Origin::File(_)));
        let shown = small.to_toml(true);
        let line = shown.lines().find(|line| line.starts_with("stream_bytes_max = ")).unwrap();
        assert!(line.ends_with(" # limits.memory"), "{line}");
        assert!(shown.contains("\n# What can be held at most: program 67108864, http "), "{shown}");
        assert_eq!(
            (layered.config.dht.preset, layered.config.log.filter.as_str()),
            (super::super::dht::PresetName::Lan, "info")
        );
        let shown = layered.to_toml(true);
        let line = shown.lines().find(|line| line.starts_with("memory = true")).unwrap();
        assert!(line.ends_with(" # REFD_STORAGE__MEMORY"), "{line}");
        for line in layered.to_json().lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(value["key"].as_str().unwrap().contains('.') && value["origin"].is_string(), "{line}");
        }
        // What the preset says is only a default.
        let own =
            load("[node]\npreset = \"lan\"\n[net]\nlisten = [\"127.0.0.1:1\"]\n", &[], Flags::default())
                .unwrap();
        assert_eq!(own.config.net.listen, ["127.0.0.1:1".parse().unwrap()]);
        let long =
            load("", &[("REFD_LOG__FILTER", "debug"), ("REFD_LOG", "info")], Flags::default()).unwrap();
        assert_eq!(long.config.log.filter, "debug");
    }

    #[test]
    fn each_preset_is_a_configuration() {
        for preset in [NodePreset::Dev, NodePreset::Lan, NodePreset::Public, NodePreset::Amnesia] {
            let flags = Flags { preset: Some(preset), ..Flags::default() };
            let config = load("[net]\nexternal = [\"192.0.2.1:4710\"]\n", &[], flags).unwrap().config;
            config.check().unwrap();
            assert_eq!(config.node.preset, preset);
            assert_eq!(config.node.amnesia, preset == NodePreset::Amnesia);
            assert_eq!(
                config.net.listen[0].ip().is_loopback(),
                matches!(preset, NodePreset::Dev | NodePreset::Amnesia)
            );
        }
        let wrong = "[node]\namnesia = true\n[registry]\nmemory = true\n";
        let wrong = load(wrong, &[], Flags::default()).unwrap().config.check().unwrap_err();
        assert!(wrong.to_string().starts_with("node.amnesia is true and storage.memory is false"), "{wrong}");
    }

    #[test]
    fn a_template_says_all_and_changes_nothing() {
        let text = template(NodePreset::Dev, &[]);
        assert_eq!(load(&text, &[], Flags::default()).unwrap().config, Config::default());
        // Without the marks it is the same, but for the keys that have no default.
        let all: String = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(key) if key.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) => {
                    format!("{key}\n")
                }
                _ => format!("{line}\n"),
            })
            .collect();
        let mut all = load(&all, &[], Flags::default()).unwrap().config;
        assert_eq!((all.storage.quota_objects, all.storage.scrub_every_hours), (Some(1_000_000), Some(168)));
        assert!(all.admin.token_file.is_some() && all.registry.origin.is_some());
        all.storage.quota_objects = None;
        assert_ne!(all, Config::default());
        let lan = template(NodePreset::Lan, &[("node", "preset", "\"lan\"".to_owned())]);
        assert_eq!(load(&lan, &[], Flags::default()).unwrap().config.node.preset, NodePreset::Lan);
        assert!(lan.contains("\n# preset = \"lan\"\n") && lan.contains("\npreset = \"lan\"\n"), "{lan}");
    }

    #[test]
    fn changes_are_found_by_key() {
        let old = Config::default();
        let new =
            load("[storage]\nquota_bytes = 7\nput_lane = 7\n[dht]\nserver = false\n", &[], Flags::default())
                .unwrap();
        let found = changed(&old, &new.config);
        assert_eq!(found, [("dht", "server"), ("storage", "quota_bytes"), ("storage", "put_lane")]);
        let one = with_one(&old, &new.config, "storage", "quota_bytes");
        assert_eq!(changed(&old, &one), [("storage", "quota_bytes")]);
        assert_eq!(with_one(&new.config, &old, "storage", "quota_bytes").storage.quota_bytes, None);
    }

    /// `--data-dir` takes any path that the system does. With one that is no text, a reload that changed anything panicked.
    #[test]
    fn changes_are_found_beside_a_path_that_is_no_text() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = PathBuf::from(std::ffi::OsStr::from_bytes(b"/data/\xff"));
        let flags = Flags::in_dir(Some(dir));
        let old = load("", &[], flags.clone()).unwrap().config;
        let new = load("[storage]\nquota_bytes = 7\n", &[], flags).unwrap().config;
        assert_eq!(changed(&old, &new), [("storage", "quota_bytes")]);
        assert_eq!(with_one(&old, &new, "storage", "quota_bytes").storage.quota_bytes, Some(7));
    }

    #[test]
    fn what_may_have_been_meant_is_said() {
        let wrong = |text: &str, variables: &[(&str, &str)]| {
            let words = load(text, variables, Flags::default()).unwrap_err().to_string();
            words.rsplit_once(", ").map_or(words.clone(), |(_, rest)| rest.to_owned())
        };
        assert_eq!(
            wrong("[dht]\nsedes = []\n", &[]),
            "line 2: dht.sedes is not a setting; did you mean dht.seeds?"
        );
        assert_eq!(
            wrong("\n[net]\nseeds = []\n", &[]),
            "line 3: net.seeds is not a setting; did you mean dht.seeds?"
        );
        assert_eq!(
            wrong("[storag]\nmemory = true\n", &[]),
            "line 1: storag is not a setting; did you mean storage?"
        );
        let nothing = wrong("[dht]\nxyzzy = 1\n", &[]);
        assert_eq!(nothing, "line 2: dht.xyzzy is not a setting; `refd config template` lists all");
        for (name, meant) in [
            ("REFD_NTE__LISTEN", "REFD_NET__LISTEN"),
            ("REFD_STORAGE__QUOTA", "REFD_STORAGE__QUOTA_BYTES"),
            ("REFD_DATA_DIR", "REFD_NODE__DATA_DIR"),
        ] {
            let words = wrong("", &[(name, "1")]);
            assert_eq!(words, format!("environment: {name} is not a setting; did you mean {meant}?"));
        }
    }
}
