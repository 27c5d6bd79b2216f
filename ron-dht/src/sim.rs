//! Many nodes in one process, on one paused clock, out of one seed.
//!
//! [`SimNetwork`] carries questions between nodes: late, lossy, parted, and the same for the same seed. [`Testnet`] puts
//! whole nodes on it, with the tasks, queues and limits they have anywhere else, so what a program does with a DHT can
//! be tried on hundreds of nodes in a unit test, and an hour of their life passes in seconds.
//!
//! Write `#[tokio::test(start_paused = true)]` above such a test. On a clock that runs, or on several threads, it works
//! too, but no two runs are alike.
//!
//! ```
//! use std::{num::NonZeroUsize, time::Duration};
//! use ron_core::{ContentId, Deadline};
//! use ron_dht::sim::Testnet;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), ron_dht::DhtError> {
//! let mut net = Testnet::builder(30).seed(7).build().await;
//! let content = ContentId::of(b"a song");
//! let soon = || Deadline::after(Duration::from_secs(5));
//!
//! net.node(3).provide(content, soon()).await?;
//! net.kill(8).await;
//! net.silence(9);
//!
//! let mut found = net.node(20).find_providers(content, NonZeroUsize::MIN, soon())?;
//! let provider = found.next().await?.expect("somebody has it");
//! assert_eq!(provider.id, net.node(3).node_id());
//! # net.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod network;
mod testnet;

pub use network::{Conditions, Messages, SimLink, SimNetwork};
pub use testnet::{Testnet, TestnetBuilder};
