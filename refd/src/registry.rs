//! `refd registry …`: founding a log, deciding in it, and checking what it says.
//!
//! A signer's key never leaves the machine of its signer: what is approved is read from its own bytes, shown, and signed here.
//! What is checked is checked against the key of the log, which is given or, where it is not, taken from the node and said.

mod proof;
mod request;
mod shown;
mod tally;

use std::{
    error::Error,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER};
use ron_core::net::{Identity, PublicKey};
use ron_registry::{
    Action, Approval, Content, Entry, LogTrust, Name, NoteVerifier, Policy, PolicyError, Proposal,
    ProposalId, Signer,
    client::Client,
    json::{HeadBody, OutcomeBody, PendingBody, ProposalBody},
};
use serde_json::{Value, json};

pub(crate) use self::request::Request;
use self::{
    proof::{follow, prove, verify},
    request::HOURS_MAX,
    shown::{Before, change},
    tally::Lacks,
};
use crate::client::{Ends, Target};

/// Entries that are asked for at once.
const PAGE: usize = 256;

/// Entries that are looked through for what became of a proposal.
const LOOK_BACK: u64 = 1024;

/// What a followed log was caught at.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Caught(String);

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
            let head = begun(&client, &target).await?;
            send(&client, &head, action, hours, output.as_deref(), &target).await
        }
        Request::Diff { proposal, target } => diff(proposal.as_deref(), &target).await,
        Request::Approve { proposal, key, output, target } => {
            approve(&proposal, &key, output.as_deref(), &target).await
        }
        Request::Commit { proposal, approvals, target } => commit(&proposal, &approvals, &target).await,
        Request::Get { name, payload, log_key, target } => get(&name, payload, log_key, &target).await,
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

/// A file with a proposal; what else it is, if it is none.
fn proposal_in(path: &Path) -> Result<Proposal, Box<dyn Error>> {
    let bytes = read(path)?;
    Ok(Proposal::decode(&bytes).map_err(|error| {
        let path = path.display();
        match Approval::decode(&bytes) {
            Ok(_) => {
                Ends::wrong(format!("{path} is an approval: the proposal comes first, approvals behind it"))
            }
            Err(_) => Ends::wrong(format!("{path} is no proposal: {error}")),
        }
    })?)
}

/// The same for an approval.
fn approval_in(path: &Path) -> Result<Approval, Box<dyn Error>> {
    let bytes = read(path)?;
    Ok(Approval::decode(&bytes).map_err(|error| {
        let path = path.display();
        match Proposal::decode(&bytes) {
            Ok(_) => Ends::wrong(format!("{path} is a proposal: it comes first, and approvals behind it")),
            Err(_) => Ends::wrong(format!("{path} is no approval: {error}")),
        }
    })?)
}

/// `NAME=HEX` or `NAME=FILE`.
fn signer(text: &str) -> Result<Signer, Box<dyn Error>> {
    let (name, key) =
        text.split_once('=').ok_or_else(|| Ends::wrong(format!("--signer {text:?} is not NAME=KEY")))?;
    let decoded = HEXLOWER.decode(key.as_bytes()).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let key = match decoded {
        Some(bytes) => PublicKey::from_bytes(bytes),
        None => Identity::load(key)
            .map_err(|error| {
                Ends::wrong(format!("{key:?} is neither 64 hex digits nor the file of a key: {error}"))
            })?
            .public_key(),
    };
    Ok(Signer { name: name.to_owned(), key, expires: None })
}

/// So many of these signers, for everything.
fn plain(needed: u32, signers: &[String]) -> Result<Policy, Box<dyn Error>> {
    let signers = signers.iter().map(|text| signer(text)).collect::<Result<Vec<_>, _>>()?;
    Ok(Policy::of(needed, signers).map_err(|error| match error {
        PolicyError::BadThreshold { needed, members, .. } => Ends::wrong(format!(
            "--needed {needed} of {members} signers cannot be: it is 1 to {members}, and each --signer is one"
        )),
        error => Ends::wrong(error.to_string()),
    })?)
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

/// Where a log ends that has begun.
async fn begun(client: &Client, target: &Target) -> Result<HeadBody, Box<dyn Error>> {
    let head = client.head(target.deadline()).await?;
    match (head.version, head.follows) {
        (0, true) => Err(Ends::not_yet(
            "the node follows a log and has read nothing of it yet: `refd health` says why".to_owned(),
        )
        .into()),
        (0, false) => Err(Ends::not_yet(
            "the log has not begun: `refd registry init --needed 1 --signer NAME=KEY` begins it".to_owned(),
        )
        .into()),
        _ => Ok(head),
    }
}

/// The key that is given, or the node's, which is said.
fn trust(head: &HeadBody, given: Option<NoteVerifier>) -> Result<LogTrust, Box<dyn Error>> {
    if let Some(key) = given {
        return Ok(LogTrust::new(key));
    }
    eprintln!("taking the node's word for the key of its log: {}", head.log_key);
    Ok(LogTrust::new(head.log_key.parse()?))
}

/// Who decides, as the node says, and since which epoch.
async fn in_force(client: &Client, target: &Target) -> Result<(u64, Policy), Box<dyn Error>> {
    let said = client.policy(target.deadline()).await?;
    Ok((said.epoch, Policy::decode(&BASE64.decode(said.bytes.as_bytes())?)?))
}

async fn propose(
    name: Name,
    content: Option<Content>,
    hours: u64,
    output: Option<&Path>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let head = begun(&client, target).await?;
    let trust = LogTrust::new(head.log_key.parse()?);
    let latest = client.name(&name, &trust, target.deadline()).await?;
    let prior = latest.map_or(0, |latest| latest.version);
    let action = match content {
        Some(content) => Action::Bind { name, content, prior },
        None if latest.and_then(|latest| latest.content).is_none() => {
            return Err(Ends::absent(format!("{name} is not bound, so there is nothing to retire")).into());
        }
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
    // A node whose clock is behind would find a month longer than a month.
    let lasts = (hours * 3600 * 1000).min(HOURS_MAX * 3600 * 1000 - 60_000);
    let proposal = Proposal::new(&head.origin, head.epoch, unix_ms().saturating_add(lasts), action, None)?;
    if let Some(path) = output {
        write(path, proposal.encoded())?;
    }
    let outcome = client.propose(&proposal, target.deadline()).await?;
    say_outcome(client, &proposal, &outcome, json!({}), target).await
}

/// What a proposal still lacks, as far as the node says.
async fn lacks(client: &Client, proposal: &Proposal, target: &Target) -> Option<Lacks> {
    let pending = client.waiting(&proposal.id(), target.deadline()).await.ok()??;
    let (epoch, policy) = in_force(client, target).await.ok()?;
    let is_current = epoch == proposal.epoch();
    is_current.then(|| Lacks::of(proposal, &policy, &signed(&pending), unix_ms())).flatten()
}

/// Whose approvals wait with a proposal and have not expired.
fn signed(pending: &PendingBody) -> Vec<PublicKey> {
    let now = unix_ms();
    let lasting = pending.approvals.iter().filter(|approval| approval.expires > now);
    let bytes = lasting.filter_map(|approval| HEXLOWER.decode(approval.key.as_bytes()).ok()?.try_into().ok());
    bytes.map(PublicKey::from_bytes).collect()
}

/// The id for scripts; who is missing, or where it is, for people. `more` is for programs.
async fn say_outcome(
    client: &Client,
    proposal: &Proposal,
    outcome: &OutcomeBody,
    more: Value,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let lacks = match outcome.version {
        Some(_) => None,
        None => lacks(client, proposal, target).await,
    };
    let mut out = io::stdout().lock();
    if target.is_json() {
        let mut said = serde_json::to_value(outcome)?;
        if let (Value::Object(said), Value::Object(more)) = (&mut said, more) {
            said.extend(more);
        }
        if let Some(lacks) = &lacks {
            lacks.add_to(&mut said);
        }
        return Ok(writeln!(out, "{said}")?);
    }
    writeln!(out, "{}", outcome.proposal)?;
    match (outcome.version, lacks) {
        (Some(version), _) => eprintln!("it is in the log as version {version}"),
        (None, Some(lacks)) => eprintln!("it needs {}", lacks.words()),
        (None, None) if outcome.missing.is_empty() => eprintln!("nobody is left who could approve it"),
        (None, None) => eprintln!("it waits for some of {}", outcome.missing.join(", ")),
    }
    Ok(())
}

/// Where a proposal was committed, if that was not long ago.
async fn committed(client: &Client, id: &str, target: &Target) -> Result<Option<u64>, Box<dyn Error>> {
    let head = client.head(target.deadline()).await?;
    let first = head.first.max((head.version + 1).saturating_sub(LOOK_BACK)).max(1);
    let mut from = (first <= head.version).then_some(first);
    while let Some(at) = from {
        let page = client.log(Some(at), PAGE, target.deadline()).await?;
        if let Some(entry) = page.entries.iter().find(|entry| entry.proposal.id == id) {
            return Ok(Some(entry.version));
        }
        from = page.next.filter(|next| *next > at);
    }
    Ok(None)
}

/// A proposal that waits at the node; if it does not, what became of it.
async fn waiting(client: &Client, id: &str, target: &Target) -> Result<PendingBody, Box<dyn Error>> {
    let id: ProposalId = id.parse().map_err(|error| {
        Ends::wrong(format!("{id:?} is no id of a proposal ({error}), and no file with one is there"))
    })?;
    let found = client.waiting(&id, target.deadline()).await?;
    // Another than was asked for is none.
    if let Some(found) = found.filter(|found| found.proposal.id == id.to_string()) {
        return Ok(found);
    }
    let became = match committed(client, &id.to_string(), target).await? {
        Some(version) => format!("it is in the log as version {version}"),
        None => "nobody proposed it, its time is over, or something else was decided about its name or about who decides; \
                 `refd registry log` lists what was"
            .to_owned(),
    };
    Err(Ends::absent(format!("no such proposal waits there: {became}")).into())
}

async fn diff(asked: Option<&str>, target: &Target) -> Result<(), Box<dyn Error>> {
    if let Some(path) = asked.map(Path::new).filter(|path| path.exists()) {
        let proposal = proposal_in(path)?;
        return match target.is_json() {
            true => Ok(writeln!(io::stdout(), "{}", serde_json::to_string(&ProposalBody::from(&proposal))?)?),
            false => say_change(&proposal, &Before::Unknown),
        };
    }
    let client = target.registry()?;
    begun(&client, target).await?;
    let wanted = match asked {
        Some(id) => vec![waiting(&client, id, target).await?],
        None => client.pending(target.deadline()).await?,
    };
    let (_, policy) = in_force(&client, target).await?;
    for one in &wanted {
        let proposal = decoded(&one.proposal)?;
        let signed = signed(one);
        let lacks = Lacks::of(&proposal, &policy, &signed, unix_ms());
        if target.is_json() {
            let mut said = serde_json::to_value(one)?;
            if let Some(lacks) = lacks {
                lacks.add_to(&mut said);
            }
            writeln!(io::stdout(), "{said}")?;
            continue;
        }
        say_change(&proposal, &before(&client, &proposal, &policy, target).await?)?;
        let named = |key: &PublicKey| tally::signer(&proposal, &policy, key).map(|signer| &*signer.name);
        let approved: Vec<&str> = signed.iter().filter_map(named).collect();
        let approved = if approved.is_empty() { "nobody".to_owned() } else { approved.join(", ") };
        let mut out = io::stdout().lock();
        writeln!(out, "  approved by {approved}")?;
        for (label, words) in lacks.iter().flat_map(Lacks::lines) {
            writeln!(out, "  {label:<12}{words}")?;
        }
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

/// What there is now: of a name what the node proves, of a policy what it says.
async fn before(
    client: &Client,
    proposal: &Proposal,
    policy: &Policy,
    target: &Target,
) -> Result<Before, Box<dyn Error>> {
    let Some(name) = proposal.action().name() else { return Ok(Before::Policy(policy.clone())) };
    let trust = LogTrust::new(client.head(target.deadline()).await?.log_key.parse()?);
    let latest = client.name(name, &trust, target.deadline()).await?;
    Ok(Before::Name(latest.and_then(|latest| Some((latest.version, latest.content?.to_string())))))
}

fn say_change(proposal: &Proposal, before: &Before) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(io::stdout(), "{}", change(proposal, before, unix_ms()))?)
}

async fn approve(
    proposal: &str,
    key: &Path,
    output: Option<&Path>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let signer = Identity::load(key)?;
    let file = Some(Path::new(proposal)).filter(|file| file.exists());
    // From a file into a file nobody is asked.
    if let (Some(file), Some(output)) = (file, output) {
        let proposal = proposal_in(file)?;
        if !target.is_json() {
            say_change(&proposal, &Before::Unknown)?;
        }
        return keep_approval(&proposal, &signer, output);
    }
    let client = target.registry()?;
    begun(&client, target).await?;
    let pending = match file {
        Some(file) => {
            let id = proposal_in(file)?.id().to_string();
            waiting(&client, &id, target).await?
        }
        None => waiting(&client, proposal, target).await?,
    };
    let proposal = decoded(&pending.proposal)?;
    let (_, policy) = in_force(&client, target).await?;
    if !target.is_json() {
        say_change(&proposal, &before(&client, &proposal, &policy, target).await?)?;
    }
    if let Some(output) = output {
        return keep_approval(&proposal, &signer, output);
    }
    let key = signer.public_key();
    let was_there = signed(&pending).contains(&key);
    let approval = proposal.approve(&signer, proposal.expires());
    let outcome = client.approve(&approval, target.deadline()).await?;
    let name = tally::signer(&proposal, &policy, &key).map_or("-", |signer| &signer.name);
    match was_there {
        true => eprintln!("{name} had approved already"),
        false => eprintln!("approved as {name}"),
    }
    let more = json!({"signer": name, "had_approved": was_there});
    say_outcome(&client, &proposal, &outcome, more, target).await
}

fn keep_approval(proposal: &Proposal, signer: &Identity, output: &Path) -> Result<(), Box<dyn Error>> {
    write(output, &proposal.approve(signer, proposal.expires()).encode())?;
    eprintln!("{}: `refd registry commit` sends it, with the proposal and the others", output.display());
    Ok(())
}

/// Sends what counts, and says what does not.
async fn commit(proposal: &Path, approvals: &[PathBuf], target: &Target) -> Result<(), Box<dyn Error>> {
    let proposal = proposal_in(proposal)?;
    let given = approvals.iter().map(|path| approval_in(path)).collect::<Result<Vec<_>, _>>()?;
    let client = target.registry()?;
    begun(&client, target).await?;
    let (epoch, policy) = in_force(&client, target).await?;
    // Of one that was made under another policy it is not known here who its signers were.
    let policy = Some(&policy).filter(|_| epoch == proposal.epoch());
    let (mut sent, mut keys, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (path, approval) in approvals.iter().zip(given) {
        match tally::refusal(&approval, &proposal, policy, &keys, unix_ms()) {
            Some(why) => {
                eprintln!("{} does not count: {why}", path.display());
                refused.push(json!({"file": path.display().to_string(), "why": why}));
            }
            None => {
                keys.push(approval.key());
                sent.push(approval);
            }
        }
    }
    let outcome = client.commit(&proposal, &sent, target.deadline()).await?;
    say_outcome(&client, &proposal, &outcome, json!({"not_counted": refused}), target).await?;
    match outcome.version {
        Some(_) => Ok(()),
        None => Err(Ends::not_yet("it is not in the log yet".to_owned()).into()),
    }
}

async fn get(
    name: &Name,
    is_payload: bool,
    log_key: Option<NoteVerifier>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.registry()?;
    let trust = trust(&begun(&client, target).await?, log_key)?;
    let latest = client.name(name, &trust, target.deadline()).await?;
    let content = latest.and_then(|latest| Some((latest, latest.content?)));
    let mut said = json!({
        "name": name.to_string(),
        "b3": content.map(|(_, id)| id.to_string()),
        "version": latest.map(|latest| latest.version),
    });
    let absent = || Ends::absent(format!("{name} stands for nothing, and the log proves it"));
    let Some((latest, id)) = content else {
        if target.is_json() && !is_payload {
            writeln!(io::stdout(), "{said}")?;
        }
        return Err(absent().into());
    };
    if !is_payload {
        let line = if target.is_json() { said.to_string() } else { id.to_string() };
        return Ok(writeln!(io::stdout(), "{line}")?);
    }
    let entry = Entry::decode(&client.entry(latest.version, target.deadline()).await?)?;
    // The id of the proposal is proven with the name, and everything of the proposal is in its id.
    if entry.proposal().id() != latest.proposal {
        return Err(Caught(format!("the node gave another entry than version {}", latest.version)).into());
    }
    let Action::Bind { content: Content::Payload(bytes), .. } = entry.proposal().action() else {
        let words = format!("{name} stands for an object that is not in the log: refd get {id}");
        return Err(Ends::absent(words).into());
    };
    let mut out = io::stdout().lock();
    if target.is_json() {
        said["payload"] = BASE64.encode(bytes).into();
        return Ok(writeln!(out, "{said}")?);
    }
    out.write_all(bytes)?;
    Ok(out.flush()?)
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
