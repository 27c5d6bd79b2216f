//! The commands about objects: `refd put`, `get`, `stat`, `ls`, `rm`, `pin`, `unpin`, `gc`, `scrub`, `resolve`, `find`.
//!
//! Standard output has the results, for scripts, and nothing else; progress and errors are on standard error. Whatever is
//! fetched is verified here against its address, whoever sent it.

mod ending;
mod moving;
mod target;

use std::{
    error::Error,
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Subcommand;
use ron_core::{
    ContentId,
    net::{Contact, ContactError},
};
use ron_storage::client::{ClientError, PutOptions, RemoteStat};
use serde_json::json;

use self::moving::{bring, get, get_dir, get_file, put, put_dir};
pub(crate) use self::{
    ending::{CODES, Ends, exit_code, hint, of_status},
    moving::{Reading, fetch_file, part_of},
    target::Target,
};
use crate::{ask::AskError, repair::Wish, tree};

/// Objects in one page of a list.
const PAGE: usize = 500;

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

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Stores a file, a directory, or standard input, and prints its id.
    #[command(after_help = CODES)]
    Put {
        /// The file or directory; `-` is standard input. The id of a directory is that of a list of its files.
        file: PathBuf,
        /// Pins it, so that it is not garbage collected; for a directory, each of its files too.
        #[arg(long)]
        pin: bool,
        /// Returns before it is on disk.
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
        /// Its id, `b3:...` or a CID; or a name, which the node resolves.
        #[arg(value_name = "ID|NAME", value_parser = wanted)]
        id: ron_index::Key,
        /// Where to put it. An interrupted fetch leaves FILE.part, and continues from there when repeated.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Fetches the list of a directory instead of the directory itself, as is always done without --output.
        #[arg(long)]
        raw: bool,
        /// Fetches only these bytes, as in 0-99 or 100-. Not together with --output.
        #[arg(long, value_name = "FIRST-LAST", value_parser = range, conflicts_with = "output")]
        range: Option<(u64, Option<u64>)>,
        /// A node that has it. If the node that is asked does not have it, it fetches it from there; without this option, from
        /// the providers that the DHT finds.
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
        /// Begins after this id.
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
    /// Pins objects, so that neither `rm` nor garbage collection removes them.
    #[command(after_help = CODES)]
    Pin {
        /// Their ids.
        #[arg(required = true, value_parser = content_id)]
        ids: Vec<ContentId>,
        #[command(flatten)]
        target: Target,
    },
    /// Resolves a name, an address or a CID: prints its content, its size and its providers, best first.
    #[command(after_help = CODES)]
    Resolve {
        /// A name, `b3:...` or a CID.
        key: ron_index::Key,
        /// How many providers at most.
        #[arg(long, value_name = "COUNT", default_value_t = ron_index::LIMIT_DEFAULT)]
        limit: usize,
        /// Prints the factors of each provider's score.
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Finds providers of some content, and prints one per line.
    #[command(after_help = CODES)]
    Find {
        /// Its id: `b3:...` or a CID.
        #[arg(value_parser = ron_index::Key::content)]
        id: ron_index::Key,
        /// How many providers at most.
        #[arg(long, value_name = "COUNT", default_value_t = ron_index::LIMIT_DEFAULT)]
        limit: usize,
        #[command(flatten)]
        target: Target,
    },
    /// Garbage collects the objects that are not pinned and not new, and prints how many those were. On a node that keeps
    /// objects with others, claimed objects stay.
    #[command(after_help = CODES)]
    Gc {
        /// Only prints how much would be collected.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Reads and verifies every object, and lists damaged ones, which are no longer served. Exits with 7 if there are any.
    #[command(after_help = CODES)]
    Scrub {
        #[command(flatten)]
        target: Target,
    },
    /// Unpins objects.
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
                if target.is_json() {
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
            say_stat(&stat, target.is_json())
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
            say_answer(&answer, target.is_json())
        }
        Request::Find { id, limit, target } => {
            let answer = target.index()?.providers(&id, limit, target.deadline()).await?;
            let none = Vec::new();
            let mut out = io::stdout().lock();
            for provider in answer["providers"].as_array().unwrap_or(&none) {
                if target.is_json() {
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
            say_counts(&said, &["objects", "bytes", "kept"], target.is_json())
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
    say_counts(&said, &["objects", "bytes", "journal_damage"], target.is_json())?;
    let mut bad = said["journal_damage"].as_u64().unwrap_or_default();
    for word in ["damaged", "unreadable"] {
        for id in said[word].as_array().into_iter().flatten().filter_map(|id| id.as_str()) {
            bad += 1;
            if !target.is_json() {
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
    if target.is_json() {
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
            if target.is_json() {
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
