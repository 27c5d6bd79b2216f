//! A machine that lies, in two ways.
//!
//! The liar is a node like others, in the DHT and on the topic, and a bit of what it sends is wrong now and then, in records,
//! messages, entries and frames alike.
//!
//! The mask has no honest part at all. It speaks the protocols itself: says that it provides objects and then gives others, forges
//! records of other nodes, wants to be let into the company with proofs that were shown to it, offers objects and claims, forges and
//! repeats messages on the topic, and talks junk. Nobody ever lets it in or takes a word of it for true: that is looked at after
//! each lie. A lie counts if its victim has answered, or has hung up on it, else as unheard.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, LaneSpec, NodeId,
    net::{
        BoxFuture, Contact, Endpoint, Identity, Incoming, Link, Listener, NetError, Signature, Stream,
        Transport,
        rpc::{Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service},
    },
    sim::{SimNode, SimTransport},
};
use ron_dht::{
    Key, ProviderRecord,
    network::{Answer, RecordOutcome, Request as Question},
};
use ron_overlay::{
    Author, Delivery, Message, Subscription, TopicId,
    logic::{
        gossip::{Pushed, Word},
        view::ViewMessage,
        wire::encode,
    },
};
use ron_storage::logic::{
    members::Card,
    wire::{Offer, method},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::{
    node::{Host, Hosts, NEWS, PORT, contact, identity, ip, secret},
    options::CLIENTS,
    provided,
    shared::Shared,
    verdict::Verdict,
};

/// One write in so many is wrong.
const LIES: u8 = 6;

/// Where the mask listens.
const MASK_PORT: u16 = PORT + 1;

/// Where the mask is, if there are so many nodes.
pub(crate) fn mask(nodes: u8) -> Contact {
    let addr = SocketAddr::new(ip(nodes + CLIENTS), MASK_PORT);
    Contact { id: identity(nodes + CLIENTS + 1).node_id(), addrs: Arc::from([addr]) }
}

/// What it says in the name of others.
const FORGED: &[u8] = b"forged";

/// Messages of others that it remembers, to say them again.
const REMEMBERED: usize = 20;

const LINKS: LaneSpec = LaneSpec::new("examples", "mask_links", 64).why("those who are told lies");

/// The protocols, with the names that their crates export. Those of the others are in `docs/formats.md`; with a wrong name or number
/// every lie would count as unheard.
const DHT: Protocol = Protocol { alpn: ron_dht::network::ALPN, proto: 1, links: LINKS };
const OVERLAY: Protocol = Protocol { alpn: ron_overlay::ALPN, proto: 2, links: LINKS };
const BLOBS: Protocol = Protocol { alpn: "ron/blob/1", proto: 3, links: LINKS };
const LOG: &str = "ron/reg/1";
const COMPANY: Protocol = Protocol { alpn: "ron/keep/1", proto: 5, links: LINKS };

const MEET: Method = Method { number: 1, name: "meet" };

/// Whether it lies, and out of which chances. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Lies {
    are_told: Arc<AtomicBool>,
    rng: Arc<Mutex<fastrand::Rng>>,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(2))
}

impl Lies {
    pub(crate) fn new(seed: u64) -> Self {
        Lies { are_told: Arc::default(), rng: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))) }
    }

    pub(crate) fn set(&self, are_told: bool) {
        self.are_told.store(are_told, Ordering::Relaxed);
    }

    fn are_told(&self) -> bool {
        self.are_told.load(Ordering::Relaxed)
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn junk(&self, len_max: usize) -> Vec<u8> {
        self.draw(|rng| {
            let mut junk = vec![0; rng.usize(1..=len_max)];
            rng.fill(&mut junk);
            junk
        })
    }

    /// The liar's part besides what every node does.
    pub(crate) async fn live(
        self,
        node: SimNode,
        nodes: u8,
        host: Host,
        hosts: Hosts,
        shared: Shared,
        verdict: Verdict,
    ) {
        let minute = Deadline::after(Duration::from_secs(60));
        let Ok(topic) = host.overlay.topic(NEWS).join([], minute).await else { return };
        let Ok(mut news) = topic.subscribe(minute).await else { return };
        let mask = match Mask::start(self.clone(), node, nodes, &host, hosts, verdict.clone()) {
            Ok(mask) => mask,
            Err(error) => return verdict.broken(format!("the mask does not start: {error}")),
        };
        let mut remembered = Vec::new();
        loop {
            tokio::time::sleep(Duration::from_millis(400)).await;
            hear(&mut news, &mut remembered).await;
            if !self.are_told() {
                // A neighbour that says nothing would be a lie as well.
                mask.overlay.sessions().iter().for_each(ron_core::net::rpc::Session::close);
                continue;
            }
            let (kind, victim) = self.draw(|rng| (rng.u8(..7), rng.u8(..nodes)));
            match kind {
                0 => mask.talk_junk(victim).await,
                1 => {
                    let id = self.draw(|rng| shared.pick(rng)).unwrap_or(secret().rendezvous());
                    mask.provide(id).await;
                }
                2 => mask.provide(secret().rendezvous()).await,
                3 => mask.forge_record(victim).await,
                4 => mask.intrude(victim).await,
                5 => mask.offer(victim, self.draw(|rng| shared.pick(rng))).await,
                _ => mask.gossip(victim, &remembered).await,
            }
            mask.check_outside();
        }
    }
}

/// Takes in what was said on the topic.
async fn hear(news: &mut Subscription, remembered: &mut Vec<Message>) {
    while let Ok(Some(said)) = tokio::time::timeout(Duration::from_millis(1), news.recv()).await {
        if let Delivery::Message { message, .. } = said {
            remembered.push(message);
        }
    }
    let surplus = remembered.len().saturating_sub(REMEMBERED);
    remembered.drain(..surplus);
}

/// A peer that is nothing but lies.
struct Mask {
    lies: Lies,
    identity: Identity,
    addr: SocketAddr,
    node: SimNode,
    nodes: u8,
    hosts: Hosts,
    verdict: Verdict,
    dht: Peers,
    overlay: Peers,
    blobs: Peers,
    company: Peers,
    /// Proofs that were shown to it, by whom.
    shown: Arc<Mutex<BTreeMap<NodeId, Bytes>>>,
    _endpoint: Endpoint,
}

impl Mask {
    fn start(
        lies: Lies,
        node: SimNode,
        nodes: u8,
        liar: &Host,
        hosts: Hosts,
        verdict: Verdict,
    ) -> Result<Self, NetError> {
        let identity = identity(nodes + CLIENTS + 1);
        let addr = SocketAddr::new(node.ip, MASK_PORT);
        let transport = Arc::new(SimTransport::new(&node.net, node.ip, &identity));
        let host = &liar.supervisor;
        let endpoint = Endpoint::builder(identity.clone()).transport(transport).listen(addr).start(host)?;
        let shown = Arc::default();
        let giving = Giving { lies: lies.clone(), verdict: verdict.clone() };
        let letting =
            Meeting { lies: lies.clone(), verdict: verdict.clone(), addr, shown: Arc::clone(&shown) };
        let start = |protocol, service: Arc<dyn Service>| {
            Peers::start(&endpoint, protocol, service, PeersSettings::default(), host)
        };
        Ok(Mask {
            dht: start(DHT, Arc::new(()))?,
            overlay: start(OVERLAY, Arc::new(()))?,
            blobs: start(BLOBS, Arc::new(giving))?,
            company: start(COMPANY, Arc::new(letting))?,
            lies,
            identity,
            addr,
            node,
            nodes,
            hosts,
            verdict,
            shown,
            _endpoint: endpoint,
        })
    }

    /// Counts a lie, by what its victim said to it.
    fn told<T>(&self, what: &str, answer: &Result<T, RpcError>) {
        self.verdict.count(&format!("lie{}: {what}", if is_heard(answer) { "" } else { " unheard" }));
    }

    /// Whoever heard this one has refused it. Who has not heard it says nothing about that.
    #[track_caller]
    fn kept_out<T>(&self, answer: &Result<T, RpcError>, what: impl FnOnce() -> String) {
        if is_heard(answer) {
            self.verdict.promised(answer.is_err(), what);
        }
    }

    /// Nobody has let it in, nor the liar.
    fn check_outside(&self) {
        let strangers = [self.identity.node_id(), identity(self.nodes + CLIENTS).node_id()];
        for host in self.hosts.all() {
            let (members, keeping) = (host.members.as_ref(), host.keeping.as_ref());
            let has_let_in = |id: &NodeId| {
                members.is_some_and(|members| members.contains(id))
                    || keeping.is_some_and(|keeping| keeping.is_member(id))
            };
            self.verdict.promised(!strangers.iter().any(has_let_in), || {
                format!("{} keeps objects with one who does not know the secret", host.number)
            });
        }
    }

    fn record(&self, key: Key) -> ProviderRecord {
        let issued = self.node.unix_clock()().as_secs();
        let life = Duration::from_secs(3600);
        ProviderRecord::sign(&self.identity, key, &[self.addr], issued, issued, life)
    }

    async fn tell_dht(&self, victim: u8, records: Vec<Bytes>) -> Result<Vec<RecordOutcome>, RpcError> {
        let Contact { id, addrs } = contact(victim);
        let (number, body) = Question::Provide { records }.encode();
        let answer = self.dht.call(id, &addrs, Method { number, name: "provide" }, body, soon()).await?;
        match Answer::decode(number, &answer) {
            Ok(Answer::Provided { results }) => Ok(results),
            _ => Ok(Vec::new()),
        }
    }

    /// Says to have something. Anybody may say that; what it gives then is another matter.
    async fn provide(&self, id: ContentId) {
        for _ in 0..4 {
            let victim = self.lies.draw(|rng| rng.u8(..self.nodes));
            let told = self.tell_dht(victim, vec![self.record(id.into()).encoded().clone()]).await;
            self.told("provides what it has not", &told);
        }
    }

    /// Says that another node is somewhere else, has what it has not, or takes back what it said.
    async fn forge_record(&self, victim: u8) {
        let other = self.lies.draw(|rng| rng.u8(..self.nodes));
        let key = Key::from(provided::content(other));
        let issued = self.node.unix_clock()().as_secs();
        let taken_back = ProviderRecord::withdraw(&self.identity, key, issued, issued);
        let (mine, theirs) = (self.identity.public_key(), identity(other).public_key());
        let mut records = Vec::new();
        for record in [self.record(key), taken_back] {
            let honest = record.encoded().to_vec();
            let at = honest.windows(32).position(|bytes| bytes == mine.as_bytes());
            let Some(at) = at else { return self.verdict.broken("a record without its key") };
            let mut forged = honest.clone();
            forged[at..at + 32].copy_from_slice(theirs.as_bytes());
            let mut spoiled = honest.clone();
            let (at, bit) = self.lies.draw(|rng| (rng.usize(..spoiled.len()), rng.u8(..8)));
            spoiled[at] ^= 1 << bit;
            let cut = self.lies.draw(|rng| rng.usize(..honest.len()));
            records.extend([forged, spoiled, honest[..cut].to_vec()].map(Bytes::from));
        }
        let told = self.tell_dht(victim, records).await;
        self.told("forged records", &told);
        if let Ok(results) = told {
            let kept = results.contains(&RecordOutcome::Kept);
            self.verdict.promised(!kept, || format!("{victim} keeps a record that nobody signed"));
        }
    }

    /// Wants to be let in: without a proof, with a wrong one, or with one that another node has shown.
    async fn intrude(&self, victim: u8) {
        let Contact { id, addrs } = contact(victim);
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (kind, at) = self.lies.draw(|rng| (rng.u8(..4), rng.usize(..shown.len().max(1))));
        let (what, proof) = match (kind, shown.values().nth(at)) {
            (0, _) => ("intrudes without a proof", Bytes::new()),
            (1.., Some(proof)) => ("intrudes with another's proof", proof.clone()),
            _ => ("intrudes with junk", Bytes::from(self.lies.junk(64))),
        };
        let card = Card { weight: 1_000_000, addrs: vec![self.addr], ..Card::default() };
        let let_in = self.company.call(id, &addrs, MEET.cap(proof), card.encode(), soon()).await;
        self.told(what, &let_in);
        self.kept_out(&let_in, || format!("{victim} lets in one that {what}"));
    }

    /// Wants an object taken in, or a claim believed.
    async fn offer(&self, victim: u8, id: Option<ContentId>) {
        let Contact { id: node, addrs } = contact(victim);
        let id = id.unwrap_or(ContentId::of(FORGED));
        let offer = Offer { id, len: 1000, claim: Bytes::from(self.lies.junk(200)) };
        let push = Method { number: method::PUSH, name: "push" };
        let pushed = self.blobs.call(node, &addrs, push.cap("a guess"), offer.encode(), soon()).await;
        self.told("offers objects", &pushed);
        self.kept_out(&pushed, || format!("{victim} takes objects from a stranger"));
        let claims = Method { number: method::CLAIMS, name: "claims" };
        let claimed = self.blobs.call(node, &addrs, claims, self.lies.junk(500), soon()).await;
        self.told("claims objects", &claimed);
        self.kept_out(&claimed, || format!("{victim} hears claims of a stranger"));
    }

    /// Becomes a neighbour on the topic, and says there what others did not say, or what they have said before.
    async fn gossip(&self, victim: u8, remembered: &[Message]) {
        let Some(host) = self.hosts.get(victim) else { return };
        let Ok(topic) = host.overlay.topic(NEWS).join([], soon()).await else { return };
        let Ok(mut news) = topic.subscribe(soon()).await else { return };
        let Contact { id, addrs } = contact(victim);
        let session = match self.overlay.session(id, &addrs, soon()).await {
            Ok(session) => session,
            Err(error) => return self.told("gossip", &Err::<(), _>(error)),
        };
        let about = TopicId::of(NEWS);
        let me = Contact { id: self.identity.node_id(), addrs: Arc::from([self.addr]) };
        let mut words = vec![encode(&about, &Word::View(ViewMessage::Ask { me, is_urgent: true }))];
        let push = |message: Message, is_repair: bool| {
            let tree = message.serial().publisher;
            encode(&about, &Word::Push(Pushed { tree, hops: 1, is_repair, message }))
        };
        for message in remembered {
            let (is_repair, ahead) = self.lies.draw(|rng| (rng.bool(), rng.u64(..3)));
            let serial = message.serial();
            let (since, seq, payload) = (serial.since, serial.seq + ahead, Bytes::from_static(FORGED));
            let author = match *message.author() {
                // Of another message, or of nothing.
                Author::Signed(key, signature) if is_repair => Author::Signed(key, signature),
                Author::Signed(key, _) => Author::Signed(key, Signature::from_bytes([7; 64])),
                claimed @ Author::Claimed(_) => claimed,
            };
            words.push(push(message.clone(), is_repair));
            words.push(push(Message::received(&about, author, since, seq, payload.clone()), is_repair));
            let claimed = Author::Claimed(serial.publisher);
            words.push(push(Message::received(&about, claimed, since, seq, payload), is_repair));
        }
        words.push((self.lies.draw(|rng| rng.u16(..20)), self.lies.junk(300).into()));
        let mut said = Vec::new();
        for (number, word) in words {
            said.push(session.notify(Method { number, name: "word" }, &word, soon()).await);
        }
        // Words are not answered. Whoever answers what is said after them has read them, and so has whoever hangs up on them.
        let asked = session.call(Method { number: u16::MAX, name: "nothing" }, &[], soon()).await;
        let are_heard = is_heard(&asked) || matches!(asked, Err(RpcError::Closed));
        for said in said {
            let heard = if are_heard { said } else { Err(RpcError::Closed) };
            self.told("forged, repeated and junk messages", &heard);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        while let Ok(Some(said)) = tokio::time::timeout(Duration::from_millis(500), news.recv()).await {
            let is_forged =
                matches!(&said, Delivery::Message { message, .. } if *message.payload() == FORGED);
            self.verdict.promised(!is_forged, || format!("{victim} believes what nobody said: {said:?}"));
        }
    }

    /// Says what is no protocol, or the beginning of one.
    async fn talk_junk(&self, victim: u8) {
        let protocols = [DHT.alpn, OVERLAY.alpn, BLOBS.alpn, COMPANY.alpn, LOG];
        let (kind, alpn) = self.lies.draw(|rng| (rng.u8(..4), protocols[rng.usize(..protocols.len())]));
        let connect = self.node.net.connect(self.node.ip, SocketAddr::new(ip(victim), PORT));
        let Ok(Ok(mut stream)) = tokio::time::timeout(Duration::from_secs(3), connect).await else { return };
        let mut words = Vec::new();
        if kind > 0 {
            // A greeting as it should be, with whatever comes behind.
            words.extend_from_slice(self.identity.public_key().as_bytes());
            words.push(u8::try_from(alpn.len()).unwrap_or(0));
            words.extend_from_slice(alpn.as_bytes());
        }
        match kind {
            // Of a length that nobody has memory for.
            1 => words.extend_from_slice(&[0xff; 16]),
            // Nothing more, ever.
            2 => {}
            _ => words.extend(self.lies.junk(3000)),
        }
        let heard = async {
            stream.write_all(&words).await.ok()?;
            let mut answer = [0; 64];
            // Who says nothing more is answered, and who says what is wrong is hung up on, perhaps after an answer.
            while stream.read(&mut answer).await.is_ok_and(|read| read > 0) {
                if kind == 2 {
                    break;
                }
            }
            Some(())
        };
        let heard = tokio::time::timeout(Duration::from_secs(4), heard).await.ok().flatten();
        self.told(&format!("junk in {alpn}"), &heard.ok_or(RpcError::Closed));
    }
}

/// Gives something else than it is asked for.
struct Giving {
    lies: Lies,
    verdict: Verdict,
}

impl Service for Giving {
    fn call(&self, request: Request) -> Handling {
        // Who is in no company is asked for nothing else.
        if request.method() != method::GET {
            return Handling::Done(Err(Fault::no_such_method()));
        }
        self.verdict.count("lie: wrong bytes");
        Handling::Done(Ok(self.lies.junk(100_000).into()))
    }
}

/// Shows everybody its own proof, and names others that there are not.
struct Meeting {
    lies: Lies,
    verdict: Verdict,
    addr: SocketAddr,
    shown: Arc<Mutex<BTreeMap<NodeId, Bytes>>>,
}

impl Service for Meeting {
    fn call(&self, request: Request) -> Handling {
        if request.method() != MEET.number {
            return Handling::Done(Err(Fault::no_such_method()));
        }
        self.verdict.count("lie: shows a proof that it was shown");
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.insert(request.peer(), request.cap().clone());
        drop(shown);
        let stranger = || Contact {
            id: Identity::from_seed(&self.lies.draw(|rng| [rng.u8(..); 32])).node_id(),
            addrs: Arc::from([self.addr]),
        };
        let card = Card {
            weight: 1_000_000,
            addrs: vec![self.addr],
            others: (0..5).map(|_| stranger()).collect(),
            proof: request.cap().to_vec(),
            ..Card::default()
        };
        Handling::Done(Ok(card.encode()))
    }
}

/// A transport whose every write may be wrong.
#[derive(Debug)]
pub(crate) struct LyingTransport {
    pub(crate) inner: SimTransport,
    pub(crate) lies: Lies,
}

impl LyingTransport {
    fn spoil(link: Link, lies: Lies) -> Link {
        Link { stream: Box::new(Spoiled { inner: link.stream, lies }), ..link }
    }
}

impl Transport for LyingTransport {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        let dialed = self.inner.dial(addr, peer, alpn, deadline);
        Box::pin(async move { Ok(Self::spoil(dialed.await?, self.lies.clone())) })
    }

    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        Ok(Box::new(LyingListener { inner: self.inner.listen(addr)?, lies: self.lies.clone() }))
    }
}

#[derive(Debug)]
struct LyingListener {
    inner: Box<dyn Listener>,
    lies: Lies,
}

impl Listener for LyingListener {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let inner = self.inner.accept().await?;
            Ok(Box::new(LyingIncoming { inner, lies: self.lies.clone() }) as Box<dyn Incoming>)
        })
    }
}

struct LyingIncoming {
    inner: Box<dyn Incoming>,
    lies: Lies,
}

impl Incoming for LyingIncoming {
    fn remote(&self) -> SocketAddr {
        self.inner.remote()
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        self.inner.spoke()
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        let LyingIncoming { inner, lies } = *self;
        Box::pin(async move { Ok(LyingTransport::spoil(inner.handshake(protocols).await?, lies)) })
    }
}

struct Spoiled {
    inner: Box<dyn Stream>,
    lies: Lies,
}

impl AsyncRead for Spoiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Spoiled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let lies = self.lies.are_told() && !buf.is_empty() && self.lies.draw(|rng| rng.u8(..LIES)) == 0;
        if !lies {
            return Pin::new(&mut self.inner).poll_write(cx, buf);
        }
        let mut wrong = buf.to_vec();
        let (at, bit) = self.lies.draw(|rng| (rng.usize(..wrong.len()), rng.u8(..8)));
        wrong[at] ^= 1 << bit;
        Pin::new(&mut self.inner).poll_write(cx, &wrong)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Whether somebody has said something to it, be it no.
fn is_heard<T>(answer: &Result<T, RpcError>) -> bool {
    matches!(answer, Ok(_) | Err(RpcError::Refused { .. }))
}
