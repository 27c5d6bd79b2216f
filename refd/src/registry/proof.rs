//! What can be checked by whoever has the key of a log: an entry with its proof, wherever they are, and every update as it comes.

use std::{
    error::Error,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ron_core::Supervisor;
use ron_registry::{
    Checkpoint, CheckpointError, Entry, LogTrust, Note, NoteVerifier, ProofFile, Registry, RegistryError,
    client::ClientError, json::ProposalBody, store::MemoryStore,
};
use serde_json::json;

use super::{Caught, read, trust, write};
use crate::client::{Ends, Target};

fn beside(proof: &Path) -> PathBuf {
    let mut path = proof.as_os_str().to_owned();
    path.push(".entry");
    path.into()
}

pub(super) async fn prove(version: u64, output: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let entry = client.entry(version, target.deadline()).await?;
    let proof = client.proof(version, target.deadline()).await?;
    write(output, proof.to_string().as_bytes())?;
    write(&beside(output), &entry)?;
    if target.is_json() {
        let made = json!({"version": version, "proof": output, "entry": beside(output)});
        return Ok(writeln!(io::stdout(), "{made}")?);
    }
    eprintln!(
        "{} and {}: refd registry verify checks them anywhere",
        output.display(),
        beside(output).display()
    );
    Ok(())
}

/// Reads a signed head, and says whose it is if it is not that of the log.
fn opened(note: &Note, trust: &LogTrust) -> Result<Checkpoint, Caught> {
    trust.open(note).map_err(|error| {
        let by: Vec<&str> = note.signatures().iter().map(|signature| signature.name()).collect();
        let key = trust.log();
        match error {
            CheckpointError::OtherLog { expected, found } => Caught(format!(
                "the head is not signed with this --log-key: that is a key of {expected}, and the head says that it is one of {found}"
            )),
            CheckpointError::Note(_) | CheckpointError::OtherKey { .. } => Caught(format!(
                "the head is not signed with this --log-key: that is a key of {}, and {} signed",
                key.name(),
                if by.is_empty() { "nobody".to_owned() } else { by.join(", ") }
            )),
            error => Caught(format!("the head is not one of this log: {error}")),
        }
    })
}

pub(super) fn verify(path: &Path, log_key: NoteVerifier, is_json: bool) -> Result<(), Box<dyn Error>> {
    let (bytes, trust) = (read(&beside(path))?, LogTrust::new(log_key));
    let (proof_name, entry_name) = (path.display(), beside(path).display().to_string());
    let file = ProofFile::parse(&read(path)?)
        .map_err(|error| Caught(format!("{proof_name} is no proof, or was altered: {error}")))?;
    let checkpoint = opened(&file.checkpoint, &trust)?;
    let entry = Entry::decode(&bytes)
        .map_err(|error| Caught(format!("{entry_name} is no entry, or was altered: {error}")))?;
    if entry.version() != file.index + 1 {
        let (said, is) = (entry.version(), file.index + 1);
        let words =
            format!("{entry_name} says that it is version {said}, and {proof_name} is a proof of {is}");
        return Err(Caught(words).into());
    }
    file.verify(&bytes, &trust).map_err(|error| {
        Caught(format!(
            "version {} as it is in {entry_name} is not in the log: the head is signed, so that file or the path in {proof_name} \
             was altered ({error})",
            entry.version()
        ))
    })?;
    let (proposal, mut out) = (entry.proposal(), io::stdout().lock());
    let name = proposal.action().name().map(ToString::to_string);
    let b3 = proposal.content_id().map(|id| id.to_string());
    if is_json {
        let said = json!({
            "version": entry.version(),
            "action": ProposalBody::from(proposal).action,
            "name": name,
            "b3": b3,
            "origin": checkpoint.origin,
            "size": checkpoint.size,
        });
        return Ok(writeln!(out, "{said}")?);
    }
    writeln!(
        out,
        "version {} ({}) is in the log {}, under a signed head of {} entries",
        entry.version(),
        name.as_deref().unwrap_or("-"),
        checkpoint.origin,
        checkpoint.size
    )?;
    match (name, b3) {
        (Some(name), Some(b3)) => writeln!(out, "with it {name} stood for {b3}")?,
        (Some(name), None) => writeln!(out, "with it {name} stood for nothing any more")?,
        (None, _) => writeln!(out, "with it others decided than before")?,
    }
    Ok(())
}

pub(super) async fn follow(
    log_key: Option<NoteVerifier>,
    until: Option<u64>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let head = client.head(target.deadline()).await?;
    let trust = trust(&head, log_key)?;
    // A follower would ask again and again: it may be somebody on the way who lies, and that passes. A person has mistaken the key.
    match Note::parse(head.checkpoint.as_bytes()) {
        Ok(note) if head.version > 0 || !note.signatures().is_empty() => drop(opened(&note, &trust)?),
        Err(error) if head.version > 0 => return Err(ClientError::Stranger { why: error.to_string() }.into()),
        // A node that follows and has read nothing yet has no signed head.
        _ => {}
    }
    if let Some(until) = until.filter(|until| *until < head.first) {
        let words =
            format!("versions up to {until} are pruned there: the log begins at version {}", head.first);
        return Err(Ends::absent(words).into());
    }
    let host = Supervisor::new("follow");
    let follower = Registry::follower(trust, client).start(Arc::new(MemoryStore::new()), &host).await?;
    let mut updates = follower.updates(1);
    loop {
        let update = tokio::select! {
            update = updates.next() => match update {
                Err(RegistryError::Lagging { first }) => {
                    eprintln!("versions before {first} are pruned there: goes on from the snapshot of them");
                    updates.skip_to(first);
                    continue;
                }
                update => update?.ok_or("stopped")?,
            },
            () = tokio::time::sleep(Duration::from_millis(200)) => {
                match follower.evidence().first() {
                    Some(evidence) => return Err(Caught(evidence.to_string()).into()),
                    None => continue,
                }
            }
            _ = tokio::signal::ctrl_c() => break,
        };
        let name = update.name.as_ref().map_or("-".to_owned(), ToString::to_string);
        let b3 = update.b3.map(|id| id.to_string());
        match target.is_json() {
            true => {
                let name = update.name.as_ref().map(ToString::to_string);
                writeln!(io::stdout(), "{}", json!({"version": update.version, "name": name, "b3": b3}))?;
            }
            false => writeln!(io::stdout(), "{}\t{name}\t{}", update.version, b3.as_deref().unwrap_or("-"))?,
        }
        if until.is_some_and(|until| update.version >= until) {
            break;
        }
    }
    host.shutdown().await;
    Ok(())
}
