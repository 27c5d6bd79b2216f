//! Clients who take their time: heads, bodies and readers that hardly move, and listeners that never read.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

use super::{PATIENCE, content, node, rest, status, until};

/// A connection from one of the many addresses that this machine has, with little room for what is not read. Where it has
/// only one, from that.
pub(super) fn connect_from(host: u8, to: SocketAddr) -> Option<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let _ = socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 1, host), 0)).into());
    socket.connect_timeout(&to.into(), PATIENCE).ok()?;
    Some(socket.into())
}

/// Sends a byte on each, again and again, until all have ended, and returns what each was told. None is ever silent for long.
fn dribble(streams: Vec<TcpStream>) -> Vec<String> {
    let mut open: Vec<(TcpStream, Vec<u8>, bool)> = Vec::new();
    for stream in streams {
        stream.set_nonblocking(true).unwrap();
        open.push((stream, Vec::new(), false));
    }
    let mut rounds = 0_u32;
    until("all that dribble are cut", || {
        rounds += 1;
        for (stream, told, is_over) in open.iter_mut().filter(|(_, _, is_over)| !is_over) {
            let mut some = [0; 4096];
            loop {
                match stream.read(&mut some) {
                    Ok(count) if count > 0 => told.extend_from_slice(&some[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    _ => {
                        *is_over = true;
                        break;
                    }
                }
            }
            // Every fifth of a second or so.
            if rounds % 10 == 0 {
                let _ = stream.write(b"y");
            }
        }
        open.iter().all(|(_, _, is_over)| *is_over)
    });
    open.into_iter().map(|(_, told, _)| String::from_utf8_lossy(&told).into_owned()).collect()
}

/// Case 3: five hundred heads that do not end, from five addresses, which is more than one may have open.
#[test]
fn slow_heads_leave_health_alone_and_are_closed() {
    let node = node("");
    let admin = node.daemon.admin;
    let ask = || {
        let began = ron_core::now();
        assert!(node.daemon.get("/healthz").ends_with("ok\n"));
        began.elapsed()
    };
    let before = (0..20).map(|_| ask()).max().unwrap();
    let mut slow: Vec<TcpStream> =
        (0..500).filter_map(|number| connect_from(1 + number as u8 % 5, admin)).collect();
    assert!(slow.len() > 400, "{}", slow.len());
    for stream in &mut slow {
        let _ = stream.write_all(format!("GET /usage HTTP/1.1\r\nHost: {admin}\r\nX: ").as_bytes());
    }
    // Each waits for less than a head may take, so nobody waited for the slow ones.
    let during = (0..20).map(|_| ask()).max().unwrap();
    assert!(during < Duration::from_secs(2).max(before * 20), "{during:?} against {before:?}");
    // A byte more now and then buys no time.
    let began = ron_core::now();
    let told: Vec<u16> = dribble(slow).iter().map(|answer| status(answer)).collect();
    assert!(told.iter().all(|status| matches!(status, 0 | 408 | 503)), "{told:?}");
    let cut = told.iter().filter(|status| **status == 408).count();
    println!("{cut} of {} were told that they are slow, the last after {:?}", told.len(), began.elapsed());
    assert!(cut > 100 && began.elapsed() < Duration::from_secs(20), "{cut} told, {:?}", began.elapsed());
    assert!(node.count("ron_core_io_timeouts_total{op=\"http_head\"}") >= cut as u64);
    assert_eq!(status(&node.allowed("GET", "/usage", "", b"")), 200);
    node.is_well();
}

/// Case 7: one address with more connections than are for one, none of which says all of its head. It gets no further; others
/// have the places that are left, and health is for everybody.
#[cfg(target_os = "linux")]
#[test]
fn one_address_cannot_take_all_seats() {
    let node = node("");
    let (admin, bearer) = (node.daemon.admin, node.bearer());
    let ask = |host: u8, path: &str| {
        let mut stream = connect_from(host, admin).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{bearer}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        status(&rest(&mut stream))
    };
    assert_eq!(ask(60, "/usage"), 200);
    // A head may take five seconds: until then the places are held. A machine that was busy elsewhere meanwhile tries again.
    let is_held = (0..5).any(|_| {
        let began = ron_core::now();
        let mut held: Vec<TcpStream> = (0..300).filter_map(|_| connect_from(60, admin)).collect();
        for stream in &mut held {
            let _ = stream.write_all(b"GET /usage HTTP/1.1\r\nX: ");
        }
        let (greedy, other, health) = (ask(60, "/usage"), ask(61, "/usage"), ask(60, "/healthz"));
        let is_held = began.elapsed() < Duration::from_secs(4);
        assert_eq!((other, health), (200, 200));
        assert!(!is_held || greedy == 503, "{greedy}");
        drop(held);
        until("its places are free again", || ask(60, "/usage") == 200);
        is_held
    });
    assert!(is_held, "no attempt was over before the first places were free again");
    node.is_well();
}

/// Case 4: an upload that begins like any other and then sends a byte now and then.
#[test]
fn a_dribbled_upload_is_cut_and_leaves_no_file() {
    let node = node("");
    let (admin, bearer, files) = (node.daemon.admin, node.bearer(), node.large_files());
    let mut streams = Vec::new();
    for length in ["Content-Length: 50000000\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut stream = TcpStream::connect(admin).unwrap();
        let head = format!("POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}{length}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let body = content(3 << 20, 1);
        if length.starts_with("Transfer") {
            stream.write_all(format!("{:x}\r\n", 1 << 30).as_bytes()).unwrap();
        }
        stream.write_all(&body).unwrap();
        streams.push(stream);
    }
    until("there is something of them on the disk", || node.large_files() > files);
    // Neither is silent while the other is cut.
    for told in dribble(streams) {
        assert_eq!(status(&told), 408, "{told}");
    }
    until("nothing is left of them", || node.large_files() == files);
    assert_eq!(node.count("ron_storage_put_streams"), 0);
    node.is_well();
}

/// Case 5: twelve who ask for 48 MiB and read nothing of it.
#[test]
fn readers_that_stop_are_cut_and_cost_no_memory() {
    let node = node("");
    let admin = node.daemon.admin;
    let whole = content(48 << 20, 1);
    let id = node.put(&whole);
    // What a reader costs that reads.
    let served = super::exchange(
        admin,
        format!("GET /o/{id} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    assert!(served.len() > whole.len());
    let mut stopped = Vec::new();
    let grown = node.growth(|| {
        for number in 0..12 {
            let mut stream = connect_from(10 + number, admin).unwrap();
            stream.write_all(format!("GET /o/{id} HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes()).unwrap();
            // It is being served; and that was all that it reads.
            let mut begins = [0; 12];
            stream.read_exact(&mut begins).unwrap();
            assert_eq!(&begins, b"HTTP/1.1 200");
            stopped.push(stream);
        }
        until("they are cut", || node.count("ron_core_io_timeouts_total{op=\"http_write\"}") >= 12);
        until("nothing is read for them", || node.count("ron_storage_get_streams") == 0);
    });
    println!("{grown} bytes more at the highest");
    assert!(grown < 16 << 20, "{grown} bytes more, of {} asked for", 12 * whole.len());
    node.is_well();
}

/// Case 56: two hundred on all routes that go on for ever, of whom those who are let in read the first line of the answer and
/// nothing more. They are neither waited for nor remembered.
#[test]
fn listeners_that_never_read_cost_no_memory() {
    const ROUTES: [&str; 4] = ["/events", "/registry/stream?from=1", "/gossip/news", "/registry/stream"];
    // What is said on a topic is heard on other nodes.
    let speaks = node("[overlay]\ntopics = [\"news\"]\n");
    let node =
        node(&format!("[overlay]\ntopics = [\"news\"]\n[dht]\nseeds = [\"{}\"]\n", speaks.daemon.seed));
    until("they are neighbours", || {
        [&speaks, &node].iter().all(|node| node.count("ron_overlay_neighbours") == 1)
    });
    let (admin, bearer) = (node.daemon.admin, node.bearer());
    let listen = |host: u8, path: &str| {
        let mut stream = connect_from(host, admin).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n{bearer}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut begins = [0; 12];
        stream.read_exact(&mut begins).unwrap();
        (status(&String::from_utf8_lossy(&begins)), stream)
    };
    let heard = || node.count("ron_overlay_messages_total{what=\"delivered\"}");
    let publish = |message: &[u8], times: u64| {
        let before = heard();
        for _ in 0..times {
            let said = speaks.allowed("POST", "/gossip/news", "", message);
            assert_eq!(status(&said), 200, "{said}");
        }
        until("it is heard", || heard() >= before + times);
    };
    let message = content(100_000, 1);
    publish(&message, 20);
    let cut = || node.count("ron_core_io_timeouts_total{op=\"http_write\"}");
    let (mut deaf, mut admitted) = (Vec::new(), [0; ROUTES.len()]);
    let grown = node.growth(|| {
        for number in 0..200 {
            let route = number % ROUTES.len();
            let (told, stream) = listen(20 + (number % 8) as u8, ROUTES[route]);
            // Of those who look at the node at once there are only so many; who comes beyond is told so.
            assert!(told == 200 || route == 0 && told == 429, "{told} for {}", ROUTES[route]);
            admitted[route] += u64::from(told == 200);
            deaf.push(stream);
        }
        // Two hundred megabytes for those on the topic, if it were kept for them.
        publish(&message, 40);
        until("those on the topic are cut", || cut() >= 50);
    });
    println!("{grown} bytes more at the highest, for {admitted:?}");
    assert!(admitted[0] >= 32 && admitted[1..] == [50; 3], "{admitted:?}");
    assert!(grown < 48 << 20, "{grown} bytes more");
    // One that reads hears what is said.
    let (told, mut listener) = listen(50, "/gossip/news");
    assert_eq!(told, 200);
    publish(b"who reads, hears", 1);
    let wanted = data_encoding::BASE64.encode(b"who reads, hears");
    let (mut heard, mut some) = (String::new(), [0; 4096]);
    while !heard.contains(&wanted) {
        let count = listener.read(&mut some).unwrap();
        assert_ne!(count, 0, "{heard}");
        heard.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    drop((deaf, listener));
    until("the places of those who looked are free", || listen(50, ROUTES[0]).0 == 200);
    node.is_well();
}
