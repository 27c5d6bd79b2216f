//! `refd registry …`: founding a log, deciding in it, and checking what it says.
//!
//! A signer's key never leaves the machine of its signer: what is approved is read from its own bytes, shown, and signed here.
//! What is checked is checked against the key of the log, which is given or, where it is not, taken from the node and said.

use std::{
    error::Error,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use clap::Subcommand;
use data_encoding::{BASE64, HEXLOWER};
use ron_core::{
    ContentId, Supervisor,
    net::{Identity, PublicKey},
};
use ron_registry::{
    Action, Approval, Content, Entry, LogTrust, Name, NoteVerifier, Policy, ProofFile, Proposal, ProposalId,
    Registry, RegistryError, Signer,
    client::Client,
    json::{HeadBody, OutcomeBody, PendingBody, ProposalBody},
    store::MemoryStore,
};
use serde_json::json;

use crate::client::{CODES, Target};

/// Entries that are asked for at once.
const PAGE: usize = 256;

/// What is asked of a log.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Makes a key for a signer, if the file is not there, and prints its public half.
    Key {
        /// The file.
        file: PathBuf,
        /// Answers as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Begins the log of a node: so many of these signers decide from then on.
    #[command(after_help = CODES)]
    Init {
        /// How many signers must agree.
        #[arg(long)]
        needed: u32,
        /// A signer: a name, and its public key in hex or the file of its key. May be given several times.
        #[arg(long = "signer", value_name = "NAME=KEY", required = true)]
        signers: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Proposes what a name shall stand for, and prints the proposal's id.
    #[command(after_help = CODES)]
    Propose {
        /// The name.
        name: Name,
        /// Something elsewhere, by its id.
        #[arg(long, value_name = "ID", value_parser = ContentId::parse_any, required_unless_present_any = ["payload", "retire"])]
        artifact: Option<ContentId>,
        /// A small file, kept in the log itself.
        #[arg(long, value_name = "FILE", conflicts_with = "artifact")]
        payload: Option<PathBuf>,
        /// Nothing any more.
        #[arg(long, conflicts_with_all = ["artifact", "payload"])]
        retire: bool,
        /// Hours that signers have.
        #[arg(long, default_value_t = 24)]
        hours: u64,
        /// Also writes the proposal here, for signers without a connection.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Proposes who decides from now on, and prints the proposal's id. Takes a quorum of those who decide now, and one of
    /// those who shall.
    #[command(after_help = CODES)]
    Rotate {
        /// How many signers must agree from then on.
        #[arg(long)]
        needed: u32,
        /// A signer: a name, and its public key in hex or the file of its key. May be given several times.
        #[arg(long = "signer", value_name = "NAME=KEY", required = true)]
        signers: Vec<String>,
        /// Hours that signers have.
        #[arg(long, default_value_t = 24)]
        hours: u64,
        /// Also writes the proposal here, for signers without a connection.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows what a proposal would change, who has approved it and who is missing; all that wait without an id.
    #[command(after_help = CODES)]
    Diff {
        /// The proposal's id.
        id: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows a proposal and approves it.
    #[command(after_help = CODES)]
    Approve {
        /// Its id, or the file with it.
        proposal: String,
        /// The file of the signer's key.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Writes the approval here instead of sending it.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Sends a proposal and approvals that were written to files.
    #[command(after_help = CODES)]
    Commit {
        /// The file with the proposal.
        proposal: PathBuf,
        /// Files with approvals.
        approvals: Vec<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Says what a name stands for, proven.
    #[command(after_help = CODES)]
    Get {
        /// The name.
        name: Name,
        /// The key of the log.
        #[arg(long, value_name = "KEY")]
        log_key: Option<NoteVerifier>,
        #[command(flatten)]
        target: Target,
    },
    /// Lists entries.
    #[command(after_help = CODES)]
    Log {
        /// The first version.
        #[arg(long)]
        from: Option<u64>,
        /// Stops after so many.
        #[arg(long)]
        limit: Option<usize>,
        #[command(flatten)]
        target: Target,
    },
    /// Writes the proof that an entry is in the log, and the entry beside it.
    #[command(after_help = CODES)]
    Prove {
        /// The version of the entry.
        version: u64,
        /// Where the proof goes; the entry goes to FILE.entry.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        #[command(flatten)]
        target: Target,
    },
    /// Checks such a proof, without asking anybody.
    Verify {
        /// The file with the proof; the entry is in FILE.entry.
        proof: PathBuf,
        /// The key of the log.
        #[arg(long, value_name = "KEY")]
        log_key: NoteVerifier,
        /// Answers as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Reads a log from its beginning and goes on as it grows, checking everything; one line for each entry.
    #[command(after_help = CODES)]
    Follow {
        /// The key of the log.
        #[arg(long, value_name = "KEY")]
        log_key: Option<NoteVerifier>,
        /// Stops after this version.
        #[arg(long)]
        until: Option<u64>,
        #[command(flatten)]
        target: Target,
    },
}

/// What a followed log was caught at.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Caught(String);

/// What was asked for is not in the log, or could not be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Absent {
    /// The log proves that nobody has bound it, or that it was retired.
    #[error("{0} stands for nothing")]
    Unbound(Name),
    /// It was committed, or has expired, or was never there.
    #[error("no such proposal waits there")]
    NotWaiting,
    /// There can be no such proposal.
    #[error("{text:?} is no id of a proposal: {why}")]
    NoId {
        /// What was given.
        text: String,
        /// What an id is.
        why: String,
    },
}

impl Absent {
    /// What the process ends with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Absent::Unbound(_) | Absent::NotWaiting => 3,
            Absent::NoId { .. } => 2,
        }
    }
}

/// Asks, and prints the answer.
pub(crate) async fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    match request {
        Request::Key { file, json } => {
            let key = HEXLOWER.encode(Identity::load_or_create(&file)?.public_key().as_bytes());
            let line = if json { json!({"key": key, "file": file}).to_string() } else { key };
            Ok(writeln!(io::stdout(), "{line}")?)
        }
        Request::Init { needed, signers, target } => init(needed, &signers, &target).await,
        Request::Propose { name, artifact, payload, hours, output, target, .. } => {
            let content = match (artifact, payload) {
                (Some(id), _) => Some(Content::Artifact(id)),
                (None, Some(path)) => Some(Content::Payload(read(&path)?)),
                (None, None) => None,
            };
            propose(name, content, hours, output.as_deref(), &target).await
        }
        Request::Rotate { needed, signers, hours, output, target } => {
            let action = Action::Rotate { policy: Arc::new(plain(needed, &signers)?) };
            let client = target.registry()?;
            let head = client.head(target.deadline()).await?;
            send(&client, &head, action, hours, output.as_deref(), &target).await
        }
        Request::Diff { id, target } => diff(id.as_deref(), &target).await,
        Request::Approve { proposal, key, output, target } => {
            approve(&proposal, &key, output.as_deref(), &target).await
        }
        Request::Commit { proposal, approvals, target } => {
            let proposal = Proposal::decode(&read(&proposal)?)?;
            let mut given = Vec::new();
            for path in &approvals {
                given.push(
                    Approval::decode(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?,
                );
            }
            let outcome = target.registry()?.commit(&proposal, &given, target.deadline()).await?;
            say_outcome(&outcome, &target)
        }
        Request::Get { name, log_key, target } => get(&name, log_key, &target).await,
        Request::Log { from, limit, target } => log(from, limit, &target).await,
        Request::Prove { version, output, target } => prove(version, &output, &target).await,
        Request::Verify { proof, log_key, json } => verify(&proof, log_key, json),
        Request::Follow { log_key, until, target } => follow(log_key, until, &target).await,
    }
}

fn read(path: &Path) -> Result<Bytes, Box<dyn Error>> {
    Ok(std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?.into())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// `NAME=HEX` or `NAME=FILE`.
fn signer(text: &str) -> Result<Signer, Box<dyn Error>> {
    let (name, key) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=KEY"))?;
    let decoded = HEXLOWER.decode(key.as_bytes()).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let key = match decoded {
        Some(bytes) => PublicKey::from_bytes(bytes),
        None => Identity::load(key)
            .map_err(|error| format!("{key:?} is neither 64 hex digits nor the file of a key: {error}"))?
            .public_key(),
    };
    Ok(Signer { name: name.to_owned(), key, expires: None })
}

/// So many of these signers, for everything.
fn plain(needed: u32, signers: &[String]) -> Result<Policy, Box<dyn Error>> {
    let signers = signers.iter().map(|text| signer(text)).collect::<Result<Vec<_>, _>>()?;
    Ok(Policy::of(needed, signers)?)
}

async fn init(needed: u32, signers: &[String], target: &Target) -> Result<(), Box<dyn Error>> {
    let policy = plain(needed, signers)?;
    let client = target.registry()?;
    let outcome = client.found(&policy, target.deadline()).await?;
    let head = client.head(target.deadline()).await?;
    let mut out = io::stdout().lock();
    if target.is_json() {
        let founded = json!({"origin": head.origin, "log_key": head.log_key, "version": outcome.version});
        return Ok(writeln!(out, "{founded}")?);
    }
    writeln!(out, "log\t{}\nkey\t{}", head.origin, head.log_key)?;
    Ok(())
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The key that is given, or the node's, which is said.
async fn trust(
    client: &Client,
    given: Option<NoteVerifier>,
    target: &Target,
) -> Result<LogTrust, Box<dyn Error>> {
    if let Some(key) = given {
        return Ok(LogTrust::new(key));
    }
    let key = client.head(target.deadline()).await?.log_key;
    eprintln!("taking the node's word for the key of its log: {key}");
    Ok(LogTrust::new(key.parse()?))
}

async fn propose(
    name: Name,
    content: Option<Content>,
    hours: u64,
    output: Option<&Path>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let head = client.head(target.deadline()).await?;
    let trust = LogTrust::new(head.log_key.parse()?);
    let prior = client.name(&name, &trust, target.deadline()).await?.map_or(0, |latest| latest.version);
    let action = match content {
        Some(content) => Action::Bind { name, content, prior },
        None => Action::Retire { name, prior },
    };
    send(&client, &head, action, hours, output, target).await
}

/// Proposes to the log as it is.
async fn send(
    client: &Client,
    head: &HeadBody,
    action: Action,
    hours: u64,
    output: Option<&Path>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let expires = unix_ms().saturating_add(hours.saturating_mul(3600 * 1000));
    let proposal = Proposal::new(&head.origin, head.epoch, expires, action, None)?;
    if let Some(path) = output {
        write(path, proposal.encoded())?;
    }
    let outcome = client.propose(&proposal, target.deadline()).await?;
    say_outcome(&outcome, target)
}

/// The id for scripts; who is missing, or where it is, for people.
fn say_outcome(outcome: &OutcomeBody, target: &Target) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    if target.is_json() {
        return Ok(writeln!(out, "{}", serde_json::to_string(outcome)?)?);
    }
    writeln!(out, "{}", outcome.proposal)?;
    match outcome.version {
        Some(version) => eprintln!("it is in the log as version {version}"),
        None if outcome.missing.is_empty() => eprintln!("nobody is left who could approve it"),
        None => eprintln!("it waits for {}", outcome.missing.join(", ")),
    }
    Ok(())
}

/// A proposal that waits at the node.
async fn waiting(client: &Client, id: &str, target: &Target) -> Result<PendingBody, Box<dyn Error>> {
    let no_id = |why: String| Absent::NoId { text: id.to_owned(), why };
    let id = id.parse::<ProposalId>().map_err(|error| no_id(error.to_string()))?;
    let found = client.waiting(&id, target.deadline()).await?;
    // Another than was asked for is none.
    let found = found.filter(|found| found.proposal.id == id.to_string());
    Ok(found.ok_or(Absent::NotWaiting)?)
}

async fn diff(id: Option<&str>, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let wanted = match id {
        Some(id) => vec![waiting(&client, id, target).await?],
        None => client.pending(target.deadline()).await?,
    };
    let policy = client.policy(target.deadline()).await?.policy;
    for one in &wanted {
        let mut out = io::stdout().lock();
        if target.is_json() {
            writeln!(out, "{}", serde_json::to_string(one)?)?;
            continue;
        }
        drop(out);
        let proposal = decoded(&one.proposal)?;
        say_change(&client, &proposal, target).await?;
        let named =
            |key: &str| policy.signers.iter().find(|signer| signer.key == key).map(|signer| &*signer.name);
        let approved: Vec<&str> = one.approvals.iter().filter_map(|approval| named(&approval.key)).collect();
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "  approved by {}",
            if approved.is_empty() { "nobody".into() } else { approved.join(", ") }
        )?;
        let missing =
            if one.missing.is_empty() { "nobody who could".to_owned() } else { one.missing.join(", ") };
        writeln!(out, "  waits for   {missing}")?;
    }
    Ok(())
}

/// A proposal out of its own bytes: what else is in the answer is only the node's word.
fn decoded(body: &ProposalBody) -> Result<Proposal, Box<dyn Error>> {
    let proposal = Proposal::decode(&BASE64.decode(body.bytes.as_bytes())?.into())?;
    if proposal.id().to_string() != body.id {
        return Err("the node gave another proposal than was asked for".into());
    }
    Ok(proposal)
}

/// What a proposal would change, as its bytes say, beside what the node proves to be there.
async fn say_change(client: &Client, proposal: &Proposal, target: &Target) -> Result<(), Box<dyn Error>> {
    let before = match proposal.action().name() {
        Some(name) => {
            let trust = LogTrust::new(client.head(target.deadline()).await?.log_key.parse()?);
            let latest = client.name(name, &trust, target.deadline()).await?;
            match latest.and_then(|latest| Some((latest.version, latest.content?))) {
                Some((version, id)) => format!("- version {version:<4} {id}"),
                None => "- nothing".to_owned(),
            }
        }
        None => String::new(),
    };
    Ok(writeln!(io::stdout(), "{}", change(proposal, &before))?)
}

/// As [`say_change`], for who has only the proposal.
fn say_change_alone(proposal: &Proposal) -> Result<(), Box<dyn Error>> {
    let before = match proposal.action().prior() {
        0 => "- nothing".to_owned(),
        prior => format!("- what version {prior} says"),
    };
    Ok(writeln!(io::stdout(), "{}", change(proposal, &before))?)
}

/// All that a signer signs, in words: two policies whose signers are called the same are not the same.
fn change(proposal: &Proposal, before: &str) -> String {
    let mut lines =
        vec![format!("proposal {}", proposal.id()), format!("  log         {}", proposal.origin())];
    match proposal.action() {
        Action::Bind { name, content, .. } => {
            lines.push(format!("  name        {name}"));
            lines.push(before.to_owned());
            lines.push(format!("+              {}", content.id()));
        }
        Action::Retire { name, .. } => {
            lines.push(format!("  name        {name}"));
            lines.push(before.to_owned());
            lines.push("+ nothing".to_owned());
        }
        Action::Rotate { policy } | Action::Found { policy } => {
            lines.push(format!("- policy      of epoch {}", proposal.epoch()));
            for signer in policy.signers() {
                let key = HEXLOWER.encode(signer.key.as_bytes());
                let until = signer.expires.map_or(String::new(), |at| format!(" until {at}"));
                lines.push(format!("+ signer      {} {key}{until}", signer.name));
            }
            for group in policy.groups() {
                lines.push(format!(
                    "+ group       {}: {} of {}",
                    group.name,
                    group.needed,
                    group.members.join(", ")
                ));
            }
            for rule in policy.rules() {
                let right = format!("{:?}", rule.right).to_lowercase();
                lines.push(format!("+ rule        {right} {}*: {}", rule.prefix, rule.quorum));
            }
        }
    }
    if let Some(head) = proposal.expect_head() {
        lines.push(format!("  directly after {head}"));
    }
    let left = Duration::from_millis(proposal.expires().saturating_sub(unix_ms()));
    lines.push(format!("  expires     in {} minutes", left.as_secs() / 60));
    lines.join("\n")
}

async fn approve(
    proposal: &str,
    key: &Path,
    output: Option<&Path>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let signer = Identity::load(key)?;
    let file = Path::new(proposal);
    if file.exists() {
        let proposal = Proposal::decode(&read(file)?)?;
        if !target.is_json() {
            say_change_alone(&proposal)?;
        }
        let approval = proposal.approve(&signer, proposal.expires());
        return match output {
            Some(path) => write(path, &approval.encode()),
            None => say_outcome(&target.registry()?.approve(&approval, target.deadline()).await?, target),
        };
    }
    let client = target.registry()?;
    let proposal = decoded(&waiting(&client, proposal, target).await?.proposal)?;
    if !target.is_json() {
        say_change(&client, &proposal, target).await?;
    }
    let approval = proposal.approve(&signer, proposal.expires());
    match output {
        Some(path) => write(path, &approval.encode()),
        None => say_outcome(&client.approve(&approval, target.deadline()).await?, target),
    }
}

async fn get(name: &Name, log_key: Option<NoteVerifier>, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let trust = trust(&client, log_key, target).await?;
    let latest = client.name(name, &trust, target.deadline()).await?;
    let mut out = io::stdout().lock();
    let id = latest.and_then(|latest| latest.content).map(|id| id.to_string());
    if target.is_json() {
        let version = latest.map(|latest| latest.version);
        writeln!(out, "{}", json!({"name": name.to_string(), "b3": id, "version": version}))?;
    } else if let Some(id) = &id {
        writeln!(out, "{id}")?;
    }
    if id.is_some() { Ok(()) } else { Err(Absent::Unbound(name.clone()).into()) }
}

async fn log(from: Option<u64>, limit: Option<usize>, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let (mut from, mut left) = (from, limit.unwrap_or(usize::MAX));
    while left > 0 {
        let page = client.log(from, left.min(PAGE), target.deadline()).await?;
        let mut out = io::stdout().lock();
        for entry in &page.entries {
            if target.is_json() {
                writeln!(out, "{}", serde_json::to_string(entry)?)?;
                continue;
            }
            let proposal = &entry.proposal;
            let (name, b3) = (proposal.name.as_deref().unwrap_or("-"), proposal.b3.as_deref().unwrap_or("-"));
            writeln!(out, "{}\t{}\t{name}\t{b3}", entry.version, proposal.action)?;
        }
        left = left.saturating_sub(page.entries.len());
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    Ok(())
}

fn beside(proof: &Path) -> PathBuf {
    let mut path = proof.as_os_str().to_owned();
    path.push(".entry");
    path.into()
}

async fn prove(version: u64, output: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
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

fn verify(proof: &Path, log_key: NoteVerifier, is_json: bool) -> Result<(), Box<dyn Error>> {
    let bytes = read(&beside(proof))?;
    let file = ProofFile::parse(&read(proof)?)?;
    let checkpoint =
        file.verify(&bytes, &LogTrust::new(log_key)).map_err(|error| Caught(error.to_string()))?;
    let entry = Entry::decode(&bytes)?;
    if entry.version() != file.index + 1 {
        let (said, is) = (entry.version(), file.index + 1);
        return Err(Caught(format!("the entry says that it is version {said}, and it is {is}")).into());
    }
    let name = entry.proposal().action().name().map(ToString::to_string);
    let (version, origin, size) = (entry.version(), checkpoint.origin, checkpoint.size);
    let line = match is_json {
        true => json!({"version": version, "name": name, "log": origin, "entries": size}).to_string(),
        false => {
            let name = name.as_deref().unwrap_or("-");
            format!(
                "version {version} ({name}) is in the log {origin}, under a signed head of {size} entries"
            )
        }
    };
    Ok(writeln!(io::stdout(), "{line}")?)
}

async fn follow(
    log_key: Option<NoteVerifier>,
    until: Option<u64>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let trust = trust(&client, log_key, target).await?;
    let host = Supervisor::new("follow");
    let follower = Registry::follower(trust, client).start(Arc::new(MemoryStore::new()), &host).await?;
    let mut updates = follower.updates(1);
    loop {
        let update = tokio::select! {
            update = updates.next() => match update.ok_or("stopped")? {
                Err(RegistryError::Lagging { first }) => {
                    eprintln!("versions before {first} are pruned there: goes on from the snapshot of them");
                    updates.skip_to(first);
                    continue;
                }
                update => update?,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who approves a rotation sees the keys that decide after it, and how many of them.
    #[test]
    fn a_policy_is_shown_with_its_keys() {
        let policy = |seed: u8| {
            let key = Identity::from_seed(&[seed; 32]).public_key();
            let signers = vec![Signer { name: "ann".into(), key, expires: Some(7) }];
            let action = Action::Rotate { policy: Arc::new(Policy::of(1, signers).unwrap()) };
            change(&Proposal::new("example.com/log", 3, u64::MAX, action, None).unwrap(), "")
        };
        let (one, other) = (policy(1), policy(2));
        let key = HEXLOWER.encode(Identity::from_seed(&[1; 32]).public_key().as_bytes());
        for line in [
            "log         example.com/log",
            "- policy      of epoch 3",
            &format!("+ signer      ann {key} until 7"),
            "+ group       all: 1 of ann",
            "+ rule        rotate *: all",
        ] {
            assert!(one.contains(line), "{line} in {one}");
        }
        assert!(!other.contains(&key));
    }
}
