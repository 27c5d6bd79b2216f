//! The runtime contract: what a part of a long-running async program owes the rest of it.
//!
//! Every queue is bounded and says no, every wait has an end, every task is tracked and joined, every refusal is
//! typed and counted, and what is acknowledged is on disk. This crate holds those rules as types, so that a
//! subsystem gets them by construction. It knows nothing of what a subsystem is for.
//!
//! # A subsystem in forty lines
//!
//! A builder, a pool, a handle, a `shutdown()`. Bounded and measured queueing, typed refusals, deadlines, panics that
//! become answers, drain then abort, readiness and metrics come with it:
//!
//! ```
#![doc = include_str!("../examples/own_subsystem.rs")]
//! ```
//!
//! # The parts
//!
//! | For | Use |
//! |---|---|
//! | starting, restarting and stopping tasks and threads | [`Supervisor`], [`Stop`], [`Restart`] |
//! | handing work to one of several consumers | [`Lane`], [`Pool`], [`PriorityInbox`] |
//! | telling many readers something | [`Feed`] |
//! | settings and views that change while running | [`Snapshot`] |
//! | bounding time | [`Deadline`], [`Backoff`], [`Retry`] |
//! | bounding load | [`Gate`], [`Pacer`], [`MemoryBudget`], [`Breaker`] |
//! | refusing | [`CallError`], [`refusals!`] |
//! | saying how things are | [`Ready`], [`Metrics`], [`Inventory`] |
//! | short critical sections | [`Lock`] |
//! | not losing what was acknowledged | [`journal::Journal`], [`disk::Disk`] |
//! | naming content and nodes | [`ContentId`], [`NodeId`] |
//! | deciding who may | [`auth::Authorizer`], [`auth::TokenFile`] |
//! | serving HTTP | `http::Server`, with the feature `http` |
//! | being a node on the wire (feature `net`) | `net::Identity`, `net::Endpoint`, `net::oap` |
//! | calling other nodes and answering them (feature `net`) | `net::rpc::Peers`, `net::rpc::Service` |
//! | the same over QUIC (feature `quic`) | `net::EndpointBuilder::quic`, `net::Quic` |
//!
//! # What it refuses to do
//!
//! It creates no runtime, installs no signal handler, no subscriber and no global registry, opens no socket that it
//! was not told to, and never ends the process. A host owns all of these. There is no unbounded queue, no task that
//! nobody joins and no `Drop` that blocks; if you need one, this is the wrong crate.
//!
//! # Tracing
//!
//! Names are stable. Each task runs in a span `ron.task` with the fields `kind` and `supervisor`. Events: `phase`,
//! `trying again` and `dropped without shutdown, asking its tasks to stop` (debug), `restarting` (info), `task failed`,
//! `cut off at the drain deadline` and `a subscriber is too slow` (warn), `task panicked`, `job panicked`, `a stop hook
//! panicked`, `journal cannot append` and `fatal` (error). The modules `net` and `http` add their own.
//!
//! # Features
//!
//! None is on by default. `net` adds the module `net`: identity, authenticated links over TCP and TLS 1.3, OAP/1 frames
//! and calls between nodes; `quic` adds links over QUIC to it, with the same identities and limits. `http` adds the module
//! `http`, serving an axum router that slow or hostile clients cannot hurt. `sim` adds the module `sim`: a disk, a network
//! and whole nodes that fail out of one seed, for testing your own program. `planted-bugs` is for the tests of this family.

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

pub mod auth;
mod backoff;
mod breaker;
mod config;
mod deadline;
pub mod disk;
mod error;
mod feed;
mod gate;
#[cfg(feature = "http")]
pub mod http;
mod id;
mod inventory;
pub mod journal;
mod lane;
mod lock;
mod metrics;
#[cfg(all(test, ron_loom))]
mod models;
#[cfg(all(feature = "net", not(ron_loom)))]
pub mod net;
mod pacer;
mod permits;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
#[allow(unreachable_pub, dead_code, reason = "public with the feature, a constant `false` without")]
mod planted;
mod pool;
mod queue;
mod ready;
mod retry;
mod roll;
mod shutdown;
#[cfg(feature = "sim")]
pub mod sim;
mod snapshot;
mod supervisor;
mod sync;

/// The router that `http::Server` serves, in the version this crate uses; `axum::http` has heads and status codes.
#[cfg(feature = "http")]
pub use axum;
/// The hash of what happened in a simulated world, in the version this crate uses.
#[cfg(feature = "sim")]
pub use blake3;
/// The bytes that journals, frames and calls carry, in the version this crate uses.
pub use bytes;
/// The generator that chances are drawn from, in the version this crate uses.
pub use fastrand;
/// What [`net::cbor`] reads from and writes to, in the version this crate uses.
#[cfg(all(feature = "net", not(ron_loom)))]
pub use minicbor;
/// The registry that [`Metrics`] and [`Ready`] export to, in the version this crate uses.
pub use prometheus_client;
/// What documents of routes are made of, in the version this crate uses.
#[cfg(feature = "http")]
pub use serde_json;

pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::{Admission, Breaker, BreakerOpen, BreakerSettings, BreakerState, Probing};
pub use config::{Capacity, ConfigError, Ratio};
pub use deadline::{Deadline, now};
pub use error::{CallError, ErrorKind, Refusal};
pub use feed::{Event, Feed, Subscriber};
pub use gate::{ClientKey, Gate, GateLimits, GateSettings, Pass};
pub use id::{ContentId, Distance, IdError, NodeId};
pub use inventory::{Inventory, LaneKind, LaneSpec, LockSpec, Overflow, TaskSpec};
pub use lane::{Held, Inbox, Lane, PriorityInbox, Reply};
pub use lock::{Lock, LockGuard};
pub use metrics::{
    Counter, Depth, Gauge, GaugeSpec, Histogram, HistogramSpec, Metrics, OwnCounter, QueueState, Tally,
};
pub use pacer::Pacer;
pub use permits::MemoryBudget;
pub use pool::{Pool, PoolSpec};
pub use ready::{Affects, GateStatus, Ready, ReadyGate, ReadyStatus};
pub use retry::{Retry, RetryBudget};
pub use shutdown::{Phase, Stop, StopHook, Stopped};
pub use snapshot::{Snapshot, Watch};
pub use supervisor::{Fatal, Restart, Spawner, Supervisor, SupervisorBuilder, Task, TaskEnd, TaskOutput};

/// What this crate may bring to a running program: its queues, tasks and locks. Each crate of the family has one.
#[must_use]
pub fn inventory() -> Inventory {
    Inventory::of(&[journal::COMMITS], &[journal::WRITER], &gate::LOCKS)
}
