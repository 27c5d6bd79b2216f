//! `refd put`, `get`, `stat`, `ls`, `rm`, `pin`, `unpin`, `gc`, `scrub`: a person or a script asks a running node for its objects.
//!
//! What a script reads is on standard output and nothing else is; what people read, progress and errors, is on standard
//! error. Whatever is fetched was verified against its name here, whoever sent it.

use std::{
    error::Error,
    io::{self, Write as _},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use clap::{Args, Subcommand};
use futures_core::Stream;
use ron_core::{
    ContentId, Deadline,
    net::{Contact, ContactError},
};
use ron_storage::client::{Client, ClientError, PutOptions, RemoteStat};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use crate::{
    ask::{AskError, Node},
    config::{Config, Flags},
    progress::Progress,
    repair::Wish,
    tree::{self, Entry, Seen, Tree, TreeError},
};

/// What each exit code means, for `--help`.
pub(crate) const CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  the arguments are wrong
  3  there is no such object, name, entry, proposal or node there
  4  not allowed: no token or not the right one, or a key that does not decide there
  5  the node cannot be reached, or does not answer in time
  6  not yet: the node is busy or full, or fewer approve or have it than it takes
  7  what came is not what its name says, or is no answer of such a node
  8  the settings on this machine are wrong";

/// An end that is no failure of what was asked, with the code that says so.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct Ends {
    code: u8,
    words: String,
}

impl Ends {
    /// What was given cannot be meant.
    pub(crate) fn wrong(words: String) -> Self {
        Ends { code: 2, words }
    }

    /// It is not there.
    pub(crate) fn absent(words: String) -> Self {
        Ends { code: 3, words }
    }

    /// It may be there later.
    pub(crate) fn not_yet(words: String) -> Self {
        Ends { code: 6, words }
    }

    /// It is there, and damaged.
    fn damaged(words: String) -> Self {
        Ends { code: 7, words }
    }
}

/// An id as people paste it: `b3:...` or a CID.
pub(crate) fn content_id(text: &str) -> Result<ContentId, String> {
    ContentId::parse_any(text).map_err(|error| match text.strip_prefix("b3:") {
        Some(_) => format!("an id is `b3:` and 64 hex digits: {error}"),
        None if format!("b3:{text}").parse::<ContentId>().is_ok() => format!("`b3:` is missing: b3:{text}"),
        None => "neither `b3:` and 64 hex digits nor a CID; what a name stands for: refd registry get NAME"
            .to_owned(),
    })
}

/// A node that can be dialled, as it is written.
fn contact(text: &str) -> Result<String, String> {
    let contact: Contact = text.parse().map_err(|error: ContactError| error.to_string())?;
    match contact.addrs.is_empty() {
        true => Err("it has no address: NODE_ID@IP:PORT".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Bytes read from a file at a time: a few groups, so that both sides stay busy.
const READ_BYTES: usize = 256 << 10;

/// What a transfer may take at most.
const TRANSFER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Objects asked for at once when listing.
const PAGE: usize = 500;

/// Which node is asked, and how.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The node, as the URL of its admin listener [default: where this machine's node listens].
    #[arg(long, value_name = "URL")]
    node: Option<String>,
    /// The file with the node's token [default: $REFD_TOKEN_FILE, or `token` in the data directory].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The data directory of the node on this machine, for its token.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The settings of the node on this machine, to find it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds that the node has for an answer; transfers only for their beginning.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Answers as JSON, one value on a line.
    #[arg(long)]
    json: bool,
}

impl Target {
    /// Whether answers are for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs(self.timeout))
    }

    pub(crate) fn client(&self) -> Result<Client, Box<dyn Error>> {
        let (node, token) = self.node()?;
        let client = Client::builder(node);
        Ok(match token {
            Some(token) => client.token(token).build()?,
            None => client.build()?,
        })
    }

    /// The log of the node.
    pub(crate) fn registry(&self) -> Result<ron_registry::client::Client, Box<dyn Error>> {
        let (node, token) = self.node()?;
        let client = ron_registry::client::Client::new(&format!("{}/registry", node.trim_end_matches('/')))?;
        Ok(match token {
            Some(token) => client.token(token),
            None => client,
        })
    }

    /// What it may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// For routes that have no client of their own.
    pub(crate) fn node_asked(&self) -> Result<Node, Box<dyn Error>> {
        let (node, token) = self.node()?;
        Ok(Node::new(&node, token)?)
    }

    /// One request, and its whole answer.
    pub(crate) async fn ask(
        &self,
        method: &'static str,
        path: &str,
        body: Bytes,
    ) -> Result<serde_json::Value, Box<dyn Error>> {
        Ok(self.node_asked()?.ask(method, path, body, self.deadline()).await?)
    }

    /// Asks for something that takes as long as reading everything does.
    async fn long(&self, path: &str) -> Result<serde_json::Value, Box<dyn Error>> {
        Ok(self.node_asked()?.ask("POST", path, Bytes::new(), Deadline::after(TRANSFER_MAX)).await?)
    }

    /// The index of the node.
    pub(crate) fn index(&self) -> Result<ron_index::client::Client, Box<dyn Error>> {
        let (node, _) = self.node()?;
        Ok(ron_index::client::Client::new(&format!("{}/index", node.trim_end_matches('/')))?)
    }

    /// Where the node is, and its token if there is one here.
    fn node(&self) -> Result<(String, Option<String>), Box<dyn Error>> {
        let flags = Flags::in_dir(self.data_dir.clone());
        let config = Config::load(self.config.as_deref(), crate::config::layers::variables(), flags)?;
        let node = self.node.clone().unwrap_or_else(|| format!("http://{}", config.admin.listen));
        if node.starts_with("https://") {
            let words = format!(
                "--node {node}: a node speaks plain http only; for TLS ask through a proxy or a tunnel here"
            );
            return Err(Ends::wrong(words).into());
        }
        if !node.starts_with("http://") {
            let words =
                format!("--node {node:?} is not the address of a node: it is like http://127.0.0.1:4711");
            return Err(Ends::wrong(words).into());
        }
        let named = || std::env::var_os("REFD_TOKEN_FILE").map(PathBuf::from);
        let (path, is_asked_for) = match self.token_file.clone().or_else(named) {
            Some(path) => (path, true),
            None => (config.token_file()?, false),
        };
        match std::fs::read_to_string(&path) {
            Ok(token) => Ok((node, Some(token.trim().to_owned()))),
            // Whoever only reads needs none, and is told by the node if that was wrong.
            Err(_) if !is_asked_for => Ok((node, None)),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }
}

/// What is asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Stores a file, a directory, or standard input, and prints its id.
    #[command(after_help = CODES)]
    Put {
        /// The file or directory; `-` is standard input. The id of a directory is that of a list of its files.
        file: PathBuf,
        /// Pins it, so that no collection removes it, and with a directory each of its files.
        #[arg(long)]
        pin: bool,
        /// Does not wait until it is on disk.
        #[arg(long)]
        buffered: bool,
        #[command(flatten)]
        wish: Wish,
        #[command(flatten)]
        target: Target,
    },
    /// Fetches an object, verified, to standard output, into a file or, if it was a directory, into one.
    #[command(after_help = CODES)]
    Get {
        /// Its id, `b3:...` or a CID; or a name, and then what the node says that it stands for.
        #[arg(value_name = "ID|NAME", value_parser = wanted)]
        id: ron_index::Key,
        /// Where to put it. What was fetched of it before is kept in FILE.part, and fetching goes on from there.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The list of a directory as it is, and not the directory; without --output it is so anyway.
        #[arg(long)]
        raw: bool,
        /// Only these bytes, as in 0-99 or 100-; not into a file that may be continued.
        #[arg(long, value_name = "FIRST-LAST", value_parser = range, conflicts_with = "output")]
        range: Option<(u64, Option<u64>)>,
        /// A node that has it. The node that is asked brings it from there if it does not have it; without this, from
        /// whoever the DHT says provides it.
        #[arg(long, value_name = "NODE_ID@IP:PORT", value_parser = contact)]
        from: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Says what a node knows of an object.
    #[command(after_help = CODES)]
    Stat {
        /// Its id.
        #[arg(value_parser = content_id)]
        id: ContentId,
        #[command(flatten)]
        target: Target,
    },
    /// Lists the objects of a node: id, size, and whether it is pinned or damaged.
    #[command(after_help = CODES)]
    Ls {
        /// Goes on behind this id.
        #[arg(long, value_name = "ID", value_parser = content_id)]
        after: Option<ContentId>,
        /// Stops after so many.
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
        #[command(flatten)]
        target: Target,
    },
    /// Deletes objects.
    #[command(after_help = CODES)]
    Rm {
        /// Their ids.
        #[arg(required = true, value_parser = content_id)]
        ids: Vec<ContentId>,
        #[command(flatten)]
        target: Target,
    },
    /// Pins objects: neither `rm` nor a collection removes them.
    #[command(after_help = CODES)]
    Pin {
        /// Their ids.
        #[arg(required = true, value_parser = content_id)]
        ids: Vec<ContentId>,
        #[command(flatten)]
        target: Target,
    },
    /// Says what a name, an address or a CID leads to: what it is made of and who has it, the best first.
    #[command(after_help = CODES)]
    Resolve {
        /// A name, `b3:...` or a CID.
        key: ron_index::Key,
        /// So many providers.
        #[arg(long, value_name = "COUNT", default_value_t = ron_index::LIMIT_DEFAULT)]
        limit: usize,
        /// Says why each is where it is.
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Says who has some content, one in each line.
    #[command(after_help = CODES)]
    Find {
        /// Its id: `b3:...` or a CID.
        #[arg(value_parser = ron_index::Key::content)]
        id: ron_index::Key,
        /// So many providers.
        #[arg(long, value_name = "COUNT", default_value_t = ron_index::LIMIT_DEFAULT)]
        limit: usize,
        #[command(flatten)]
        target: Target,
    },
    /// Collects what is not pinned and was not put just now, and says how much that was. On a node that keeps objects with
    /// others, what is claimed stays.
    #[command(after_help = CODES)]
    Gc {
        /// Only says how much it would be.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Reads every object again, sets aside what is damaged, and lists it. Exits with 7 if there is some.
    #[command(after_help = CODES)]
    Scrub {
        #[command(flatten)]
        target: Target,
    },
    /// Takes pins back.
    #[command(after_help = CODES)]
    Unpin {
        /// Their ids.
        #[arg(required = true, value_parser = content_id)]
        ids: Vec<ContentId>,
        #[command(flatten)]
        target: Target,
    },
}

/// `0-99` or `100-`.
fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("{text:?} is not FIRST-LAST or FIRST-");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    let last = if last.is_empty() { None } else { Some(last.parse().map_err(|_| wrong())?) };
    if last.is_some_and(|last| last < first) { Err(wrong()) } else { Ok((first, last)) }
}

/// Asks, and prints the answer.
pub(crate) async fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    match request {
        Request::Put { file, pin, buffered, wish, target } => {
            wish.check(&target).await?;
            let options = PutOptions { pin, buffered, len: None, policy: wish.policy(), ack: wish.ack() };
            let done = match file.is_dir() {
                true => put_dir(&file, &options, &target).await,
                false => put(&file, &options, &target).await,
            };
            if let Some(ClientError::Unacknowledged { id, acknowledged, wanted }) =
                done.as_ref().err().and_then(|error| error.downcast_ref())
            {
                if target.json {
                    let (id, cid) = (id.to_string(), id.to_cid());
                    let said = json!({"id": id, "cid": cid, "acknowledged": acknowledged, "wanted": wanted});
                    writeln!(io::stdout(), "{said}")?;
                }
            }
            done
        }
        Request::Get { id, output: Some(output), raw, from, target, .. } => {
            let id = meant(&id, &target).await?;
            let in_the_way = || {
                let dir = output.display();
                Ends::wrong(format!("{dir} is a directory, and {id} is none: name a file, as in {dir}/FILE"))
            };
            if raw && output.is_dir() {
                return Err(in_the_way().into());
            }
            bring(id, from.as_deref(), &target).await?;
            let client = target.client()?;
            let tree = if raw { None } else { tree::look(&client, id, target.deadline()).await? };
            match tree {
                Some(tree) => get_dir(id, &tree, &client, &output, &target).await,
                None if output.is_dir() => Err(in_the_way().into()),
                None => get_file(id, &output, &target).await,
            }
        }
        Request::Get { id, output: None, range, from, target, .. } => {
            let id = meant(&id, &target).await?;
            bring(id, from.as_deref(), &target).await?;
            get(id, range, &target).await
        }
        Request::Stat { id, target } => {
            let stat = target.client()?.stat(id, target.deadline()).await?;
            say_stat(&stat, target.json)
        }
        Request::Ls { after, limit, target } => list(after, limit, &target).await,
        Request::Rm { ids, target } => {
            let client = target.client()?;
            for id in ids {
                client.delete(id, target.deadline()).await?;
                say(&target, id, json!({"id": id.to_string(), "deleted": true}))?;
            }
            Ok(())
        }
        Request::Resolve { key, limit, explain, target } => {
            let answer = target.index()?.resolve(&key, limit, explain, target.deadline()).await?;
            say_answer(&answer, target.json)
        }
        Request::Find { id, limit, target } => {
            let answer = target.index()?.providers(&id, limit, target.deadline()).await?;
            let none = Vec::new();
            let mut out = io::stdout().lock();
            for provider in answer["providers"].as_array().unwrap_or(&none) {
                if target.json {
                    writeln!(out, "{provider}")?;
                } else {
                    writeln!(out, "{}", provider_line(provider))?;
                }
            }
            Ok(())
        }
        Request::Gc { dry_run, target } => {
            let path = if dry_run { "/gc?dry_run=true" } else { "/gc" };
            let said = target.long(path).await?;
            say_counts(&said, &["objects", "bytes", "kept"], target.json)
        }
        Request::Scrub { target } => scrub(&target).await,
        Request::Pin { ids, target } => pin(&ids, true, &target).await,
        Request::Unpin { ids, target } => pin(&ids, false, &target).await,
    }
}

/// Counts, one in each line.
fn say_counts(said: &serde_json::Value, keys: &[&str], is_json: bool) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    if is_json {
        return Ok(writeln!(out, "{said}")?);
    }
    for key in keys {
        writeln!(out, "{key}\t{}", said[*key])?;
    }
    Ok(())
}

async fn scrub(target: &Target) -> Result<(), Box<dyn Error>> {
    let said = target.long("/scrub").await?;
    say_counts(&said, &["objects", "bytes", "journal_damage"], target.json)?;
    let mut bad = said["journal_damage"].as_u64().unwrap_or_default();
    for word in ["damaged", "unreadable"] {
        for id in said[word].as_array().into_iter().flatten().filter_map(|id| id.as_str()) {
            bad += 1;
            if !target.json {
                writeln!(io::stdout(), "{word}\t{id}")?;
            }
        }
    }
    match bad {
        0 => Ok(()),
        _ => Err(Ends::damaged(
            "some of it is damaged, and is not served: putting an object again mends it, and so does a node that keeps it too"
                .to_owned(),
        )
        .into()),
    }
}

async fn pin(ids: &[ContentId], is_pinned: bool, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    for id in ids {
        let changed = match is_pinned {
            true => client.pin(*id, target.deadline()).await?,
            false => client.unpin(*id, target.deadline()).await?,
        };
        say(target, *id, json!({"id": id.to_string(), "pinned": is_pinned, "changed": changed}))?;
    }
    Ok(())
}

/// One line: the id for people and scripts, or the whole answer as JSON.
fn say(target: &Target, id: ContentId, json: serde_json::Value) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    if target.json {
        writeln!(out, "{json}")?
    } else {
        writeln!(out, "{id}")?
    }
    Ok(())
}

/// Who, where, and who says so.
fn provider_line(provider: &serde_json::Value) -> String {
    let text = |name: &str| provider[name].as_str().unwrap_or_default().to_owned();
    let none = Vec::new();
    let addrs = provider["addrs"].as_array().unwrap_or(&none).iter().filter_map(|addr| addr.as_str());
    let mut line = format!("{}\t{}\t{}", text("id"), addrs.collect::<Vec<_>>().join(","), text("source"));
    if let Some(rank) = provider["rank"].as_object() {
        let part = |name: &str| rank.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
        line.push_str(&format!(
            "\t{:.3} (region {:.2}, freshness {:.2}, latency {:.2}, success {:.2})",
            part("score"),
            part("region"),
            part("freshness"),
            part("latency"),
            part("success")
        ));
    }
    line
}

fn say_answer(answer: &serde_json::Value, is_json: bool) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    if is_json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    writeln!(out, "content\t{}\ncid\t{}", text(&answer["content"]), text(&answer["cid"]))?;
    if let Some(version) = answer["name"]["version"].as_u64() {
        writeln!(out, "name\tversion {version}, proven by {}", text(&answer["name"]["proven_by"]))?;
    }
    if let Some(len) = answer["manifest"]["len"].as_u64() {
        writeln!(out, "size\t{len}")?;
    }
    if answer["complete"] == false {
        writeln!(out, "complete\tfalse")?;
    }
    if let Some(stale) = answer["stale"].as_str() {
        writeln!(out, "stale\t{stale}")?;
    }
    let none = Vec::new();
    let providers = answer["providers"].as_array().unwrap_or(&none);
    for provider in providers {
        writeln!(out, "provider\t{}", provider_line(provider))?;
    }
    if providers.is_empty() && answer["name"]["version"].is_u64() {
        eprintln!(
            "the name is proven, and nobody is known who has what it stands for; if the log holds it, refd registry get NAME \
             --payload prints it"
        );
    }
    Ok(())
}

fn stat_json(stat: &RemoteStat) -> serde_json::Value {
    json!({
        "id": stat.id.to_string(),
        "cid": stat.id.to_cid(),
        "size": stat.size,
        "pinned": stat.pinned,
        "quarantined": stat.quarantined,
    })
}

fn say_stat(stat: &RemoteStat, is_json: bool) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    if is_json {
        writeln!(out, "{}", stat_json(stat))?;
        return Ok(());
    }
    writeln!(out, "id\t{}\ncid\t{}\nsize\t{}", stat.id, stat.id.to_cid(), stat.size)?;
    writeln!(out, "pinned\t{}\ndamaged\t{}", stat.pinned, stat.quarantined)?;
    Ok(())
}

async fn list(
    mut after: Option<ContentId>,
    limit: Option<usize>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let mut left = limit.unwrap_or(usize::MAX);
    while left > 0 {
        let page = client.list(after, left.min(PAGE), target.deadline()).await?;
        let mut out = io::stdout().lock();
        for object in &page.objects {
            if target.json {
                writeln!(out, "{}", stat_json(object))?;
            } else {
                let pinned = if object.pinned { "\tpinned" } else { "" };
                let damaged = if object.quarantined { "\tdamaged" } else { "" };
                writeln!(out, "{}\t{}{pinned}{damaged}", object.id, object.size)?;
            }
        }
        left = left.saturating_sub(page.objects.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

async fn put(file: &Path, options: &PutOptions, target: &Target) -> Result<(), Box<dyn Error>> {
    let (source, len) = open(file).await?;
    let client = target.client()?;
    let source = Reading { source, progress: Progress::new("put", len) };
    let options = PutOptions { len, ..options.clone() };
    let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
    let mut json = json!({
        "id": stored.id.to_string(),
        "cid": stored.id.to_cid(),
        "size": stored.size,
        "durability": stored.durability,
        "existed": stored.existed,
    });
    if let (Some(policy), Some(acknowledged)) = (&stored.policy, stored.acknowledged) {
        json["policy"] = policy.as_str().into();
        json["acknowledged"] = acknowledged.into();
    }
    say(target, stored.id, json)
}

/// Every file first and the list last, so that whoever has its id can have the rest.
async fn put_dir(dir: &Path, options: &PutOptions, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for Seen { below, path, meta } in tree::walk(dir)? {
        if meta.is_dir() {
            entries.push(Entry::new(below, None, false));
            continue;
        }
        let (source, len) = open(&path).await?;
        let source = Reading { source, progress: Progress::new("put", len) };
        let options = PutOptions { len, ..options.clone() };
        let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
        bytes += stored.size;
        entries.push(Entry::new(below, Some((stored.id, stored.size)), tree::is_executable(&meta)));
    }
    let files = entries.iter().filter(|entry| entry.is_file()).count();
    let list = tree::list(entries);
    let options = PutOptions { len: Some(list.len() as u64), ..options.clone() };
    let source: Source = Box::pin(io::Cursor::new(list));
    let source = Reading { source, progress: Progress::new("put", options.len) };
    let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
    let json =
        json!({"id": stored.id.to_string(), "cid": stored.id.to_cid(), "files": files, "bytes": bytes});
    say(target, stored.id, json)
}

async fn get_dir(
    id: ContentId,
    tree: &Tree,
    client: &Client,
    output: &Path,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let (files, bytes) = tree::restore(tree, client, output, || target.deadline()).await?;
    let path = output.display().to_string();
    say(target, id, json!({"id": id.to_string(), "files": files, "bytes": bytes, "path": path}))
}

type Source = Pin<Box<dyn AsyncRead + Send>>;

async fn open(file: &Path) -> Result<(Source, Option<u64>), Box<dyn Error>> {
    if file == Path::new("-") {
        return Ok((Box::pin(tokio::io::stdin()), None));
    }
    let named = |error: io::Error| format!("{}: {error}", file.display());
    let open = tokio::fs::File::open(file).await.map_err(named)?;
    let meta = open.metadata().await.map_err(named)?;
    // A pipe or a device has no length to count on, nor has a file that the kernel makes up and calls empty.
    let len = Some(meta.len()).filter(|len| meta.is_file() && *len > 0);
    Ok((Box::pin(open), len))
}

/// A file as a stream, with its progress.
pub(crate) struct Reading {
    pub(crate) source: Source,
    pub(crate) progress: Progress,
}

impl Stream for Reading {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let this = &mut *self;
        let mut space = vec![0; READ_BYTES];
        let mut room = ReadBuf::new(&mut space);
        ready!(this.source.as_mut().poll_read(cx, &mut room))?;
        let read = room.filled().len();
        if read == 0 {
            this.progress.end();
            return Poll::Ready(None);
        }
        this.progress.moved(read as u64);
        space.truncate(read);
        Poll::Ready(Some(Ok(space.into())))
    }
}

/// What can be fetched and verified: content by its hash, or a name that stands for some.
fn wanted(text: &str) -> Result<ron_index::Key, String> {
    match (ContentId::parse_any(text), text.parse()) {
        (Ok(id), _) => Ok(ron_index::Key::Content(id)),
        // Digits that somebody cut off a name are no name.
        _ if format!("b3:{text}").parse::<ContentId>().is_ok() => content_id(text).map(Into::into),
        (_, Ok(ron_index::Key::Foreign(_))) => {
            Err("its hash is not BLAKE3, and cannot be verified here".to_owned())
        }
        (_, Ok(key)) => Ok(key),
        (_, Err(error)) => Err(crate::with_causes(&error)),
    }
}

/// The object that is wanted. What a name stands for the node has proven to itself; a reader who trusts no node asks `refd
/// registry get --log-key` first.
async fn meant(key: &ron_index::Key, target: &Target) -> Result<ContentId, Box<dyn Error>> {
    if let ron_index::Key::Content(id) = key {
        return Ok(*id);
    }
    let answer = target.index()?.resolve(key, 1, false, target.deadline()).await?;
    let id = answer["content"].as_str().and_then(|id| ContentId::parse_any(id).ok());
    Ok(id.ok_or(AskError::Stranger("a name leads to no content there"))?)
}

/// Lets the node bring an object that it does not have. Whoever has no token there is not helped, and is told that it is
/// not there.
async fn bring(id: ContentId, from: Option<&str>, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    match client.stat(id, target.deadline()).await {
        Err(ClientError::NotFound { .. }) => {}
        // Whatever else is wrong, getting it says.
        _ => return Ok(()),
    }
    match client.fetch(id, from, target.deadline()).await {
        Ok(_) | Err(ClientError::NotFound { .. }) => Ok(()),
        Err(ClientError::Refused { status: 401 | 403 | 404, .. }) if from.is_none() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn get(
    id: ContentId,
    range: Option<(u64, Option<u64>)>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let (first, last) = range.unwrap_or((0, None));
    let end = last.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Included);
    let client = target.client()?;
    let mut fetch = client.get(id, (std::ops::Bound::Included(first), end), target.deadline()).await?;
    let total =
        fetch.size().map(|size| last.map_or(size, |last| size.min(last.saturating_add(1))) - first.min(size));
    let mut progress = Progress::new("get", total);
    let mut out = tokio::io::stdout();
    while let Some(bytes) = fetch.next().await? {
        out.write_all(&bytes).await?;
        progress.moved(bytes.len() as u64);
    }
    out.flush().await?;
    progress.end();
    Ok(())
}

/// Into a file that has its name only when it is whole and on disk.
async fn get_file(id: ContentId, output: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let size = fetch_file(&client, id, output, || target.deadline()).await?;
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    crate::backup::sync(directory).await?;
    let path = output.display().to_string();
    say(target, id, json!({"id": id.to_string(), "size": size, "path": path}))
}

/// Fetches an object into `output` by way of `output.part`, going on behind what is there of it. Each question to the node has
/// a deadline of its own: what is there may take minutes to hash.
pub(crate) async fn fetch_file(
    client: &Client,
    id: ContentId,
    output: &Path,
    deadline: impl Fn() -> Deadline,
) -> Result<u64, Box<dyn Error>> {
    let part = part_of(output);
    let named = |error: io::Error| format!("{}: {error}", part.display());
    let mut options = tokio::fs::OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(&part).await.map_err(named)?;
    let kept = file.metadata().await.map_err(named)?.len();
    let size = if kept > 0 { Some(client.stat(id, deadline()).await?.size) } else { None };
    // There is more here than there is of it: it was something else.
    if size.is_some_and(|size| size < kept) {
        return Err(spoilt(&part, id).await.into());
    }
    // What is there is not believed: it is hashed again, and with the rest it must come to the name.
    let mut hasher = blake3::Hasher::new();
    let mut piece = BytesMut::with_capacity(READ_BYTES);
    while file.read_buf(&mut piece).await.map_err(named)? > 0 {
        hasher.update(&piece);
        piece.clear();
    }
    let begun = hasher.count();
    if size != Some(begun) {
        let mut fetch = client.get(id, begun.., deadline()).await?;
        let mut progress = Progress::new("get", fetch.size()).from(begun);
        while let Some(bytes) = fetch.next().await? {
            hasher.update(&bytes);
            file.write_all(&bytes).await.map_err(named)?;
            progress.moved(bytes.len() as u64);
        }
        progress.end();
    }
    let size = hasher.count();
    if ContentId::from_bytes(*hasher.finalize().as_bytes()) != id {
        return Err(spoilt(&part, id).await.into());
    }
    file.sync_all().await.map_err(named)?;
    tokio::fs::rename(&part, output).await.map_err(|error| format!("{}: {error}", output.display()))?;
    Ok(size)
}

/// Where an object is until it is whole.
pub(crate) fn part_of(output: &Path) -> PathBuf {
    let mut part = output.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// Removes a beginning that does not belong to the object.
async fn spoilt(part: &Path, id: ContentId) -> Spoilt {
    let _ = tokio::fs::remove_file(part).await;
    Spoilt { part: part.to_owned(), id }
}

/// What was kept of an object from before is not of it.
#[derive(Debug, thiserror::Error)]
#[error("{} was no beginning of {id} and is removed; ask again", part.display())]
struct Spoilt {
    part: PathBuf,
    id: ContentId,
}

/// What to do about it, where that is not plain.
pub(crate) fn hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let of_storage = error.downcast_ref::<ClientError>();
    let of_log = error.downcast_ref::<ron_registry::client::ClientError>();
    let of_rest = error.downcast_ref::<AskError>();
    let of_index = error.downcast_ref::<ron_index::client::ClientError>();
    let is_away = matches!(of_storage, Some(ClientError::Unreachable { .. }))
        || matches!(of_log, Some(ron_registry::client::ClientError::Unreachable { .. }))
        || matches!(of_rest, Some(AskError::Unreachable { .. }))
        || matches!(of_index, Some(ron_index::client::ClientError::Unreachable { .. }));
    let is_waiting = |for_what: &str| {
        use ron_index::client::ClientError;
        matches!(of_index, Some(ClientError::Refused { code, words, .. }) if code == "not_ready" && words.contains(for_what))
    };
    let is_denied = matches!(of_storage, Some(ClientError::Refused { status: 401 | 403, .. }))
        || matches!(of_log, Some(ron_registry::client::ClientError::Refused { status: 401 | 403, code, .. }) if code != "not_a_signer")
        || matches!(of_rest, Some(AskError::Refused { status: 401 | 403, .. }));
    let is_unacknowledged = matches!(of_storage, Some(ClientError::Unacknowledged { .. }));
    let is_unproven = matches!(of_log, Some(ron_registry::client::ClientError::Unproven(_)));
    let is_absent = matches!(of_storage, Some(ClientError::NotFound { .. }));
    let is_pinned = matches!(of_storage, Some(ClientError::Refused { code, .. }) if code == "pinned");
    let is_empty = matches!(of_log, Some(ron_registry::client::ClientError::Refused { code, words, .. })
        if code == "no_such_entry" && words.contains("version 0"));
    let is_unnamed = matches!(of_index, Some(ron_index::client::ClientError::Refused { code, .. }) if code == "no_such_name");
    let of_own_log = error.downcast_ref::<ron_registry::RegistryError>();
    let is_untrusted = matches!(of_own_log, Some(ron_registry::RegistryError::Untrusted { .. }));
    match () {
        () if is_untrusted => Some(
            "if `node.key` or `registry.origin` is not the one that the log began with, give it back its name: registry.origin = \
             \"refd/OLD_NODE_ID\"",
        ),
        () if is_away => Some("is `refd run` running there? another node is chosen with --node URL"),
        () if is_waiting("the log of names") => Some(
            "`refd registry init` begins a log; with registry.follow a node reads one that another keeps; a `b3:` address or a CID \
             needs neither",
        ),
        () if is_waiting("knows no other") => {
            Some("give the node another one to ask: `refd run --seed CONTACT`, or dht.seeds in its settings")
        }
        () if is_unacknowledged => Some(
            "it is kept there and copied when others answer (`refd repair status`); putting it again is harmless",
        ),
        () if is_pinned => Some("`refd unpin ID` takes the pin back"),
        () if is_empty => Some("`refd registry init` begins it"),
        () if is_unnamed => {
            Some("`refd registry log` lists what was decided; `refd registry propose` proposes more")
        }
        () if is_unproven => {
            Some("is --log-key the key of this log? it is what `refd registry init` printed")
        }
        () if is_absent => Some("`refd ls` lists what is there; another node is chosen with --node URL"),
        () if is_denied => Some(
            "the node's token is in the file `token` of its data directory: name it with --token-file, or the directory with \
             --data-dir",
        ),
        _ => None,
    }
}

/// What the process ends with.
pub(crate) fn exit_code(error: &(dyn Error + 'static)) -> u8 {
    if let Some(ends) = error.downcast_ref::<Ends>() {
        return ends.code;
    }
    if error.is::<Spoilt>() || error.is::<crate::backup::Damaged>() || error.is::<crate::registry::Caught>() {
        return 7;
    }
    if let Some(TreeError::Malformed { .. } | TreeError::Astray { .. }) = error.downcast_ref() {
        return 7;
    }
    if let Some(error) = error.downcast_ref::<ron_registry::client::ClientError>() {
        return of_registry(error);
    }
    if error.is::<crate::repair::Unmet>() {
        return 6;
    }
    if let Some(error) = error.downcast_ref::<AskError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<ron_index::client::ClientError>() {
        return of_index(error);
    }
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Address { .. }) => 2,
        Some(ClientError::NotFound { .. }) => 3,
        Some(ClientError::Refused { status: 401 | 403, .. }) => 4,
        Some(ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. }) => 5,
        Some(ClientError::Refused { status: 504, .. }) => 5,
        Some(
            ClientError::Busy { .. }
            | ClientError::Unacknowledged { .. }
            | ClientError::Refused { status: 507, .. },
        ) => 6,
        Some(ClientError::Lied { .. } | ClientError::Misnamed { .. } | ClientError::Stranger { .. }) => 7,
        _ => 1,
    }
}

fn of_registry(error: &ron_registry::client::ClientError) -> u8 {
    use ron_registry::client::ClientError;
    match error {
        ClientError::Address { .. } => 2,
        ClientError::Refused { status: 404 | 410, .. } => 3,
        ClientError::Refused { status: 401 | 403, .. } => 4,
        ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => 5,
        ClientError::Refused { status: 504, .. } => 5,
        ClientError::Refused { status: 429 | 503 | 507, .. } => 6,
        ClientError::Stranger { .. } | ClientError::Unproven(_) => 7,
        _ => 1,
    }
}

fn of_index(error: &ron_index::client::ClientError) -> u8 {
    use ron_index::client::ClientError;
    match error {
        ClientError::Address { .. } | ClientError::Refused { status: 400, .. } => 2,
        ClientError::Refused { status: 404, .. } => 3,
        ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => 5,
        ClientError::Refused { status: 504, .. } => 5,
        ClientError::Refused { status: 429 | 503, .. } => 6,
        ClientError::Stranger { .. } => 7,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `refd get report` was told that it is no lowercase base32.
    #[test]
    fn what_is_no_id_is_told_what_one_is() {
        let hex = "1f".repeat(32);
        assert!(content_id(&format!("b3:{hex}")).is_ok());
        assert_eq!(content_id(&hex), Err(format!("`b3:` is missing: b3:{hex}")));
        for name in ["report", "tools/report", "b", ""] {
            assert!(content_id(name).is_err_and(|words| words.contains("refd registry get NAME")), "{name}");
        }
        assert!(content_id("b3:12").is_err_and(|words| words.contains("64 hex digits")));
    }

    #[test]
    fn what_is_wanted_is_an_object_or_a_name() {
        let id = ContentId::of(b"x");
        for text in [id.to_string(), id.to_cid()] {
            assert_eq!(wanted(&text), Ok(ron_index::Key::Content(id)));
        }
        assert!(matches!(wanted("tools/compiler"), Ok(ron_index::Key::Name(_))));
        for (wrong, why) in [
            ("b3:1", "not a content address"),
            ("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnNvdG", "not BLAKE3"),
            ("", "1 to 512 bytes"),
        ] {
            let said = wanted(wrong).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }

    #[test]
    fn ranges_are_read_as_people_write_them() {
        assert_eq!(range("0-99"), Ok((0, Some(99))));
        assert_eq!(range("100-"), Ok((100, None)));
        for wrong in ["", "-", "5", "9-5", "a-b", "-5"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
