//! The node's log: one of its own that it commits to, or a copy of another's that it follows and checks.

use std::{error::Error, path::Path, sync::Arc};

use ron_core::{
    Metrics, NodeId, Supervisor,
    disk::RealDisk,
    net::{Contact, Identity},
};
use ron_registry::{
    Builder, Evidence, LogTrust, NoteVerifier, Registry,
    client::Client,
    net::Links,
    store::{JournalStore, JournalStoreSettings, LogStore, MemoryStore},
};

use crate::config::RegistrySection;

/// What the key of a log is made from, so that the file of it is like all others and the key is used for nothing else.
const KEY_DOMAIN: &str = "refd registry log key 1";

/// The file with how far the log was verified again.
const VERIFIED: &str = "registry.verified";

/// Remembers at a stop how far the verifier has come.
pub(crate) fn remember(registry: &Registry, data: &Path) -> std::io::Result<()> {
    std::fs::write(data.join(VERIFIED), registry.status().verified.to_string())
}

/// What a log is called that nobody gave a name.
fn origin(section: &RegistrySection, node: NodeId) -> String {
    section.origin.clone().unwrap_or_else(|| format!("refd/{node}"))
}

/// Opens the log, and begins to commit or to follow. Without a place for `data` all of it is in memory.
pub(crate) async fn start(
    section: &RegistrySection,
    data: Option<&Path>,
    node: NodeId,
    links: &Links,
    metrics: Metrics,
    host: &Supervisor,
) -> Result<Registry, Box<dyn Error>> {
    let dir = if section.follow.is_some() { "followed" } else { "registry" };
    let store: Arc<dyn LogStore> = match data.filter(|_| !section.memory) {
        None => Arc::new(MemoryStore::new()),
        Some(data) => {
            let disk = Arc::new(RealDisk::open(data)?);
            let store = JournalStore::open(host, disk, Path::new(dir), JournalStoreSettings::default()).await;
            Arc::new(store.map_err(|error| format!("{}: {error}", data.join(dir).display()))?)
        }
    };
    let builder = match &section.follow {
        None => {
            // A log that is gone with the process must not begin anew under one key: two beginnings are a fork.
            let key = match data.filter(|_| !section.memory) {
                Some(data) => Identity::load_or_create(data.join("registry.key"))?,
                None => Identity::generate()?,
            };
            let seed = blake3::derive_key(KEY_DOMAIN, key.sign(KEY_DOMAIN, b"").as_bytes());
            Registry::builder(&origin(section, node), seed)
        }
        Some(from) => follower(section, from, links)?,
    };
    let evidence = data.map(|data| data.join("evidence"));
    // Where the verifier was; whoever changes the file only makes it check more or later.
    let verified = data.and_then(|data| std::fs::read_to_string(data.join(VERIFIED)).ok());
    let verified = verified.and_then(|text| text.trim().parse().ok());
    let builder = builder.settings(section.settings()).metrics(metrics).verified(verified.unwrap_or(0));
    let builder = builder.on_evidence(move |found| match evidence.as_deref().map(|dir| keep(dir, found)) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(%error, %found, "evidence could not be kept"),
        None => tracing::error!(%found, "evidence that is kept nowhere"),
    });
    Ok(builder.start(store, host).await.map_err(|error| crate::with_causes(&error))?)
}

/// `http://…`, or a node as it prints itself.
fn follower(section: &RegistrySection, from: &str, links: &Links) -> Result<Builder, Box<dyn Error>> {
    let key =
        section.log_key.as_deref().ok_or("registry.follow needs registry.log_key, the key of that log")?;
    let key: NoteVerifier = key.parse().map_err(|error| format!("registry.log_key: {error}"))?;
    let trust = LogTrust::new(key);
    if from.starts_with("http://") {
        return Ok(Registry::follower(trust, Client::new(from)?));
    }
    let contact: Contact = from.parse().map_err(|error| format!("registry.follow: {error}"))?;
    Ok(Registry::follower(trust, links.source(contact.id, &contact.addrs)))
}

/// Writes evidence into a file of its own, named by what it says: the same again is the same file.
fn keep(dir: &Path, found: &Evidence) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let name = blake3::hash(found.theirs.to_string().as_bytes()).to_hex();
    std::fs::write(dir.join(format!("{}.txt", &name[..16])), found.to_string())
}
