//! How a command ends: the codes that scripts go by, and what people can do about it.

use std::error::Error;

use ron_storage::client::ClientError;

use super::moving::Spoilt;
use crate::{ask::AskError, tree::TreeError};

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
    pub(super) fn damaged(words: String) -> Self {
        Ends { code: 7, words }
    }
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
    let is_answering = matches!(of_rest, Some(AskError::Refused { code, .. }) if code == "node_answers");
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
        () if is_answering => Some("`refd decommission` does that, asked of that node"),
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
        Some(ClientError::Address { .. } | ClientError::Argument { .. }) => 2,
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

/// What a command ends with that a node refused with this status.
pub(crate) fn of_status(status: u16) -> u8 {
    match status {
        404 | 410 => 3,
        401 | 403 => 4,
        504 => 5,
        429 | 503 | 507 => 6,
        _ => 1,
    }
}

fn of_registry(error: &ron_registry::client::ClientError) -> u8 {
    use ron_registry::client::ClientError;
    match error {
        ClientError::Address { .. } => 2,
        ClientError::Refused { status, .. } => of_status(*status),
        ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => 5,
        ClientError::Stranger { .. } | ClientError::Unproven(_) => 7,
        _ => 1,
    }
}

fn of_index(error: &ron_index::client::ClientError) -> u8 {
    use ron_index::client::ClientError;
    match error {
        ClientError::Address { .. } | ClientError::Refused { status: 400, .. } => 2,
        ClientError::Refused { status, .. } => of_status(*status),
        ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => 5,
        ClientError::Stranger { .. } => 7,
        _ => 1,
    }
}
