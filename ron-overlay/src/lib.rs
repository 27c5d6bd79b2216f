//! Sessions and gossip that never lose silently.
//!
//! A node joins topics, publishes to everybody on them and hears what others publish; it asks single peers and answers
//! them. Messages travel on trees that follow measured times and cost about one copy per node. Under overload nothing
//! grows: whoever publishes is told `Busy` and when to try again, whoever reads too slowly is told exactly what it
//! missed, and every frame that is shed is counted on both sides.
//!
//! # Two nodes and a topic
//!
//! Over TLS on the loopback interface: one publishes, the other hears it.
//!
//! ```
//! use std::{error::Error, time::Duration};
//!
//! use ron_core::{Deadline, Supervisor, net::{Endpoint, Identity}};
//! use ron_overlay::Overlay;
//!
//! async fn start(host: &Supervisor) -> Result<Overlay, Box<dyn Error>> {
//!     let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
//!     Ok(Overlay::builder().start(&endpoint, host).await?)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//!     let (first, second) = (start(&host).await?, start(&host).await?);
//!     let here = first.topic("news").join([], soon()).await?;
//!     let there = second.topic("news").join([first.contact()], soon()).await?;
//!     let mut heard = there.subscribe(soon()).await?;
//!     here.joined(soon()).await?;
//!     there.joined(soon()).await?;
//!
//!     let receipt = here.publish("hello", soon()).await?;
//!     let message = heard.next().await?.expect("the topic goes on");
//!     assert_eq!((message.payload(), message.id()), (&"hello".into(), receipt.id));
//!     host.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # A validator, a request and a stream
//!
//! The types of handlers are those of [`ron_core::net::rpc`]. A node never hears its own messages, and is not asked by its
//! own validator.
//!
//! ```
//! # use std::{error::Error, time::Duration};
//! # use ron_core::{Deadline, Supervisor, net::{Endpoint, Identity}};
//! use ron_core::net::rpc::{Handling, Request};
//! use ron_overlay::{Delivery, Message, Overlay, OverlayError, Verdict};
//!
//! # async fn start(host: &Supervisor) -> Result<Overlay, Box<dyn Error>> {
//! #     let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
//! #     Ok(Overlay::builder().start(&endpoint, host).await?)
//! # }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn Error>> {
//! # let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//! # let (first, second) = (start(&host).await?, start(&host).await?);
//! // A closure that judges has to say what it takes: `&Message`.
//! let polite = |message: &Message| {
//!     if message.payload().starts_with(b"bad") { Verdict::Reject } else { Verdict::Accept }
//! };
//! let here = first.topic("news").join([], soon()).await?;
//! let there = second.topic("news").validator(polite).join([first.contact()], soon()).await?;
//! here.joined(soon()).await?;
//!
//! // Room for two, and nobody reads for a while: what does not wait is told by publisher and numbers.
//! let mut slow = there.subscribe_with(2, soon()).await?;
//! for number in 0..5u8 {
//!     match here.publish(vec![number], soon()).await {
//!         Ok(_) => {}
//!         Err(OverlayError::Busy { retry_after, .. }) => tokio::time::sleep(retry_after).await, // this one was not sent
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # tokio::time::sleep(Duration::from_millis(200)).await;
//! while let Some(delivery) = slow.try_recv() {
//!     match delivery {
//!         Delivery::Message { message, .. } => println!("{:?}", message.payload()),
//!         Delivery::Missed(gap) => println!("too slow for {:?} of {:?}", gap.seqs, gap.publisher),
//!         other => println!("{other:?}"),
//!     }
//! }
//!
//! // Both ends agree on numbers for what may be asked.
//! second.handle(7, |request: Request| Handling::Done(Ok(request.body().clone())))?;
//! second.handle(8, |request: Request| {
//!     Handling::Pending(Box::pin(async move {
//!         request.send("in ".into()).await?;
//!         Ok("parts".into())
//!     }))
//! })?;
//! assert_eq!(first.request(second.contact(), 7, "ping", soon()).await?, "ping");
//! let mut parts = first.stream(second.contact(), 8, "", soon()).await?;
//! while let Some(part) = parts.next().await? {
//!     println!("{part:?}");
//! }
//! there.leave(soon()).await?;
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! | To | Use |
//! |---|---|
//! | be part of a topic | [`Overlay::topic`], [`TopicBuilder::join`] with contacts (`NODE_ID@IP:PORT`), or a [`PeerSource`] |
//! | say something to all | [`Topic::publish`]: a [`Receipt`], or `Busy` with a time; [`Topic::publish_when_free`] waits for room |
//! | hear what others say | [`Topic::subscribe`]: messages, gaps and what was missed, as [`Delivery`] |
//! | keep bad messages from spreading | [`TopicBuilder::validator`], which accepts, rejects or ignores |
//! | ask one peer something | [`Overlay::request`], [`Overlay::stream`]; [`Overlay::handle`] answers |
//! | see how it is doing | [`Overlay::peers`], [`Overlay::topics`], [`Overlay::events`], [`Overlay::ready`], the metrics in `docs/operating.md`, the router of `http` (feature `http`) |
//! | change settings while it runs | [`Overlay::reload`] |
//! | go | [`Topic::leave`], [`Overlay::shutdown`] |
//!
//! # What it promises
//!
//! * A message that was published reaches every node of the topic, or those that it does not reach are told of a gap: it
//!   is pushed, announced, asked for and at last found by digests.
//! * What a subscriber gets was signed by its publisher, unless the topic is [unsigned](TopicBuilder::unsigned), and
//!   accepted by the validator. Messages of one publisher are numbered; they may overtake each other.
//! * Every queue is bounded in frames and in bytes, for each peer and for all: memory has a ceiling that follows from
//!   [`Settings`].
//! * A peer that floods, forges or stalls loses its own place and nobody else's.
//!
//! # What it refuses to do
//!
//! It opens no socket (the host's [`Endpoint`](ron_core::net::Endpoint) does), finds no peers by itself (a host or a
//! [`PeerSource`] names them), stores nothing on disk, and keeps messages only briefly for those who missed them: about
//! half a minute, and the last of each publisher about an hour. There is no order between publishers. Each message carries
//! the time at which its publisher began to count. If a clock was set back before a restart, neighbours tell the publisher
//! which later beginning they know, and it goes on above that. Only a clock that had been more than a day ahead is still
//! refused, counted as `stale`, until others have forgotten it.
//!
//! `docs/architecture.md` has the map of its parts, `docs/formats.md` the words that nodes exchange.

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod checks;
mod egress;
mod engine;
mod error;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod ingress;
// Public for the fuzz targets and the simulation, and no part of the interface: what hosts see is exported below.
#[doc(hidden)]
pub mod logic;
mod metrics;
mod node;
mod session;
mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod source;
mod subscription;
mod topic;

/// Supervisors, deadlines, ids and what it passes on in turn, in the version this crate uses.
pub use ron_core;

pub use checks::{Validator, Verdict};
pub use error::OverlayError;
pub use handle::{ALPN, Builder, Event, Overlay, QueueStatus};
pub use logic::{
    gossip::{Counts, GossipSettings},
    message::{Author, Message, MessageId, TopicId},
    parts::PartsSettings,
    publishers::{Gap, Serial},
    score::ScoreSettings,
    store::StoreSettings,
    trees::TreeSettings,
    view::ViewSettings,
};
pub use ron_core::{
    Overflow,
    net::{Contact, ContactError},
};
pub use session::PeerStatus;
pub use settings::{PeerSettings, Settings};
pub use source::PeerSource;
pub use subscription::{Delivery, Subscription};
pub use topic::{Receipt, Topic, TopicBuilder, TopicStatus};

/// What a node may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    ron_core::Inventory::of(
        &[
            handle::LINKS,
            engine::LOCAL,
            engine::CONTROL,
            engine::INGRESS,
            egress::EGRESS,
            checks::CHECKS,
            subscription::SUBSCRIPTION,
            node::EVENTS,
        ],
        &[engine::ENGINE, checks::CHECKER, source::JANITOR, node::DIALER],
        &[node::DIRECTORY, ingress::QUEUE, node::STANDING, node::PARTS, egress::QUEUE, subscription::MISSED],
    )
}
