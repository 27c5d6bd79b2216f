//! How do my nodes talk to each other in a protocol of their own?
//!
//! A protocol is a name for the handshake and a number for the frames. A dictionary that peers may ask: quickly, slowly
//! and under a right of their own; with deadlines that reach the other end, and refusals that say what to do.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, LaneSpec, Supervisor,
    net::{
        Endpoint, Identity, NetError,
        oap::Code,
        rpc::{Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service},
    },
};

const LINKS: LaneSpec = LaneSpec::new("dictionary", "links", 64)
    .why("a burst of newcomers waits here, and what does not fit is closed");
/// Numbers from 32 768 are for anyone. The version is part of the name, so that two can be offered side by side.
const DICTIONARY: Protocol = Protocol { alpn: "example/dictionary/1", proto: 40_000, links: LINKS };
const LOOK_UP: Method = Method { number: 1, name: "look_up" };
const LEARN: Method = Method { number: 2, name: "learn" };
const THINK: Method = Method { number: 3, name: "think" };

/// Thoughts at once. One more is refused: whoever asks is told when to come again.
const THOUGHTS_MAX: usize = 2;

#[derive(Default)]
struct Dictionary {
    words: Mutex<BTreeMap<Bytes, Bytes>>,
    thoughts: Arc<AtomicUsize>,
}

/// Counts itself while it lives, and so also when its caller gives up and the future is dropped.
struct Thought(Arc<AtomicUsize>);

impl Drop for Thought {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Service for Dictionary {
    fn call(&self, request: Request) -> Handling {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let method = request.method();
        // What is in memory is answered at once, without a task.
        Handling::Done(if method == LOOK_UP.number {
            words.get(request.body()).cloned().ok_or(Fault::new(Code::NotFound, "no such word"))
        } else if method == LEARN.number && request.cap() != "teacher" {
            Err(Fault::forbidden("only a teacher may"))
        } else if method == LEARN.number {
            let said = request.body();
            match said.iter().position(|byte| *byte == b'=') {
                Some(at) => Ok(words.insert(said.slice(..at), said.slice(at + 1..)).unwrap_or_default()),
                None => Err(Fault::bad_request("word=meaning")),
            }
        } else if method != THINK.number {
            Err(Fault::no_such_method())
        } else if self.thoughts.fetch_add(1, Ordering::AcqRel) >= THOUGHTS_MAX {
            drop(Thought(self.thoughts.clone()));
            Err(Fault::busy("thoughts", Duration::from_millis(50)))
        } else {
            // What takes time is a task of its own. It ends with the time of the request, or when nobody waits any more.
            let thought = Thought(self.thoughts.clone());
            return Handling::Pending(Box::pin(async move {
                let millis = std::str::from_utf8(request.body()).ok().and_then(|text| text.parse().ok());
                let millis = millis.ok_or(Fault::bad_request("milliseconds"))?;
                tokio::time::sleep(Duration::from_millis(millis)).await;
                drop(thought);
                Ok(Bytes::from_static(b"42"))
            }));
        })
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Usually in another process.
    let server = Supervisor::new("server");
    let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&server)?;
    let dictionary = Arc::new(Dictionary::default());
    let thoughts = Arc::clone(&dictionary.thoughts);
    let served = Peers::start(&there, DICTIONARY, dictionary, PeersSettings::default(), &server)?;

    // One link per peer, dialled when it is needed and kept; both ends may call over it.
    let client = Supervisor::new("client");
    let here = Endpoint::builder(Identity::generate()?).start(&client)?;
    let peers = Peers::start(&here, DICTIONARY, Arc::new(()), PeersSettings::default(), &client)?;
    let (id, addrs) = (there.node_id(), there.local_addrs().to_vec());

    let refused = peers.call(id, &addrs, LEARN, "ron=a node", soon()).await;
    expect(matches!(refused, Err(RpcError::Refused { code: Code::Forbidden, .. })), "learning is a right")?;
    peers.call(id, &addrs, LEARN.cap("teacher"), "ron=a node", soon()).await?;
    expect(peers.call(id, &addrs, LOOK_UP, "ron", soon()).await? == "a node", "it has learned")?;
    let unknown = peers.call(id, &addrs, LOOK_UP, "rust", soon()).await;
    expect(matches!(unknown, Err(RpcError::Refused { code: Code::NotFound, .. })), "what it has not")?;

    // The deadline travels with the call: the other end stops too, and its place is free again.
    let late = peers.call(id, &addrs, THINK, "60000", Deadline::after(Duration::from_millis(100))).await;
    expect(matches!(late, Err(RpcError::Timeout { op: "think" })), "a deadline is kept")?;
    while thoughts.load(Ordering::Acquire) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // Three at once, and room for two: the third is told when, comes again, and is answered.
    let think = async || loop {
        match peers.call(id, &addrs, THINK, "100", soon()).await {
            Err(RpcError::Busy { retry_after, .. }) => tokio::time::sleep(retry_after).await,
            answered => break answered,
        }
    };
    let (one, two, three) = tokio::join!(think(), think(), think());
    expect([one?, two?, three?].iter().all(|answer| answer == "42"), "all three were answered")?;

    // Another protocol, or another version of this one, is refused in the handshake.
    let newer = Protocol { alpn: "example/dictionary/2", ..DICTIONARY };
    let newer = Peers::start(&here, newer, Arc::new(()), PeersSettings::default(), &client)?;
    let refused = newer.call(id, &addrs, LOOK_UP, "ron", soon()).await;
    let is_refused =
        matches!(refused, Err(RpcError::Unreachable { error: NetError::ProtocolRefused { .. }, .. }));
    expect(is_refused, "a version that it does not speak")?;

    // A stop lets what was accepted finish.
    let asked = peers.session(id, &addrs, soon()).await?;
    let (answer, stopped) = tokio::join!(asked.call(THINK, b"300", soon()), async {
        while thoughts.load(Ordering::Acquire) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(served);
        server.shutdown().await
    });
    expect(answer? == "42" && stopped.aborted == 0, "what was begun was finished")?;
    let gone = peers.call(id, &addrs, LOOK_UP, "ron", soon()).await.err().ok_or("nobody is there")?;
    println!("afterwards: {gone}; worth another try: {}", gone.is_retryable());
    client.shutdown().await;
    Ok(())
}

fn expect(held: bool, what: &str) -> Result<(), Box<dyn Error>> {
    println!("{} {what}", if held { "ok:" } else { "did not hold:" });
    if held { Ok(()) } else { Err(what.into()) }
}
