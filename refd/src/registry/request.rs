//! The commands of `refd registry` and their arguments.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};
use ron_core::ContentId;
use ron_registry::{Name, NoteVerifier};

use crate::client::{CODES, Target, content_id};

/// How long a proposal may wait, in hours: what nodes allow.
pub(super) const HOURS_MAX: u64 = 30 * 24;

/// A name, or what one is.
fn name(text: &str) -> Result<Name, String> {
    let rule = "a name is 1 to 255 visible ASCII characters, as in tools/report: parts between slashes, none of them empty, \
                `.` or `..`, and no `@` in front";
    text.parse().map_err(|_| rule.to_owned())
}

fn hours(text: &str) -> Result<u64, String> {
    let hours = text.parse().ok().filter(|hours| (1..=HOURS_MAX).contains(hours));
    hours.ok_or_else(|| format!("signers have 1 to {HOURS_MAX} hours"))
}

/// What is asked of a log.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Makes a key for a signer, if the file is not there, and prints its public half.
    #[command(after_help = CODES)]
    Key {
        /// The file.
        file: PathBuf,
        /// Answers as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Begins the log of a node, with a policy by which this many of these signers decide.
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
    /// Proposes what a name should stand for, and prints the proposal's id.
    #[command(after_help = CODES, group = ArgGroup::new("content").args(["artifact", "payload", "retire"]).required(true))]
    Propose {
        /// The name: visible ASCII characters, in parts between slashes.
        #[arg(value_parser = name)]
        name: Name,
        /// The name should stand for this object.
        #[arg(long, value_name = "ID", value_parser = content_id)]
        artifact: Option<ContentId>,
        /// The name should stand for this small file, which is kept in the log itself: up to 48 KiB.
        #[arg(long, value_name = "FILE")]
        payload: Option<PathBuf>,
        /// The name should stand for nothing any more.
        #[arg(long)]
        retire: bool,
        /// Hours that signers have.
        #[arg(long, default_value_t = 24, value_parser = hours)]
        hours: u64,
        /// Also writes the proposal here, for signers without a connection.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Proposes a new policy, and prints the proposal's id. It takes a quorum of the current policy and one of the new one.
    #[command(after_help = CODES)]
    Rotate {
        /// How many signers must agree from then on.
        #[arg(long)]
        needed: u32,
        /// A signer: a name, and its public key in hex or the file of its key. May be given several times.
        #[arg(long = "signer", value_name = "NAME=KEY", required = true)]
        signers: Vec<String>,
        /// Hours that signers have.
        #[arg(long, default_value_t = 24, value_parser = hours)]
        hours: u64,
        /// Also writes the proposal here, for signers without a connection.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows what a proposal would change, who has approved it and how many more it needs; without an id, all that wait. A file
    /// is shown without asking a node.
    #[command(after_help = CODES)]
    Diff {
        /// The proposal's id, or the file with it.
        proposal: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows a proposal and approves it. By its id, this needs the token of the node; from a file into a file, only the key.
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
    /// Sends a proposal and approvals that were written to files. Names approvals that do not count, and exits with 6 unless the
    /// proposal is in the log then.
    #[command(after_help = CODES)]
    Commit {
        /// The file with the proposal.
        proposal: PathBuf,
        /// Files with approvals.
        approvals: Vec<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Prints what a name stands for, verified by proof.
    #[command(after_help = CODES)]
    Get {
        /// The name.
        #[arg(value_parser = name)]
        name: Name,
        /// Writes the content itself to standard output, if the log holds it.
        #[arg(long)]
        payload: bool,
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
    /// Verifies such a proof without asking a node, and prints what was decided.
    #[command(after_help = CODES)]
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
