//! One number for all that a node may hold, and how it is split.
//!
//! Every queue and cache has a limit of its own in bytes, or in items of a known size, so what a node can hold is the sum of
//! them ([`held`]). `limits.memory` lowers those limits until the sum fits ([`split`]); it raises none, and a key that is set by
//! hand stays as it is set, if the sum still fits. Not in it is what is not a queue and not a cache: the table of objects (64
//! bytes each, `storage.quota_objects`), the names of a log, a frame that is still coming in, and objects that are cut into
//! shards or restored from them, which are in memory whole meanwhile.

use super::{Config, ConfigError};

const MIB: u64 = 1 << 20;

/// The program, its threads and its runtime, and what an allocator keeps back.
const PROGRAM: u64 = 64 * MIB;

/// Records of the DHT that wait for a disk which does not take them, at most.
const DHT_UNWRITTEN: u64 = 64 * MIB;

/// Buffers that the store keeps for the next read, and claims that wait for the disk.
const STORE_KEPT: u64 = 32 * MIB;

/// Two blocks of the log: one on its way to the disk and one that gathers.
const LOG_BLOCKS: u64 = 8 * MIB;

/// Accepted connections before anybody has spoken on them, 4096 of 4 KiB.
const ACCEPTED: u64 = 16 * MIB;

/// What is remembered of clients of the index.
const CLIENTS: u64 = MIB;

/// What does not depend on any key.
const FIXED: u64 = PROGRAM + DHT_UNWRITTEN + STORE_KEPT + LOG_BLOCKS + ACCEPTED + CLIENTS;

/// The least that can be split among what has keys: of an answer to a peer two mebibytes may wait, and each of several peers
/// should be answered.
const SPLIT: u64 = 135 * MIB;

/// A claim in memory, and one with a manifest, as `ron_storage::claims` has measured them.
const CLAIM: u64 = 700;
const CLAIM_OF_SHARDS: u64 = 2 << 10;

/// A session that does nothing: 17 KiB were measured.
const SESSION: u64 = 32 << 10;

/// A TLS handshake at worst.
const HANDSHAKE: u64 = 96 << 10;

/// A connection of the admin listener: a head of 32 KiB, and as much on its way out.
const HTTP: u64 = 64 << 10;

/// Connections of the admin listener that are only told how the node is.
const LOBBY: u64 = 32;

/// Bytes that a kept record takes in all, from the defaults of the DHT: 288 MiB for half a million.
const RECORD: u64 = 604;

/// What each part can hold at most, as it is set.
pub(crate) fn held(config: &Config) -> Vec<(&'static str, u64)> {
    let sessions = (config.dht.sessions_max as u64).saturating_mul(SESSION);
    let stream = config.storage.stream_bytes_max;
    let objects = match (config.storage.memory, config.storage.quota_bytes) {
        (false, _) => 0,
        (true, quota) => quota.unwrap_or(u64::MAX),
    };
    let claims = match keeps(config) {
        false => 0,
        true => (config.keeping.claims_max as u64).saturating_mul(claim(config)),
    };
    let overlay = config.overlay.settings().held_bytes_max(config.overlay.topics.len());
    let net = u64::from(config.net.handshakes_max).saturating_mul(HANDSHAKE);
    vec![
        ("program", PROGRAM),
        ("http", (config.admin.max_conns as u64).saturating_add(LOBBY).saturating_mul(HTTP)),
        // Objects, logs and keeping between nodes: what waits, what is at work, and their sessions.
        (
            "net",
            net.saturating_add(config.net.links_bytes.saturating_mul(2 * protocols(config)))
                .saturating_add(sessions.saturating_mul(protocols(config)))
                .saturating_add(ACCEPTED),
        ),
        (
            "dht",
            (config.dht.record_bytes_max as u64)
                .saturating_add(config.dht.links_bytes.saturating_mul(2))
                .saturating_add(sessions)
                .saturating_add(DHT_UNWRITTEN),
        ),
        ("overlay", u64::try_from(overlay).unwrap_or(u64::MAX)),
        // Readers, writers, and both once more on their way to the journal.
        (
            "storage",
            stream
                .saturating_mul(2)
                .saturating_add(stream.saturating_mul(2).max(8 * MIB))
                .saturating_add(STORE_KEPT),
        ),
        ("objects", objects),
        ("keeping", claims),
        ("registry", (config.registry.pending_bytes_max as u64).saturating_add(LOG_BLOCKS)),
        ("index", config.index.cache_bytes.saturating_add(CLIENTS)),
    ]
}

/// Whether objects are kept with others.
fn keeps(config: &Config) -> bool {
    config.keeping.secret_file.is_some() || !config.keeping.members.is_empty()
}

/// Protocols with the limits of `net`: objects, logs, and keeping if there is any.
fn protocols(config: &Config) -> u64 {
    if keeps(config) { 3 } else { 2 }
}

/// What a claim takes, if objects are kept as the settings say.
fn claim(config: &Config) -> u64 {
    if config.keeping.policy.contains('+') { CLAIM_OF_SHARDS } else { CLAIM }
}

/// The least that a node can be allowed: more with claims to know, and with objects in memory.
pub(crate) fn least(config: &Config) -> u64 {
    let split = if config.storage.memory { 2 * SPLIT } else { SPLIT };
    FIXED + if keeps(config) { split * 4 / 3 } else { split }
}

/// Whether all of it fits into what is allowed.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(memory) = config.limits.memory else { return Ok(()) };
    let held = held(config);
    let needed = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    if needed <= memory {
        return Ok(());
    }
    let parts: Vec<String> = held.iter().map(|(part, bytes)| format!("{part} {bytes}")).collect();
    Err(ConfigError::Overcommitted { memory, needed, parts: parts.join(", ") })
}

/// The keys that make everything fit into `memory`.
pub(super) fn split(memory: u64, of: &Config) -> Result<toml::Table, ConfigError> {
    let least = least(of);
    if memory < least {
        return Err(ConfigError::TooLittle { memory, least });
    }
    let default = Config::default();
    let mut table = toml::Table::new();
    let mut set = |section: &str, key: &str, value: u64, default: u64| {
        let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            let value = i64::try_from(value.min(default).max(1)).unwrap_or(i64::MAX);
            section.insert(key.to_owned(), value.into());
        }
    };
    let mut free = memory - FIXED;
    if keeps(of) {
        let claims = free / 4 / claim(of);
        // With a secret there is one owner; of several, none may have more than half.
        let of_owner = if of.keeping.secret_file.is_some() { claims } else { claims / 2 };
        set("keeping", "claims_max", claims, default.keeping.claims_max as u64);
        set("keeping", "owner_claims_max", of_owner, default.keeping.owner_claims_max as u64);
        free -= free / 4;
    }
    if of.storage.memory {
        free /= 2;
        set("storage", "quota_bytes", free, u64::MAX);
    }
    // In sixteenths. Five for gossip, four for streams and what of them is on its way to the journal, two for records of the
    // DHT; the rest one or less.
    let part = free / 16;
    set("overlay", "bytes_max", 5 * part, u64::MAX);
    let stream = part.min(default.storage.stream_bytes_max);
    set("storage", "stream_bytes_max", stream, default.storage.stream_bytes_max);
    // A stream has at least a group of 64 KiB, and one that is verified.
    let streams = stream / (128 << 10);
    set("storage", "get_streams", streams, default.storage.get_streams as u64);
    set("storage", "put_streams", streams, default.storage.put_streams as u64);
    let records = 2 * part;
    set("dht", "record_bytes_max", records, default.dht.record_bytes_max as u64);
    set("dht", "publisher_bytes_max", records / 4, default.dht.publisher_bytes_max as u64);
    set("dht", "records_max", records / RECORD, default.dht.records_max as u64);
    set("dht", "publisher_records_max", records / RECORD / 4, default.dht.publisher_records_max as u64);
    // Two budgets for each protocol: what waits to be written, and what is at work. Three halves for objects and logs, because
    // what waits of them is long.
    set("dht", "links_bytes", part / 6, default.dht.links_bytes);
    set("net", "links_bytes", part * 3 / 4 / protocols(of), default.net.links_bytes);
    let sessions = part * 3 / 4 / (SESSION * (protocols(of) + 1));
    set("dht", "sessions_max", sessions, default.dht.sessions_max as u64);
    set("net", "handshakes_max", part / 2 / HANDSHAKE, default.net.handshakes_max.into());
    set("admin", "max_conns", (part * 3 / 4 / HTTP).saturating_sub(LOBBY), default.admin.max_conns as u64);
    set("index", "cache_bytes", part / 2, default.index.cache_bytes);
    set("registry", "pending_bytes_max", part / 2, default.registry.pending_bytes_max as u64);
    Ok(table)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use ron_core::net::rpc::PeersSettings;

    use super::*;
    use crate::config::{Flags, layers::Layered};

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = Layered::load(Some(file.path()), std::iter::empty(), Flags::default())?.config;
        config.check()?;
        Ok(config)
    }

    fn sum(config: &Config) -> u64 {
        held(config).iter().map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn whatever_is_allowed_is_what_can_be_held() {
        for mib in [320, 321, 400, 512, 777, 1024, 1500, 4096, 65_536] {
            let config = load(&format!("[limits]\nmemory = {}\n", mib * MIB)).unwrap();
            assert!(sum(&config) <= mib * MIB, "{mib} MiB: {:?}", held(&config));
            // It is used, too: no less than half of what is free.
            let used = sum(&config) - FIXED;
            assert!(used >= (mib * MIB - FIXED).min(1024 * MIB) / 2, "{mib} MiB: {:?}", held(&config));
        }
        let roomy = load(&format!("[limits]\nmemory = {}\n", 64_u64 << 30)).unwrap();
        let plain = load("").unwrap();
        assert_eq!(sum(&roomy), sum(&plain), "it only lowers");
        let nodes = load(&format!("[limits]\nmemory = {}\n[storage]\nmemory = true\n", 512 * MIB)).unwrap();
        assert!(
            sum(&nodes) <= 512 * MIB && nodes.storage.quota_bytes > Some(100 * MIB),
            "{:?}",
            held(&nodes)
        );
        let together = |mib: u64, policy: &str| {
            let memory = mib * MIB;
            load(&format!(
                "[limits]\nmemory = {memory}\n[keeping]\nsecret_file = \"x\"\npolicy = \"{policy}\"\n"
            ))
            .unwrap()
        };
        for mib in [365, 512, 4096] {
            let (copies, shards) = (together(mib, "3"), together(mib, "6+3"));
            assert!(sum(&copies) <= mib * MIB && sum(&shards) <= mib * MIB, "{:?}", held(&copies));
            let claims = (mib * MIB - FIXED) / 4 / CLAIM;
            assert_eq!(copies.keeping.claims_max as u64, claims.min(2_000_000));
            assert_eq!(copies.keeping.owner_claims_max as u64, claims.min(1_000_000), "there is one owner");
            assert!(shards.keeping.claims_max < copies.keeping.claims_max);
        }
        let plain = load("[keeping]\nsecret_file = \"x\"\n").unwrap();
        assert_eq!(sum(&together(64 << 10, "3")), sum(&plain));
    }

    /// Whatever is waiting to be written to one peer leaves room for what waits for another.
    #[test]
    fn the_least_has_room_for_what_waits_for_one_peer() {
        for also in ["", "[storage]\nmemory = true\n", "[keeping]\nsecret_file = \"x\"\n"] {
            let least = least(&load(also).unwrap());
            let config = load(&format!("[limits]\nmemory = {least}\n{also}")).unwrap();
            assert!(config.net.links_bytes > 2 * MIB, "{also}: {}", config.net.links_bytes);
            assert_eq!(config.links(PeersSettings::default()).queued_bytes_max, config.net.links_bytes);
            load(&format!("[limits]\nmemory = {}\n{also}", least - 1)).unwrap_err();
        }
    }

    #[test]
    fn too_little_and_too_much_are_refused_by_name() {
        let refused = load(&format!("[limits]\nmemory = {}\n", 319 * MIB)).unwrap_err();
        assert!(matches!(refused, ConfigError::TooLittle { .. }), "{refused}");
        assert_eq!(
            refused.to_string(),
            "limits.memory is 334495744, allowed is 335544320 or more: with less the largest parts have no room"
        );
        let refused =
            load(&format!("[limits]\nmemory = {}\n[storage]\nmemory = true\n", 400 * MIB)).unwrap_err();
        assert!(matches!(refused, ConfigError::TooLittle { least, .. } if least == 455 * MIB), "{refused}");
        // What is set by hand stays, if it fits.
        let text = |bytes: u64| format!("[limits]\nmemory = {}\n[index]\ncache_bytes = {bytes}\n", 320 * MIB);
        assert_eq!(load(&text(MIB)).unwrap().index.cache_bytes, MIB);
        let refused = load(&text(64 * MIB)).unwrap_err();
        assert!(matches!(refused, ConfigError::Overcommitted { .. }), "{refused}");
        let words = refused.to_string();
        assert!(words.starts_with("limits.memory is 335544320, and what is set can hold "), "{words}");
        assert!(words.contains("index 68157440"), "{words}");
    }
}
