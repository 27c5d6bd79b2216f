//! Not a product but a reference: every node sends what is new to it to everybody it knows.
//!
//! A reader and a writer task for each link, a queue of 512 between them, frames by a length before them, one lock around
//! what was seen. It signs nothing, repairs nothing, and remembers without bound. It shows what plain code on tokio and
//! rustls can carry on this machine, and what it costs to send everything over every link.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::mpsc,
};
use tokio_util::codec::{FramedRead, FramedWrite};

use super::{Counted, Hear, Network, Pending, Published, Start};
use crate::{
    measure::Outcome,
    peers::{BUFFER_BYTES, codec, ron::QUEUE, tls::Tls},
};

struct Nodes(Vec<Arc<Node>>);

struct Node {
    number: usize,
    addr: SocketAddr,
    hear: Hear,
    links: Mutex<Vec<(u64, mpsc::Sender<Bytes>)>>,
    seen: Mutex<HashSet<u64>>,
    next_link: AtomicU64,
    copies: AtomicU64,
    dropped: AtomicU64,
}

pub(crate) async fn start(how: Start) -> Outcome<Arc<dyn Network>> {
    let tls = Tls::new()?;
    let mut nodes: Vec<Arc<Node>> = Vec::new();
    for number in 0..how.nodes {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let node = Arc::new(Node {
            number,
            addr: listener.local_addr()?,
            hear: Arc::clone(&how.hear),
            links: Mutex::default(),
            seen: Mutex::default(),
            next_link: AtomicU64::new(1),
            copies: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let (listening, accepting) = (Arc::clone(&node), tls.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (node, tls) = (Arc::clone(&listening), accepting.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(tcp).await {
                        node.attach(stream);
                    }
                });
            }
        });
        for contact in how.contacts(number) {
            Arc::clone(&node).attach(tls.dial(nodes[contact].addr).await?);
        }
        nodes.push(node);
    }
    Ok(Arc::new(Nodes(nodes)))
}

impl Node {
    fn attach(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let (read, write) = tokio::io::split(stream);
        let (sender, mut queue) = mpsc::channel::<Bytes>(QUEUE);
        let link = self.next_link.fetch_add(1, Relaxed);
        self.links().push((link, sender));
        tokio::spawn(async move {
            let mut frames = FramedWrite::new(write, codec());
            frames.set_backpressure_boundary(BUFFER_BYTES);
            while let Some(message) = queue.recv().await {
                frames.feed(message).await?;
                while let Ok(message) = queue.try_recv() {
                    frames.feed(message).await?;
                }
                SinkExt::<Bytes>::flush(&mut frames).await?;
            }
            Outcome::Ok(())
        });
        tokio::spawn(async move {
            let mut frames = FramedRead::new(read, codec());
            while let Some(Ok(message)) = frames.next().await {
                let message = message.freeze();
                self.copies.fetch_add(1, Relaxed);
                if self.is_new(&message) {
                    (self.hear)(self.number, &message);
                    self.pass_on(Some(link), &message);
                }
            }
            self.links().retain(|(other, _)| *other != link);
        });
    }

    fn is_new(&self, message: &Bytes) -> bool {
        let mut hasher = DefaultHasher::new();
        message.hash(&mut hasher);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(hasher.finish())
    }

    /// To everybody but the link it came from. Whether anybody has room for it.
    fn pass_on(&self, from: Option<u64>, message: &Bytes) -> bool {
        let mut sent = 0;
        for (_, queue) in self.links().iter().filter(|(link, _)| Some(*link) != from) {
            match queue.try_send(message.clone()) {
                Ok(()) => sent += 1,
                Err(_) => drop(self.dropped.fetch_add(1, Relaxed)),
            }
        }
        sent > 0
    }

    fn links(&self) -> MutexGuard<'_, Vec<(u64, mpsc::Sender<Bytes>)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for Nodes {
    fn publish(&self, node: usize, message: Bytes) -> Pending<'_, Published> {
        let node = &self.0[node];
        Box::pin(async move {
            node.is_new(&message);
            let is_sent = node.pass_on(None, &message);
            tokio::task::consume_budget().await;
            if is_sent { Published::Taken } else { Published::Refused }
        })
    }

    fn counted(&self) -> Pending<'_, Outcome<Counted>> {
        let sum = |of: fn(&Node) -> &AtomicU64| self.0.iter().map(|node| of(node).load(Relaxed)).sum();
        let counted = Counted { copies: sum(|node| &node.copies), told: sum(|node| &node.dropped) };
        Box::pin(std::future::ready(Ok(counted)))
    }

    fn neighbours(&self) -> Pending<'_, Outcome<usize>> {
        Box::pin(async { Ok(self.0.iter().map(|node| node.links().len()).sum()) })
    }
}
