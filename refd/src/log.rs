//! The node's log: one of its own that it commits to, or a copy of another's that it follows and checks.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use ron_core::{
    Metrics, NodeId, Supervisor,
    disk::{self, Access, Disk as _, DiskError, RealDisk},
    net::{Contact, Identity},
};
use ron_registry::{
    Builder, Evidence, EvidenceKind, LogTrust, Note, Registry, RegistryError, Witness,
    client::Client,
    net::Links,
    store::{JournalStore, JournalStoreSettings, LogStore, MemoryStore},
    verify_consistency,
};

use crate::config::RegistrySection;

/// What the key of a log is made from, so that the file of it is like all others and the key is used for nothing else.
const KEY_DOMAIN: &str = "refd registry log key 1";

/// The file with how far the log was verified again.
const VERIFIED: &str = "registry.verified";

/// The file with the last head of the node's own log.
const SEEN: &str = "registry.seen";

/// The most that is read of either: no note is longer.
const REMEMBERED_MAX: usize = 128 << 10;

/// The directory with the evidence that a followed log has forked, a file for each piece.
const EVIDENCE: &str = "evidence";

/// Remembers at a stop how far the verifier has come, and where the log ends. A link that somebody planted where the files go is
/// replaced and not followed.
pub(crate) fn remember(registry: &Registry, data: &Path) -> Result<(), DiskError> {
    let disk = RealDisk::open(data)?;
    disk::replace(&disk, Path::new(VERIFIED), registry.status().verified.to_string().as_bytes())?;
    match !registry.follows() && registry.head().version > 0 {
        true => disk::replace(&disk, Path::new(SEEN), registry.checkpoint().to_string().as_bytes()),
        false => Ok(()),
    }
}

/// What was remembered, if it was. Something else that was planted where the file goes is neither followed nor waited for: it is
/// refused, and so is a disk that does not read.
fn recall(data: &Path, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match RealDisk::open(data)?.open(Path::new(name), Access::Read) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        file => file?,
    };
    let mut bytes = vec![0; REMEMBERED_MAX];
    let len = file.read_at(0, &mut bytes)?;
    bytes.truncate(len);
    Ok(Some(bytes))
}

/// Whether the log goes on from the last head that was remembered. One that was rolled back, or lost while its key was not,
/// would be a fork for everybody who knew it.
fn goes_on(registry: &Registry, data: &Path) -> Result<(), Box<dyn Error>> {
    let Some(bytes) = recall(data, SEEN)? else { return Ok(()) };
    let trust = LogTrust::new(registry.log_key());
    // One by another key is about another log.
    let Some(seen) = Note::parse(&bytes).ok().and_then(|note| trust.open(&note).ok()) else { return Ok(()) };
    let head = trust.open(&registry.checkpoint())?;
    let is_gone_on = match registry.prove_consistency(seen.size, head.size) {
        Ok(proof) => verify_consistency((seen.size, &seen.root), (head.size, &head.root), &proof).is_ok(),
        // What was pruned since cannot be compared any more.
        Err(RegistryError::Lagging { .. }) => true,
        Err(_) => false,
    };
    match is_gone_on {
        true => Ok(remember(registry, data)?),
        false => Err(format!(
            "{}: the log had {} entries, and this one, of {}, is not what became of it. Put that one back; or, if this is meant, \
             take registry.key away with it, so that it is another log to everybody",
            data.join(SEEN).display(),
            seen.size,
            head.size
        )
        .into()),
    }
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
            Arc::new(
                store.map_err(|error| {
                    format!("{}: {}", data.join(dir).display(), crate::with_causes(&error))
                })?,
            )
        }
    };
    let witnesses = section.witnesses()?;
    let builder = match section.followed()? {
        None => {
            // A log that is gone with the process must not begin anew under one key: two beginnings are a fork.
            let key = match data.filter(|_| !section.memory) {
                Some(data) => Identity::load_or_create(data.join("registry.key"))?,
                None => Identity::generate()?,
            };
            let seed = blake3::derive_key(KEY_DOMAIN, key.sign(KEY_DOMAIN, b"").as_bytes());
            let every = Duration::from_millis(section.witness_interval_ms);
            Registry::builder(&origin(section, node), seed).witnesses(
                witnesses,
                section.witnesses_needed,
                every,
            )
        }
        Some((from, key)) => follower(section, from, LogTrust::new(key), &witnesses, links)?,
    };
    let evidence = data.map(Path::to_path_buf);
    // Where the verifier was; whoever changes the file only makes it check more or later.
    let verified = data.map(|data| recall(data, VERIFIED)).transpose()?.flatten();
    let verified = verified.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok());
    let builder = builder.settings(section.settings()).metrics(metrics).verified(verified.unwrap_or(0));
    let builder = builder.on_evidence(move |found| match evidence.as_deref().map(|data| keep(data, found)) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(%error, %found, "evidence could not be kept"),
        None => tracing::error!(%found, "evidence that is kept nowhere"),
    });
    let registry = builder.start(store, host).await?;
    if let Some(data) = data.filter(|_| !section.memory && section.follow.is_none()) {
        goes_on(&registry, data)?;
    }
    Ok(registry)
}

/// `http://…`, or a node as it prints itself.
fn follower(
    section: &RegistrySection,
    from: &str,
    mut trust: LogTrust,
    witnesses: &[Witness],
    links: &Links,
) -> Result<Builder, Box<dyn Error>> {
    let is_witnessed = !witnesses.is_empty();
    if is_witnessed {
        let keys = witnesses.iter().map(|witness| witness.key().clone());
        trust = trust.witnessed_by(keys, section.witnesses_needed);
    }
    if from.starts_with("http://") {
        let client = Client::new(from)?;
        return Ok(Registry::follower(trust, if is_witnessed { client.cosigned() } else { client }));
    }
    let contact: Contact = from.parse()?;
    let source = links.source(contact.id, &contact.addrs);
    Ok(Registry::follower(trust, if is_witnessed { source.cosigned() } else { source }))
}

/// Writes evidence into a file of its own, named by what it says: the same again is the same file.
fn keep(data: &Path, found: &Evidence) -> Result<(), DiskError> {
    let (disk, dir) = (RealDisk::open(data)?, Path::new(EVIDENCE));
    disk::make_dirs(&disk, dir)?;
    disk::replace(&disk, &dir.join(name(found.kind, &found.theirs)), found.to_string().as_bytes())
}

/// One head can prove several things, and each is kept: a fork is worth more than that its head came again as an old one.
fn name(kind: EvidenceKind, shown: &Note) -> String {
    let digest = blake3::hash(format!("{kind:?} {shown}").as_bytes()).to_hex();
    format!("{}.txt", &digest[..16])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use super::*;

    /// Evidence of a fork was overwritten when the same head came again and was only an old one by then. Now both stay.
    #[test]
    fn evidence_of_one_kind_does_not_replace_that_of_another() {
        let note = |text: &str| Note::new(text.to_owned()).unwrap();
        let of = |kind| name(kind, &note("shown\n"));
        assert_ne!(of(EvidenceKind::Fork), of(EvidenceKind::Rollback));
        assert_eq!(of(EvidenceKind::Fork), of(EvidenceKind::Fork));
        assert_ne!(of(EvidenceKind::Fork), name(EvidenceKind::Fork, &note("another\n")));
    }
}
