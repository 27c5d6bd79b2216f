//! Neighbours on topics: those who forge, who want to be everywhere, and who do not read what they asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    NodeId,
    net::{
        Contact, Identity,
        rpc::{Ask, Event, Fault, Handling, Method, Peers, Request, Service, Session},
    },
};
use ron_overlay::{
    Message, MessageId, TopicId,
    logic::{
        gossip::{Pushed, Word},
        view::ViewMessage,
        wire::{decode, encode},
    },
};
use tokio::io::AsyncWriteExt as _;

use super::{
    PATIENCE, content, node,
    peers::{PROTOCOLS, Peer, contact, frame, greeting, runtime, soon},
    status, until,
};
use crate::settings::Configured;

/// How often the peer was taken for a neighbour. It does nothing that it is asked for.
#[derive(Default)]
struct Accepted(AtomicUsize);

impl Service for Accepted {
    fn call(&self, _: Request) -> Handling {
        Handling::Done(Err(Fault::bad_request("no")))
    }

    fn event(&self, event: Event) {
        let word = decode(event.method, &event.body);
        if let Ok((_, Word::View(ViewMessage::Answer { is_accepted: true }))) = word {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A peer with a session, on which it says what it likes.
struct Talker {
    session: Session,
    _peers: Peers,
    peer: Peer,
}

impl Talker {
    fn new(node: &Configured) -> Talker {
        Talker::with(node, Peer::new())
    }

    fn with(node: &Configured, peer: Peer) -> Talker {
        Talker::hearing(node, peer, Arc::new(Accepted::default()))
    }

    /// One that listens to what it is told.
    fn hearing(node: &Configured, peer: Peer, ears: Arc<dyn Service>) -> Talker {
        let to = contact(node);
        let peers = peer.serve(PROTOCOLS[1].0, ears);
        let session = peer.runtime.block_on(peers.session(to.id, &to.addrs, soon())).unwrap();
        Talker { session, _peers: peers, peer }
    }

    fn say(&self, topic: &TopicId, word: &Word) {
        let (number, body) = encode(topic, word);
        let said = self.session.notify(Method { number, name: "say" }, &body, soon());
        let _ = self.peer.runtime.block_on(said);
    }

    fn me(&self) -> Contact {
        self.peer.contact()
    }
}

fn push(message: Message) -> Word {
    Word::Push(Pushed { tree: NodeId::from_bytes([9; 32]), hops: 1, is_repair: false, message })
}

/// Case 32: messages with a signature that is for something else. Nobody hears them, and after four their sender has no session
/// and gets none. Others go on.
#[test]
fn who_forges_messages_is_disconnected() {
    let node = node("[overlay]\ntopics = [\"news\"]\n");
    let (news, author) = (TopicId::of("news"), Identity::from_seed(&[204; 32]));
    let (liar, honest) = (Talker::new(&node), Talker::new(&node));
    for seq in 1..=4 {
        let wrong = Message::signed(&TopicId::of("other"), &author, 5, seq, Bytes::from_static(b"lie"));
        let forged = Message::received(&news, *wrong.author(), 5, seq, Bytes::from_static(b"lie"));
        liar.say(&news, &push(forged));
    }
    until("it is disconnected", || !liar.session.is_open());
    assert_eq!(node.count("ron_overlay_frame_reject_total{reason=\"signature\"}"), 4);
    assert_eq!(node.count("ron_overlay_bans_total"), 1);
    assert_eq!(node.count("ron_overlay_messages_total{what=\"delivered\"}"), 0);
    // It comes back, and goes.
    let (peer, to) = (&liar.peer, contact(&node));
    let banned = || node.count("ron_overlay_frame_reject_total{reason=\"banned\"}");
    let before = banned();
    until("it is turned away", || {
        peer.runtime.block_on(async {
            if let Ok(mut link) = peer.link(&to, "ron/oap/1").await {
                let _ = link.stream.write_all(&greeting()).await;
                let _ = link.stream.flush().await;
            }
        });
        banned() > before
    });
    assert!(honest.session.is_open());
    honest.say(&news, &push(Message::signed(&news, &author, 5, 9, Bytes::from_static(b"true"))));
    until("who is honest is heard", || node.count("ron_overlay_messages_total{what=\"delivered\"}") == 1);
    node.is_well();
}

/// Case 31: a neighbour on every topic that there is, and on ten thousand that there are not.
#[test]
fn one_peer_has_so_many_topics_and_no_more() {
    let names: Vec<String> = (0..70).map(|number| format!("topic {number}")).collect();
    let node = node(&format!("[overlay]\nengines = 1\ntopics = {names:?}\n"));
    let greedy = Talker::new(&node);
    let join = |topic: &TopicId| greedy.say(topic, &Word::View(ViewMessage::Join { me: greedy.me() }));
    names.iter().for_each(|name| join(&TopicId::of(name)));
    let refused = |why: &str| node.count(&format!("ron_overlay_frame_reject_total{{reason=\"{why}\"}}"));
    until("all were looked at", || refused("topics_max") + node.count("ron_overlay_neighbours") >= 70);
    assert_eq!((node.count("ron_overlay_neighbours"), refused("topics_max")), (64, 6));
    assert_eq!(node.count("ron_overlay_offences_total{kind=\"greedy\"}"), 6);
    let grown = node.growth(|| {
        (0..10_000).for_each(|number| join(&TopicId::of(&format!("unknown {number}"))));
        until("all were looked at", || {
            // What comes faster than it is looked at is refused as well.
            let shed = node.count("ron_overlay_shed_words_total{side=\"refused\"}");
            refused("unknown_topic") + shed >= 10_000
        });
    });
    println!("{grown} bytes more for {} unknown topics", refused("unknown_topic"));
    assert!(grown < 16 << 20, "{grown} bytes more");
    let topics = node.daemon.get("/overlay/topics");
    assert_eq!(topics.matches("\"name\":").count(), 70, "{topics}");
    node.is_well();
}

/// Case 35: a neighbour that asks for what is said on a topic and then reads nothing of it. Who publishes is not held up, what
/// waits for it is bounded, and it is disconnected.
#[test]
fn a_neighbour_that_does_not_read_is_disconnected() {
    let node = node("[overlay]\ntopics = [\"news\"]\n");
    let (to, peer, news) = (contact(&node), Peer::new(), TopicId::of("news"));
    let (method, body) = encode(&news, &Word::View(ViewMessage::Join { me: peer.contact() }));
    let join = Ask { method, budget_ms: 0, credit: 0 }.encode(&body);
    let link = peer.runtime.block_on(async {
        let mut link = peer.link(&to, "ron/oap/1").await.unwrap();
        link.stream.write_all(&greeting()).await.unwrap();
        link.stream.write_all(&frame(4, 2, 0, &join)).await.unwrap();
        link.stream.flush().await.unwrap();
        link
    });
    until("it is a neighbour", || node.count("ron_overlay_neighbours") == 1);
    let message = content(1 << 20, 1);
    let began = ron_core::now();
    let grown = node.growth(|| {
        for _ in 0..100 {
            let said = node.allowed("POST", "/gossip/news", "", &message);
            assert!(matches!(status(&said), 200 | 429 | 503), "{said}");
            if node.count("ron_overlay_neighbours") == 0 {
                break;
            }
        }
        until("it is disconnected", || node.sum("ron_overlay_session_close_total") == 1);
    });
    println!("{grown} bytes more, after {:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(node.sum("ron_overlay_io_timeouts_total") >= 1);
    assert!(grown < 96 << 20, "{grown} bytes more");
    // Nothing is kept for it, and others are served.
    until("nothing waits", || node.count("ron_overlay_queue_depth{queue=\"egress\"}") == 0);
    assert_eq!(status(&node.allowed("POST", "/gossip/news", "", b"go on")), 200);
    drop(link);
    node.is_well();
}

/// Case 33: four nodes on a topic, and peers who join it at each of them, announce what there is not, and pass nothing on. Forty of
/// them ask one node at once to take them in place of whom it has. Everybody hears everything.
#[test]
fn who_passes_nothing_on_and_pushes_in_silences_nobody() {
    const SAID: u64 = 5;
    let news = TopicId::of("news");
    let topics = "[overlay]\nengines = 1\ntopics = [\"news\"]\n";
    let first = node(topics);
    let with_seed = || node(&format!("{topics}[dht]\nseeds = [\"{}\"]\n", first.daemon.seed));
    let others = [with_seed(), with_seed(), with_seed()];
    let all: Vec<&Configured> = [&first].into_iter().chain(&others).collect();
    let ids: Vec<String> = all.iter().map(|node| contact(node).id.to_string()).collect();
    // How many of the others each of them has.
    let honest = |node: &Configured| {
        let topics = node.daemon.get("/overlay/topics");
        ids.iter().filter(|id| topics.contains(*id)).count()
    };
    until("they have found each other", || all.iter().all(|node| honest(node) == 3));

    let runtime = runtime();
    let liar = |node: &Configured| {
        let key = Identity::generate().unwrap();
        Talker::with(node, Peer::on(&runtime, key, "127.0.0.1:0".parse().unwrap()))
    };
    let join = |liar: &Talker| liar.say(&news, &Word::View(ViewMessage::Join { me: liar.me() }));
    let liars: Vec<Talker> = all.iter().flat_map(|node| (0..5).map(|_| liar(node))).collect();
    liars.iter().for_each(join);
    until("there is no room for more", || all.iter().all(|node| node.count("ron_overlay_neighbours") == 8));
    for (number, liar) in liars.iter().enumerate() {
        let ids = (0..=255)
            .map(|id| MessageId::from_bytes([[id; 8], [number as u8; 8]].concat().try_into().unwrap()));
        liar.say(&news, &Word::Have(vec![(liar.me().id, ids.collect())]));
    }
    let pushing: Vec<Talker> = (0..40).map(|_| liar(&first)).collect();
    pushing.iter().for_each(join);
    let heard = |node: &Configured| node.count("ron_overlay_messages_total{what=\"delivered\"}");
    for number in 0..SAID {
        for node in &all {
            let said = node.allowed("POST", "/gossip/news", "", &number.to_le_bytes());
            assert_eq!(status(&said), 200, "{said}");
        }
    }
    until("all is heard everywhere", || all.iter().all(|node| heard(node) == 3 * SAID));
    println!("{} of 3 are left to who was asked", honest(&first));
    assert!(honest(&first) > 0);
    all.iter().for_each(|node| node.is_well());
}

/// Case 30: one message again and again, faster than anybody may speak. It is delivered once, its sender loses its place,
/// and what somebody else says meanwhile is heard.
#[test]
fn a_flood_of_one_message_is_one_delivery_and_silences_nobody() {
    const SAID: u64 = 20;
    let node = node("[overlay]\nengines = 1\nmax_rps = 200\ntopics = [\"news\"]\n");
    let (news, author) = (TopicId::of("news"), Identity::from_seed(&[205; 32]));
    let (liar, honest) = (Talker::new(&node), Talker::new(&node));
    let delivered = || node.count("ron_overlay_messages_total{what=\"delivered\"}");
    let again = push(Message::signed(&news, &author, 5, 1, content(1000, 1).into()));
    let grown = node.growth(|| {
        #[allow(clippy::disallowed_methods, reason = "threads of a test, joined at the end of the scope")]
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let began = ron_core::now();
                while liar.session.is_open() {
                    assert!(began.elapsed() < PATIENCE, "it may go on for ever");
                    liar.say(&news, &again);
                }
            });
            let speaker = Identity::from_seed(&[206; 32]);
            for seq in 1..=SAID {
                honest.say(
                    &news,
                    &push(Message::signed(&news, &speaker, 5, seq, content(1000, 1 + seq).into())),
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        until("all that was said once is heard", || delivered() > SAID);
    });
    println!("{grown} bytes more");
    assert_eq!(delivered(), SAID + 1);
    assert!(honest.session.is_open());
    assert_eq!(node.count("ron_overlay_bans_total"), 1);
    assert!(node.count("ron_overlay_frame_reject_total{reason=\"rate\"}") >= 20);
    assert!(grown < 16 << 20, "{grown} bytes more");
    node.is_well();
}

/// Ends what goes on until then when it is dropped, also by a test that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Case 34: somebody says more than the node can look at, all the time, and no more than one peer may say. What waits is full of it,
/// and every word of somebody else has room all the same: the flood makes it. Each is said once, and is answered.
#[test]
fn a_flood_below_the_rate_makes_room_for_everybody_else() {
    const ROUNDS: usize = 40;
    let names: Vec<String> = (0..60).map(|number| format!("topic {number}")).collect();
    let node = node(&format!("[overlay]\nengines = 1\nmax_rps = 1000000\ntopics = {names:?}\n"));
    let accepted = Arc::new(Accepted::default());
    let honest = Talker::hearing(&node, Peer::new(), Arc::clone(&accepted) as _);
    let flooder = Talker::new(&node);
    let refused = || node.count("ron_overlay_shed_words_total{side=\"refused\"}");
    let join = |talker: &Talker| Word::View(ViewMessage::Join { me: talker.me() });
    let is_over = AtomicBool::new(false);
    #[allow(clippy::disallowed_methods, reason = "threads of a test, joined at the end of the scope")]
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (number, body) = encode(&TopicId::of("unknown"), &join(&flooder));
            let mut said = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let say = Method { number, name: "say" };
                said += u64::from(
                    flooder.peer.runtime.block_on(flooder.session.notify(say, &body, soon())).is_ok(),
                );
            }
            println!("{said} words");
        });
        let _over = Over(&is_over);
        for round in 1..=ROUNDS {
            let before = refused();
            until("what waits is full", || refused() > before);
            names.iter().for_each(|name| honest.say(&TopicId::of(name), &join(&honest)));
            until("every word of the other is answered", || {
                accepted.0.load(Ordering::Relaxed) == round * names.len()
            });
        }
    });
    println!("{} words of the flood had no room", refused());
    // It is no rate that kept it out.
    assert_eq!(node.count("ron_overlay_frame_reject_total{reason=\"rate\"}"), 0);
    assert_eq!(node.count("ron_overlay_bans_total"), 0);
    assert!(flooder.session.is_open() && honest.session.is_open());
    node.is_well();
}
