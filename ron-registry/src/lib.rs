//! A governed, append-only log: what is in it was approved by a quorum, and every answer has a proof.
//!
//! Somebody proposes that a name stand for something, signers approve, and when there are enough of them it is committed:
//! durable, covered by a signed head, and provable to anybody who has the log's key. The tree, the checkpoints and the
//! proof files are those of RFC 6962 and C2SP, so existing transparency tooling reads them.
//!
//! # A registry in twenty lines
//!
//! Two of three signers bind a name; somebody who has only the log's key checks what it stands for.
//!
//! ```
//! use std::{error::Error, path::Path, sync::Arc, time::Duration};
//!
//! use ron_core::{Deadline, Supervisor, disk::RealDisk, net::Identity};
//! use ron_registry::{
//!     Content, LogTrust, Outcome, Policy, Registry, Signer, store::{JournalStore, JournalStoreSettings},
//! };
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let (host, dir) = (Supervisor::new("host"), tempfile::tempdir()?);
//!     let soon = || Deadline::after(Duration::from_secs(5));
//!     let disk = Arc::new(RealDisk::open(dir.path())?);
//!     let store = JournalStore::open(&host, disk, Path::new("log"), JournalStoreSettings::default()).await?;
//!     let log_key = [7; 32]; // 32 secret bytes of your own
//!     let registry = Registry::builder("example.com/log", log_key).start(Arc::new(store), &host).await?;
//!
//!     let people = [Identity::generate()?, Identity::generate()?, Identity::generate()?];
//!     let signer = |at: usize| Signer { name: format!("p{at}"), key: people[at].public_key(), expires: None };
//!     registry.found(Policy::of(2, (0..3).map(signer).collect())?, soon()).await?;
//!
//!     let name: ron_registry::Name = "tools/compiler".parse()?;
//!     let proposal = registry.draft_bind(name.clone(), Content::Payload("v1".into()), Duration::from_secs(3600))?;
//!     registry.propose(proposal.clone(), soon()).await?;
//!     registry.approve(proposal.approve(&people[0], proposal.expires()), soon()).await?;
//!     let last = registry.approve(proposal.approve(&people[2], proposal.expires()), soon()).await?;
//!     assert!(matches!(last, Outcome::Committed(receipt) if receipt.version == 2));
//!
//!     let trust = LogTrust::new(registry.log_key());
//!     let latest = registry.name(&name)?.verify(&name, &trust)?.expect("it was bound");
//!     assert_eq!(latest.version, 2);
//!     host.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # What it does
//!
//! | To | Use |
//! |---|---|
//! | begin a log | [`Registry::builder`], [`Registry::found`] with a [`Policy`] |
//! | change something | [`Registry::draft_bind`], [`Registry::propose`], [`Registry::approve`]; [`Registry::submit`] in one call; [`Action::Retire`], [`Action::Rotate`] |
//! | see who is missing | [`Outcome::Pending`], [`Registry::pending`] |
//! | know what a name stands for, or that it stands for nothing | [`Registry::name`], checked by [`NameAnswer::verify`] |
//! | prove an entry offline | [`Registry::prove`], a [`ProofFile`] |
//! | read and follow | [`Registry::entries`], [`Registry::updates`], [`Registry::tile`], [`Registry::prove_consistency`] |
//! | let go of old entries | [`Retention`], [`Registry::prune`] |
//! | notice a log that was rolled back | [`Builder::seen`] |
//! | follow a log that somebody else commits to | [`Registry::follower`], [`net::Links`]; [`Registry::evidence`] |
//! | find what bound some content | [`Registry::versions_of`] |
//! | have heads signed by witnesses, and follow only what they have signed | `Builder::witnesses`, `Witness` (feature `client`), [`Registry::cosigned`], [`LogTrust::witnessed_by`] |
//! | serve it over HTTP, and ask such a server | `http` and `client`, features of these names |
//! | keep it elsewhere | [`store::LogStore`], and `store::conformance` (feature `conformance`) |
//!
//! # What it promises
//!
//! * A receipt means durable and covered by a signed head. After a crash exactly what was acknowledged is there, and
//!   perhaps what was about to be.
//! * Fewer keys than the policy wants never decide, whatever else they send; nothing that was approved is used twice.
//! * The same proposal again gives the same receipt: of the latest for a name always, of others for the last 65 536.
//! * No two entries have one version, however many committers share a store.
//! * What is pruned is below a signed head, and everything after it is still proven against every later head.
//!
//! # What it refuses to do
//!
//! It holds no signer's key and decides nothing by itself. It keeps no content larger than 48 KiB: name it by its hash. It
//! stops no log from showing two faces to two readers; only witnesses do, which `Builder::witnesses` asks (feature `client`) and
//! [`LogTrust::witnessed_by`] wants. Opening after a crash reads every entry that has not been pruned. A new
//! follower of a log that was pruned starts from its snapshot: that the entries before it were decided as the policy wanted is
//! then the log's own word, and that of its witnesses.

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod actor;
mod batch;
mod behind;
mod builder;
#[cfg(feature = "client")]
pub mod client;
mod error;
mod follow;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod index;
#[cfg(any(feature = "client", feature = "http"))]
pub mod json;
// Public for the fuzz targets; what hosts need of it is exported below.
#[doc(hidden)]
pub mod logic;
mod memo;
mod metrics;
pub mod net;
mod settings;
mod shared;
pub mod store;
mod updates;
mod upkeep;
#[cfg(feature = "client")]
mod witness;

/// Supervisors, deadlines, ids and what it passes on in turn, in the version this crate uses.
pub use ron_core;

pub use builder::Builder;
pub use error::RegistryError;
pub use follow::{Evidence, EvidenceKind, SnapshotOffer, Source, SourceError};
pub use handle::{
    NameAnswer, NameAnswerError, Outcome, PendingProposal, Receipt, Registry, ReloadSource, Status,
};
pub use logic::{
    chain::{ChainHash, HashTextError, Head},
    checkpoint::{Checkpoint, CheckpointError, LogTrust, ProofFile, add_cosignatures, witness_request},
    entry::Entry,
    merkle::{ProofError, TreeHash, verify_consistency, verify_inclusion},
    names::{Latest, MapHash, NameProof, NameProofError},
    note::{KeyKind, Note, NoteError, NoteSignature, NoteSigner, NoteVerifier, SignedBy},
    policy::{Group, Policy, PolicyError, Right, Rule, Signer},
    proposal::{
        Action, Approval, Content, FormError, Name, Proposal, ProposalId, RecordedApproval, Statement,
        VerifiedApproval,
    },
    quorum::Limits,
    snapshot::{Snapshot, SnapshotError},
    state::Refused,
    tiles::{Level, Tile, TilePathError},
};
pub use settings::{Retention, Settings};
pub use shared::{Opened, RegistryUpdated};
pub use updates::Updates;
pub use upkeep::Publisher;
#[cfg(feature = "client")]
pub use witness::{Witness, WitnessError};

/// What a registry may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    ron_core::Inventory::of(
        &[builder::PROPOSALS, builder::APPROVALS, shared::COMMITTED, upkeep::RETENTION, net::LINKS],
        &[
            builder::COMMITTER,
            follow::FOLLOWER,
            upkeep::CHECKPOINTOR,
            upkeep::PRUNER,
            upkeep::VERIFIER,
            upkeep::PUBLISHER,
            index::INDEXER,
            #[cfg(feature = "client")]
            witness::WITNESSES,
        ],
        &[store::INDEX, shared::TREE, shared::MARKS, index::CONTENTS],
    )
}
