//! What the routes answer and take, as JSON: the same words for the server and the client.
//!
//! Whatever is signed or hashed is in it as its own bytes, in base64; the rest is for people and for programs that only
//! want to look.

use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Serialize};

use crate::{
    Action, Content, Entry, Head, Outcome, PendingProposal, Policy, Proposal, Receipt, RecordedApproval,
    RegistryUpdated, Right,
};

/// Where a log ends, and what else one has to know to propose to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeadBody {
    /// Which log it is.
    pub origin: String,
    /// The key that its checkpoints are signed with.
    pub log_key: String,
    /// The last entry; 0 before the beginning.
    pub version: u64,
    /// The chain hash of it, in hex.
    pub hash: String,
    /// The first entry that is still there.
    pub first: u64,
    /// The epoch of the policy.
    pub epoch: u64,
    /// Names there ever were.
    pub names: u64,
    /// Whether it takes no proposals, because it follows another node.
    pub follows: bool,
    /// The signed note.
    pub checkpoint: String,
}

/// Which snapshot there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SnapshotBody {
    /// The last entry that it covers.
    pub version: u64,
    /// How many parts it has.
    pub parts: u32,
}

/// A head that a proposal fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpectBody {
    /// The entry.
    pub version: u64,
    /// Its chain hash.
    pub hash: String,
}

impl From<Head> for ExpectBody {
    fn from(head: Head) -> Self {
        ExpectBody { version: head.version, hash: head.hash.to_string() }
    }
}

/// A proposal to look at, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProposalBody {
    /// What it is called.
    pub id: String,
    /// `found`, `bind`, `retire` or `rotate`.
    pub action: String,
    /// The name it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The hash of what the name would stand for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b3: Option<String>,
    /// The content itself, if the entry holds it: base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Which entry must have spoken last about the name.
    pub prior: u64,
    /// The policy that would be in force from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyBody>,
    /// The epoch it is for.
    pub epoch: u64,
    /// Until when it can be committed, in milliseconds of the Unix epoch.
    pub expires: u64,
    /// The head it must follow, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_head: Option<ExpectBody>,
    /// Its bytes: what signers sign over.
    pub bytes: String,
}

impl From<&Proposal> for ProposalBody {
    fn from(proposal: &Proposal) -> Self {
        let action = proposal.action();
        let (word, b3, payload, policy) = match action {
            Action::Found { policy } => ("found", None, None, Some(PolicyBody::from(&**policy))),
            Action::Rotate { policy } => ("rotate", None, None, Some(PolicyBody::from(&**policy))),
            Action::Retire { .. } => ("retire", None, None, None),
            Action::Bind { content, .. } => {
                let payload = match content {
                    Content::Payload(bytes) => Some(BASE64.encode(bytes)),
                    Content::Artifact(_) => None,
                };
                ("bind", Some(content.id().to_string()), payload, None)
            }
        };
        ProposalBody {
            id: proposal.id().to_string(),
            action: word.to_owned(),
            name: action.name().map(ToString::to_string),
            b3,
            payload,
            prior: action.prior(),
            policy,
            epoch: proposal.epoch(),
            expires: proposal.expires(),
            expect_head: proposal.expect_head().map(ExpectBody::from),
            bytes: BASE64.encode(proposal.encoded()),
        }
    }
}

/// Who decides what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PolicyBody {
    /// Who may approve.
    pub signers: Vec<SignerBody>,
    /// Groups of signers, of which some must agree.
    pub groups: Vec<GroupBody>,
    /// Which group decides about what.
    pub rules: Vec<RuleBody>,
}

/// Somebody who may approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SignerBody {
    /// What people call it.
    pub name: String,
    /// Its ed25519 key, in hex.
    pub key: String,
    /// From when on its approvals no longer count, in milliseconds of the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

/// A group of signers and of other groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GroupBody {
    /// What rules call it.
    pub name: String,
    /// How many must agree.
    pub needed: u32,
    /// Of these.
    pub members: Vec<String>,
}

/// Which group decides what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RuleBody {
    /// `bind`, `retire` or `rotate`.
    pub right: String,
    /// For names that begin with this.
    pub prefix: String,
    /// The group.
    pub quorum: String,
}

impl From<&Policy> for PolicyBody {
    fn from(policy: &Policy) -> Self {
        let right = |right| match right {
            Right::Bind => "bind",
            Right::Retire => "retire",
            Right::Rotate => "rotate",
        };
        let signers = policy.signers().iter().map(|signer| SignerBody {
            name: signer.name.clone(),
            key: HEXLOWER.encode(signer.key.as_bytes()),
            expires: signer.expires,
        });
        let groups = policy.groups().iter().map(|group| GroupBody {
            name: group.name.clone(),
            needed: group.needed,
            members: group.members.clone(),
        });
        let rules = policy.rules().iter().map(|rule| RuleBody {
            right: right(rule.right).to_owned(),
            prefix: rule.prefix.clone(),
            quorum: rule.quorum.clone(),
        });
        PolicyBody { signers: signers.collect(), groups: groups.collect(), rules: rules.collect() }
    }
}

/// The policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyInForce {
    /// The epoch that began with it: 1 for the first policy.
    pub epoch: u64,
    /// The policy.
    pub policy: PolicyBody,
    /// Its bytes.
    pub bytes: String,
}

/// Somebody's word for a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApprovalBody {
    /// The signer's key, in hex.
    pub key: String,
    /// Until when it counts.
    pub expires: u64,
    /// The signature, in hex.
    pub signature: String,
}

impl From<&RecordedApproval> for ApprovalBody {
    fn from(approval: &RecordedApproval) -> Self {
        ApprovalBody {
            key: HEXLOWER.encode(approval.key.as_bytes()),
            expires: approval.expires,
            signature: HEXLOWER.encode(approval.signature.as_bytes()),
        }
    }
}

/// An entry to look at. Its bytes come with `accept: application/cbor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EntryBody {
    /// Its version.
    pub version: u64,
    /// The chain hash with it.
    pub hash: String,
    /// The chain hash before it.
    pub previous: String,
    /// When it was committed, in milliseconds of the Unix epoch.
    pub time: u64,
    /// The root of the names with it.
    pub names: String,
    /// What was decided.
    pub proposal: ProposalBody,
    /// Who approved it.
    pub approvals: Vec<ApprovalBody>,
}

impl From<&Entry> for EntryBody {
    fn from(entry: &Entry) -> Self {
        let before = Head { version: entry.version() - 1, hash: entry.previous() };
        EntryBody {
            version: entry.version(),
            hash: before.next(entry.encoded()).hash.to_string(),
            previous: entry.previous().to_string(),
            time: entry.time(),
            names: HEXLOWER.encode(entry.names().as_bytes()),
            proposal: ProposalBody::from(entry.proposal()),
            approvals: entry.approvals().iter().map(ApprovalBody::from).collect(),
        }
    }
}

/// Some entries that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EntriesBody {
    /// The entries.
    pub entries: Vec<EntryBody>,
    /// Where to go on, if there is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// How a proposal stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutcomeBody {
    /// What was proposed.
    pub proposal: String,
    /// `pending` or `committed`.
    pub state: String,
    /// Who could still approve it.
    pub missing: Vec<String>,
    /// The entry, once it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// A signed head that covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl From<&Outcome> for OutcomeBody {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Committed(receipt) => OutcomeBody::from(receipt),
            Outcome::Pending { proposal, missing } => OutcomeBody {
                proposal: proposal.to_string(),
                state: "pending".to_owned(),
                missing: missing.clone(),
                version: None,
                checkpoint: None,
            },
        }
    }
}

impl From<&Receipt> for OutcomeBody {
    fn from(receipt: &Receipt) -> Self {
        OutcomeBody {
            proposal: receipt.proposal.to_string(),
            state: "committed".to_owned(),
            missing: Vec::new(),
            version: Some(receipt.version),
            checkpoint: Some(receipt.checkpoint.to_string()),
        }
    }
}

/// A proposal that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PendingBody {
    /// What was proposed.
    pub proposal: ProposalBody,
    /// Who has approved it.
    pub approvals: Vec<ApprovalBody>,
    /// Signers who could still approve it.
    pub missing: Vec<String>,
}

impl From<&PendingProposal> for PendingBody {
    fn from(pending: &PendingProposal) -> Self {
        PendingBody {
            proposal: ProposalBody::from(&pending.proposal),
            approvals: pending.approvals.iter().map(ApprovalBody::from).collect(),
            missing: pending.missing.clone(),
        }
    }
}

/// Some of the proposals that wait, in the order in which they expire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitingBody {
    /// The proposals.
    pub proposals: Vec<PendingBody>,
    /// What to go on after, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NameBody {
    /// The name.
    pub name: String,
    /// The entry that says so; none if it never stood for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The proposal in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
    /// What it stands for; none if it was retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b3: Option<String>,
    /// The proof against the root of names in the entry below, base64.
    pub proof: String,
    /// The last entry of the log, base64.
    pub entry: String,
    /// That it is the last: a proof file with the checkpoint in it.
    pub inclusion: String,
}

/// A proof that one log is the beginning of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConsistencyBody {
    /// Entries of the shorter.
    pub old: u64,
    /// Entries of the longer.
    pub new: u64,
    /// The hashes, base64 each.
    pub hashes: Vec<String>,
}

/// What was committed, in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UpdateBody {
    /// The entry.
    pub version: u64,
    /// The name it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the name stands for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b3: Option<String>,
    /// The proposal.
    pub proposal: String,
}

impl From<&RegistryUpdated> for UpdateBody {
    fn from(update: &RegistryUpdated) -> Self {
        UpdateBody {
            version: update.version,
            name: update.name.as_ref().map(ToString::to_string),
            b3: update.b3.map(|id| id.to_string()),
            proposal: update.proposal.to_string(),
        }
    }
}

/// A proposal with the approvals that there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmitBody {
    /// The proposal, base64.
    pub proposal: String,
    /// Approvals, base64 each.
    #[serde(default)]
    pub approvals: Vec<String>,
}

/// An approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ApproveBody {
    /// The approval, base64.
    pub approval: String,
}

/// The beginning of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FoundBody {
    /// The first policy, base64.
    pub policy: String,
}

/// The entries that bound a name to some content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VersionsBody {
    /// The content.
    pub b3: String,
    /// The entries, the oldest first.
    pub versions: Vec<u64>,
}
