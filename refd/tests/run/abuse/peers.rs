//! The port that other nodes call: connections that say nothing, frames and messages that announce what nobody could hold,
//! and the largest numbers there are. Behind TLS it is a real peer with a key of its own that says them.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, LaneSpec, Supervisor,
    net::{
        Contact, Endpoint, Identity,
        oap::{Code, Decoder},
        rpc::{Ask, Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service},
    },
};
use ron_dht::ProviderRecord;
use ron_storage::members::Secret;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::Runtime,
};

use super::{PATIENCE, node, records::unix, rest, slow::connect_from, until};
use crate::settings::Configured;

const LINKS: LaneSpec = LaneSpec::new("test", "links", 64);

/// What a node speaks, with the number of methods by which it can be asked. What is said to neighbours on topics are events.
pub(super) const PROTOCOLS: [(Protocol, u16); 5] = [
    (Protocol { alpn: "ron/dht/1", proto: 1, links: LINKS }, 5),
    (Protocol { alpn: "ron/oap/1", proto: 2, links: LINKS }, 0),
    (Protocol { alpn: "ron/blob/1", proto: 3, links: LINKS }, 5),
    (Protocol { alpn: "ron/reg/1", proto: 4, links: LINKS }, 7),
    (Protocol { alpn: "ron/keep/1", proto: 5, links: LINKS }, 1),
];

/// A node that speaks all of them: the last is spoken only by who keeps objects with others.
pub(super) fn speaks_all(home: &Path) -> Configured {
    let secret = crate::keeping::secret(home);
    node(&format!("[keeping]\nsecret_file = {secret:?}\n"))
}

/// Refuses whatever it is asked.
struct Refuses(&'static str);

impl Service for Refuses {
    fn call(&self, _: Request) -> Handling {
        Handling::Done(Err(Fault::bad_request(self.0)))
    }
}

/// What peers of this process run on.
pub(super) fn runtime() -> Arc<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    Arc::new(runtime.unwrap())
}

/// A peer with a key of its own, in this process.
pub(super) struct Peer {
    pub(super) runtime: Arc<Runtime>,
    pub(super) host: Supervisor,
    pub(super) endpoint: Endpoint,
}

impl Peer {
    pub(super) fn new() -> Peer {
        Peer::on(&runtime(), Identity::generate().unwrap(), "127.0.0.1:0".parse().unwrap())
    }

    /// One of many that share a runtime.
    pub(super) fn on(runtime: &Arc<Runtime>, identity: Identity, addr: SocketAddr) -> Peer {
        let _inside = runtime.enter();
        let host = Supervisor::new("peer");
        let endpoint = Endpoint::builder(identity).listen(addr).start(&host).unwrap();
        Peer { runtime: Arc::clone(runtime), host, endpoint }
    }

    pub(super) fn contact(&self) -> Contact {
        Contact { id: self.endpoint.node_id(), addrs: self.endpoint.local_addrs().into() }
    }

    /// Speaks a protocol, and refuses with `words`.
    pub(super) fn speak(&self, protocol: Protocol, words: &'static str) -> Peers {
        self.serve(protocol, Arc::new(Refuses(words)))
    }

    /// Speaks a protocol, and answers like that.
    pub(super) fn serve(&self, protocol: Protocol, service: Arc<dyn Service>) -> Peers {
        let _inside = self.runtime.enter();
        Peers::start(&self.endpoint, protocol, service, PeersSettings::default(), &self.host).unwrap()
    }

    /// A link on which nothing was said yet.
    pub(super) async fn link(
        &self,
        to: &Contact,
        alpn: &'static str,
    ) -> Result<ron_core::net::Link, ron_core::net::NetError> {
        self.endpoint.connect(to.id, &to.addrs, alpn, soon()).await
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.runtime.block_on(self.host.shutdown());
    }
}

/// A frame as its parts, since nobody writes for us what we are not supposed to say: length, version, flags, code, proto,
/// tenant, no capability, corr, payload.
pub(super) fn frame(flags: u16, proto: u16, corr: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend((38 + payload.len() as u32).to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(flags.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(proto.to_be_bytes());
    frame.extend([0; 16 + 2]);
    frame.extend(corr.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What is said first on a link.
pub(super) fn greeting() -> Vec<u8> {
    let hello = ron_core::net::oap::Hello::default().request();
    frame(1, hello.proto, hello.corr, &hello.payload)
}

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub(super) fn contact(node: &Configured) -> Contact {
    node.daemon.seed.parse().unwrap()
}

/// Case 6: fifteen hundred connections from twenty addresses that begin no handshake, or never end it.
#[test]
fn silent_connections_leave_room_for_an_honest_peer() {
    let node = node("");
    let to = contact(&node);
    let peer = Peer::new();
    // What a dial takes on this machine, which others may be using.
    let began = ron_core::now();
    peer.runtime.block_on(peer.link(&to, "ron/dht/1")).unwrap();
    let alone = began.elapsed();
    let wanted = 1500.min(descriptors().saturating_sub(300));
    let mut silent = Vec::new();
    for number in 0..wanted {
        let mut stream = connect_from(100 + (number % 20) as u8, to.addrs[0]).unwrap();
        // Some say the first bytes of a ClientHello that is longer than they will ever send.
        if number % 3 == 0 {
            let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0xff, 0xf0]);
        }
        silent.push(stream);
    }
    // While all of them hold their places; each has three seconds.
    let began = ron_core::now();
    peer.runtime.block_on(peer.link(&to, "ron/dht/1")).unwrap();
    let took = began.elapsed();
    println!("{wanted} silent connections, an honest dial in {took:?}");
    let most = Duration::from_millis(2500).max(alone * 5);
    assert!(took < most, "it waited for their time to be over: {took:?}, and {alone:?} when it was alone");
    for stream in &mut silent {
        rest(stream);
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(node.count("ron_core_handshake_failures_total{reason=\"timeout\"}") > wanted as u64 / 2);
    peer.runtime.block_on(peer.link(&to, "ron/reg/1")).unwrap();
    node.is_well();
}

/// How many files this process and the one it starts may have open.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(1024)
}

/// Case 1: four gigabytes announced, before TLS, behind it, and behind a HELLO, on every protocol.
#[test]
fn announced_gigabytes_are_refused_before_they_are_held() {
    let home = tempfile::tempdir().unwrap();
    let node = speaks_all(home.path());
    let (to, peer) = (contact(&node), Peer::new());
    let greeting = greeting();
    let bare = |addr: SocketAddr| {
        let mut stream = TcpStream::connect(addr).unwrap();
        let _ = stream.write_all(&[0xff; 100]);
        rest(&mut stream);
    };
    bare(to.addrs[0]);
    let rejected = || -> u64 {
        let of = |part: &str| node.count(&format!("{part}_frame_rejects_total{{reason=\"too_long\"}}"));
        ["ron_core", "ron_dht", "ron_overlay", "ron_storage", "ron_registry"].map(of).iter().sum()
    };
    let before = rejected();
    let grown = node.growth(|| {
        for _ in 0..10 {
            bare(to.addrs[0]);
            for (protocol, _) in PROTOCOLS {
                for begins in [&[][..], &greeting] {
                    peer.runtime.block_on(async {
                        let mut link = peer.link(&to, protocol.alpn).await.unwrap();
                        let mut frame = begins.to_vec();
                        frame.extend([0xff, 0xff, 0xff, 0xff, 0, 1, 0, 1]);
                        frame.extend([0; 30]);
                        link.stream.write_all(&frame).await.unwrap();
                        link.stream.flush().await.unwrap();
                        let mut rest = Vec::new();
                        let end = tokio::time::timeout(PATIENCE, link.stream.read_to_end(&mut rest)).await;
                        assert!(end.is_ok(), "{} is left open", protocol.alpn);
                    });
                }
            }
        }
    });
    assert!(rejected() >= before + 100, "{} of 100 counted", rejected() - before);
    println!("{grown} bytes more at the highest");
    assert!(grown < 8 << 20, "{grown} bytes more");
    node.is_well();
}

/// The beginnings of what is longer than anybody could hold: lists, maps, bytes and text of lengths that nothing stands behind.
const ENDLESS: [&[u8]; 6] = [
    b"\x9a\xff\xff\xff\xff",
    b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x5a\xff\xff\xff\xff",
    b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x7a\xff\xff\xff\xff",
];

/// The largest number.
const MOST: &[u8] = b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff";

/// What no message may be, whatever it is about. A map of every small key with what has no end behind it; depth; and no CBOR.
fn bombs() -> Vec<Vec<u8>> {
    let mut bombs: Vec<Vec<u8>> = vec![
        b"\xba\xff\xff\xff\xff".to_vec(),
        b"\x9f".to_vec(),
        b"\xbf".to_vec(),
        vec![0x81; 200_000],
        [vec![0xa1, 0x00], vec![0x81; 200_000]].concat(),
        [vec![0xa1, 0x17], vec![0x81; 200_000]].concat(),
        b"\xa1\x00".repeat(100_000),
        vec![0xff; 1000],
        vec![0xd8; 100_000],
    ];
    for endless in ENDLESS {
        bombs.push(endless.to_vec());
        bombs.extend((0..10).map(|key| [&[0xa1, key], endless].concat()));
    }
    bombs
}

/// What may be a message, with the largest numbers where small ones are expected: one field, all of them, and all of them behind
/// 32 bytes as most messages begin; and nothing at all.
fn largest() -> Vec<Vec<u8>> {
    let mut largest = vec![Vec::new()];
    for key in 0..10 {
        for value in [MOST, b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xfb\x7f\xf8\0\0\0\0\0\0", b"\xf6"] {
            largest.push([&[0xa1, key], value].concat());
        }
    }
    for fields in 1..10_u8 {
        let mut numbers = vec![0xa0 | fields];
        let mut keyed = vec![0xa0 | (fields + 1), 0, 0x58, 32];
        keyed.extend([7; 32]);
        for key in 0..fields {
            numbers.push(key);
            numbers.extend(MOST);
            keyed.push(key + 1);
            keyed.extend(MOST);
        }
        largest.extend([numbers, keyed]);
    }
    largest
}

/// Cases 14 and 62: on every method of every protocol, from a peer that may ask all of them: it shows the token and belongs to those
/// who keep objects here. Bombs were refused for who sent them, and for many methods none came to where it would have been decoded.
#[test]
fn messages_that_announce_too_much_cost_nothing() {
    const BLOB: usize = 2;
    const CLAIMS: u16 = 5;
    const REG: usize = 3;
    const NEWS: u16 = 4;
    const KEEP: usize = 4;
    let home = tempfile::tempdir().unwrap();
    let node = speaks_all(home.path());
    let (to, peer) = (contact(&node), Peer::new());
    let token = node.bearer().trim().rsplit_once(' ').unwrap().1.to_owned();
    let secret = Secret::new(&std::fs::read_to_string(home.path().join("secret")).unwrap()).unwrap();
    let proof = secret.proof(&peer.endpoint.node_id(), &to.id);
    let caps = PROTOCOLS.map(|(protocol, _)| match protocol.alpn {
        "ron/keep/1" => Bytes::copy_from_slice(&proof),
        _ => Bytes::from(token.clone()),
    });
    let speakers = PROTOCOLS.map(|(protocol, _)| peer.speak(protocol, "no"));
    // News last as long as their caller waits, but for a second.
    let patience = |at, number| if (at, number) == (REG, NEWS) { 2 } else { 10 };
    let ask = |at: usize, number: u16, body: &[u8]| -> Result<Bytes, RpcError> {
        let call = Method { number, name: "bomb" }.cap(caps[at].clone());
        let body = Bytes::copy_from_slice(body);
        let deadline = Deadline::after(Duration::from_secs(patience(at, number)));
        peer.runtime.block_on(speakers[at].call(to.id, &to.addrs, call, body, deadline))
    };
    // In no zone and of usual weight. What members say is listened to as soon as it is known that this is one.
    ask(KEEP, 1, b"\xa2\x00\x60\x01\x18\x64").unwrap();
    until("it is taken for a member", || {
        let told = ask(BLOB, CLAIMS, b"\xff").unwrap_err();
        told.to_string().contains("not a question of this kind")
    });

    let (bombs, largest) = (bombs(), largest());
    let mut asked = 0;
    let grown = node.growth(|| {
        for (at, (protocol, methods)) in PROTOCOLS.iter().enumerate() {
            for number in 0..=methods + 1 {
                let is_method = (1..=*methods).contains(&number);
                // What one host tells another about claims, the other refuses in its own words.
                let wanted = match (at, number) {
                    (BLOB, CLAIMS) => Code::Conflict,
                    _ if is_method => Code::BadRequest,
                    _ => Code::NotFound,
                };
                for bomb in &bombs {
                    let begins = &bomb[..bomb.len().min(20)];
                    let place = format!("{} {number} {begins:02x?}", protocol.alpn);
                    match ask(at, number, bomb) {
                        Err(RpcError::Refused { code, .. }) => assert_eq!(code, wanted, "{place}"),
                        told => panic!("{place} {told:?}"),
                    }
                }
                for bomb in &largest {
                    let begins = &bomb[..bomb.len().min(20)];
                    let place = format!("{} {number} {begins:02x?}", protocol.alpn);
                    // It may be a question; no answer is longer than it has to be. A question for news lasts.
                    match ask(at, number, bomb) {
                        Ok(answer) => assert!(is_method && answer.len() < 64 << 10, "{place} {answer:?}"),
                        Err(RpcError::Refused { code, .. }) => assert_ne!(code, Code::Failed, "{place}"),
                        Err(error) => panic!("{place} {error}"),
                    }
                }
                asked += bombs.len() + largest.len();
            }
        }
    });
    println!("{asked} messages, {grown} bytes more");
    assert!(grown < 12 << 20, "{grown} bytes more");
    until("it answers", || peer.runtime.block_on(peer.link(&to, "ron/dht/1")).is_ok());
    node.is_well();
    assert!(node.daemon.get("/readyz").starts_with("HTTP/1.1 200"));
}

/// Cases 14 and 62: the same in every field of every word between neighbours. Whoever says four such words is banned, so each peer says
/// three. Each is counted as what it is, and none is taken for a word.
#[test]
fn words_that_announce_too_much_cost_nothing() {
    /// A piece of a word has no topic.
    const PIECE: u16 = 16;
    let node = node("[overlay]\nengines = 1\ntopics = [\"news\"]\n");
    let news = ron_overlay::TopicId::of("news");
    // As many fields as each word has, behind its topic.
    let fields = [1, 2, 2, 1, 2, 3, 1, 1, 9, 1, 1, 1, 3, 1, 1, 5, 2];
    let mut words: Vec<(u16, Vec<u8>)> = Vec::new();
    for (number, fields) in (1..).zip(fields) {
        let begins = match number {
            PIECE => vec![0xa1],
            _ => [&[0xa2, 0x00, 0x58, 0x20], &news.as_bytes()[..]].concat(),
        };
        let first = u8::from(number != PIECE);
        for key in first..first + fields {
            words.extend(ENDLESS[..4].iter().map(|value| (number, [&begins[..], &[key], value].concat())));
        }
        // In a field that nobody knows.
        words.push((number, [&begins[..], &[0x17], &[0x81; 100_000]].concat()));
    }
    let rejected = || {
        let of = |why: &str| node.count(&format!("ron_overlay_frame_reject_total{{reason=\"word_{why}\"}}"));
        ["too_large", "malformed", "out_of_range"].map(of).iter().sum::<u64>()
    };
    let (runtime, to) = (runtime(), contact(&node));
    let grown = node.growth(|| {
        for some in words.chunks(3) {
            let key = Identity::generate().unwrap();
            let peer = Peer::on(&runtime, key, "127.0.0.1:0".parse().unwrap());
            let peers = peer.speak(PROTOCOLS[1].0, "no");
            let before = rejected();
            runtime.block_on(async {
                let session = peers.session(to.id, &to.addrs, soon()).await.unwrap();
                for (number, word) in some {
                    session.notify(Method { number: *number, name: "bomb" }, word, soon()).await.unwrap();
                }
            });
            until("all are refused for what they are", || rejected() == before + some.len() as u64);
        }
    });
    println!("{} words, {grown} bytes more", words.len());
    assert_eq!((rejected(), node.count("ron_overlay_bans_total")), (words.len() as u64, 0));
    assert!(grown < 16 << 20, "{grown} bytes more");
    node.is_well();
}

/// Case 24: thirty signed records of thirty names that all live at the address of somebody who has nothing to do with it.
/// Whoever asks for the object has the node look for its providers, and the bystander is called as often as one name is.
#[test]
fn a_bystander_is_not_called_for_names_that_others_made_up() {
    // One keeps the records, the other finds them there.
    let keeps = node("");
    let node = node(&format!("[dht]\nseeds = [\"{}\"]\n", keeps.daemon.seed));
    let (to, peer) = (contact(&keeps), Peer::new());
    let bystander = TcpListener::bind("127.0.0.1:0").unwrap();
    bystander.set_nonblocking(true).unwrap();
    let address = bystander.local_addr().unwrap();
    let wanted = ron_core::ContentId::of(b"nobody has this");
    let records = (1..=30u8).map(|number| {
        let publisher = Identity::from_seed(&[number; 32]);
        let record =
            ProviderRecord::sign(&publisher, wanted.into(), &[address], 1, unix(), Duration::from_secs(3600));
        record.encoded().clone()
    });
    let (number, body) = ron_dht::network::Request::Provide { records: records.collect() }.encode();
    let dht = peer.speak(PROTOCOLS[0].0, "no");
    let call = Method { number, name: "provide" };
    peer.runtime.block_on(dht.call(to.id, &to.addrs, call, body, soon())).unwrap();
    let known = format!("/dht/providers/{wanted}?limit=30&timeout_ms=2000");
    node.daemon.eventually(&known, |known| known.matches(&address.to_string()).count() > 5);

    // However long that took, what it cost is not counted with what follows.
    while bystander.accept().is_ok() {}
    let began = ron_core::now();
    let mut calls = 0;
    for _ in 0..10 {
        let mut stream = TcpStream::connect(node.daemon.admin).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let head = format!(
            "POST /fetch/{wanted} HTTP/1.1\r\nHost: {}\r\n{}Content-Length: 0\r\n\r\n",
            node.daemon.admin,
            node.bearer()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.read(&mut [0; 100]);
        // Whoever it is hangs up at once.
        while bystander.accept().is_ok() {
            calls += 1;
        }
    }
    // One name that nobody answers for is called again after half a second at the earliest, and later each time.
    let pauses = u64::try_from(began.elapsed().as_millis() / 500).unwrap();
    println!("{calls} calls in {:?}", began.elapsed());
    assert!((1..=1 + pauses).contains(&calls), "{calls} calls in {:?}", began.elapsed());
    node.is_well();
}

/// Case 2: a question between nodes and one over HTTP, a byte at a time and cut anywhere.
#[test]
fn what_comes_in_pieces_is_answered_as_if_it_came_whole() {
    let node = node("");
    let (to, peer) = (contact(&node), Peer::new());
    let (method, body) = ron_dht::network::Request::Ping { listening: Vec::new() }.encode();
    let ask = Ask { method, budget_ms: 5000, credit: 0 }.encode(&body);
    let said = [greeting(), frame(1, 1, 7, &ask)].concat();
    let answer = |pieces: Vec<&[u8]>| {
        let talk = async {
            let mut link = peer.link(&to, "ron/dht/1").await.unwrap();
            for piece in pieces {
                link.stream.write_all(piece).await.unwrap();
                link.stream.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            let (decoder, mut read) = (Decoder::new(1 << 20), bytes::BytesMut::new());
            loop {
                match decoder.decode(&mut read).unwrap() {
                    Some(frame) if frame.corr == 7 && frame.proto == 1 => break (frame.code, frame.payload),
                    Some(_) => {}
                    None => assert_ne!(link.stream.read_buf(&mut read).await.unwrap(), 0, "closed"),
                }
            }
        };
        peer.runtime.block_on(async { tokio::time::timeout(PATIENCE, talk).await.unwrap() })
    };
    let whole = answer(vec![&said]);
    assert_eq!(whole.0, Code::Ok);
    assert_eq!(answer(said.chunks(1).collect()), whole);
    for at in (1..said.len()).step_by(5) {
        assert_eq!(answer(vec![&said[..at], &said[at..]]), whole, "cut at {at}");
    }

    let head = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", node.daemon.admin);
    let answer = |pieces: Vec<&[u8]>| {
        let mut stream = TcpStream::connect(node.daemon.admin).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in pieces {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        rest(&mut stream)
    };
    let is_well = |answer: &str| answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n");
    assert!(is_well(&answer(head.as_bytes().chunks(1).collect())));
    for at in 1..head.len() {
        let (one, other) = head.as_bytes().split_at(at);
        assert!(is_well(&answer(vec![one, other])), "cut at {at}");
    }
    node.is_well();
}
