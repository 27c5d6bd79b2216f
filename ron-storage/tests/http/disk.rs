//! The routes over a store of real files: damage, a full disk, workers that die, and a thousand clients that hardly move.

use std::{
    fs,
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ron_core::{ContentId, GateLimits, http::Settings as HttpSettings};
use ron_storage::{
    Event, Settings, Store,
    client::{Client, ClientError},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    GROUP, Host, PATIENCE,
    alone::{is_alone, rss_mib},
    content, soon,
    troubled::Troubled,
    until, until_within,
};

const MIB: usize = 1 << 20;

/// A host with its files, and what goes wrong with them.
pub(crate) struct OnDisk {
    pub(crate) host: Host,
    disk: Troubled,
    dir: tempfile::TempDir,
}

impl OnDisk {
    pub(crate) async fn start(settings: Settings, http_settings: HttpSettings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Troubled::open(dir.path());
        let store = Store::builder().settings(settings).data(Arc::new(disk.clone()), "store");
        OnDisk { host: Host::serve(store, http_settings).await, disk, dir }
    }

    /// Changes the byte that follows `mark`, in whichever file that is.
    pub(crate) fn flip_behind(&self, mark: &[u8]) {
        let mut found = 0;
        for path in files(&self.dir.path().join("store")) {
            let mut file = fs::File::options().read(true).write(true).open(path).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            if let Some(at) = bytes.windows(mark.len()).position(|window| window == mark) {
                let at = at + mark.len();
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(&[bytes[at] ^ 0x10]).unwrap();
                found += 1;
            }
        }
        assert_eq!(found, 1, "the mark is in one file");
    }

    fn large_files(&self) -> usize {
        fs::read_dir(self.dir.path().join("store/large")).unwrap().count()
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The status of an answer, the length it announces, and the bytes that came of it before the connection ended.
async fn whatever_comes(host: &Host, id: ContentId) -> (u16, usize, Vec<u8>) {
    let mut stream = host.connect().await;
    let head = format!("GET /at/o/{id} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("not stuck");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    (head[9..12].parse().unwrap(), length.parse().unwrap(), bytes[end + 4..].to_vec())
}

/// A flipped bit never leaves: not of a small object, not in the middle of a large one whose answer has begun, not of one
/// that was served a moment ago from memory. It is told to whoever listens, counted, and mended by putting it again.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_bytes_never_leave() {
    for is_warm in [false, true] {
        let on = OnDisk::start(Settings::default(), HttpSettings::default()).await;
        let mut events = on.host.store.events();
        let small = content(1000);
        let large: Vec<u8> = content(3 * MIB + 5).iter().map(|byte| byte ^ 0x55).collect();
        let mut ids = Vec::new();
        for bytes in [&small, &large] {
            let id = on.host.put(bytes).await;
            ids.push(id);
            if is_warm {
                let (status, length, body) = whatever_comes(&on.host, id).await;
                assert!((status, length) == (200, bytes.len()) && body == **bytes);
            }
        }
        on.flip_behind(&small[500..600]);
        on.flip_behind(&large[5 * MIB / 2..5 * MIB / 2 + 64]);

        let (status, _, body) = whatever_comes(&on.host, ids[0]).await;
        assert!(status == 500 && String::from_utf8_lossy(&body).contains("\"damaged\""), "{status}");
        let (status, length, body) = whatever_comes(&on.host, ids[1]).await;
        assert_eq!((status, length), (200, large.len()));
        assert!(body.len() <= 5 * MIB / 2 && body == large[..body.len()], "{} bytes", body.len());
        assert!(body.len() >= MIB, "what is right was served: {}", body.len());

        for id in &ids {
            // Now it is known, and not even what is right of it is served.
            let range = on.host.ask("GET", &format!("/o/{id}"), "range: bytes=0-9\r\n").await;
            range.is_problem(500, "damaged");
            on.host.ask("HEAD", &format!("/o/{id}"), "").await;
            assert_eq!(on.host.ask("GET", &format!("/stat/{id}"), "").await.json()["quarantined"], true);
            let told = async {
                loop {
                    match events.recv().await {
                        Some(ron_core::Event::Item(Event::Quarantined { id })) => return id,
                        Some(_) => {}
                        None => panic!("the events ended"),
                    }
                }
            };
            assert_eq!(timeout(PATIENCE, told).await.unwrap(), *id);
        }
        assert_eq!(on.host.series("corrupt_total{found_by=\"read\"}"), 2);
        for (id, bytes) in ids.iter().zip([&small, &large]) {
            let mended = on.host.allowed("PUT", &format!("/o/{id}"), "", bytes).await;
            assert_eq!(mended.status, 201);
            let (status, _, body) = whatever_comes(&on.host, *id).await;
            assert!(status == 200 && body == **bytes);
        }
        on.host.supervisor.shutdown().await;
    }
}

/// Whether the disk says beforehand that it is full or only when it is written to: 507 with words on what to do, nothing is
/// left of the attempt, reads go on, and so do writes when there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_and_serves_reads() {
    for is_honest in [true, false] {
        let on = OnDisk::start(Settings::default(), HttpSettings::default()).await;
        let kept = content(2 * MIB);
        let id = on.host.put(&kept).await;
        let files = on.large_files();
        let troubles = &on.disk.troubles;
        troubles.is_honest.store(is_honest, Ordering::SeqCst);
        troubles.room.store(if is_honest { 0 } else { 3 << 20 }, Ordering::SeqCst);
        // What was believed of the free space was believed for 64 MiB.
        let big = vec![1; 80 * MIB];
        let refused = on.host.allowed("POST", "/o", "", &big).await;
        refused.is_problem(507, "disk_full");
        assert!(refused.json()["hint"].as_str().unwrap().contains("free space"));
        if !is_honest {
            troubles.room.store(0, Ordering::SeqCst);
            on.host.allowed("POST", "/o", "", b"small").await.is_problem(507, "disk_full");
        }
        until("nothing is left of it", || on.large_files() == files).await;
        let (status, _, body) = whatever_comes(&on.host, id).await;
        assert!(status == 200 && body == kept);
        assert!(on.host.series("refused_writes_total{reason=\"full\"}") >= 1);

        troubles.room.store(i64::MAX, Ordering::SeqCst);
        let stored = on.host.allowed("POST", "/o", "", &kept[..MIB]).await;
        assert_eq!(stored.status, 201, "{}", String::from_utf8_lossy(&stored.body));
        let (status, _, body) = whatever_comes(&on.host, ContentId::of(&kept[..MIB])).await;
        assert!(status == 200 && body == kept[..MIB]);
        on.host.supervisor.shutdown().await;
    }
}

/// A worker that dies in the middle of an answer is not noticed by the client; workers that keep dying end the answer short,
/// or with a status if it had not begun; and a client that verifies takes it up again where it ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_costs_nobody_a_wrong_byte() {
    let settings = Settings { chunk_bytes: GROUP as u32, ..Settings::default() };
    let on = OnDisk::start(settings, HttpSettings::default()).await;
    let content = content(20 * GROUP);
    let id = on.host.put(&content).await;
    let troubles = &on.disk.troubles;
    // Workers read what is not in memory.
    troubles.is_warm.store(false, Ordering::SeqCst);
    let fail = |spared, panics| {
        troubles.spared.store(spared, Ordering::SeqCst);
        troubles.panics.store(panics, Ordering::SeqCst);
    };
    fail(5, 1);
    let (status, _, body) = whatever_comes(&on.host, id).await;
    assert!(status == 200 && body == content, "{} bytes", body.len());
    assert_eq!(on.host.series("tasks_panicked_total{kind=\"getter\"}"), 1);

    fail(5, u64::MAX);
    let (status, length, body) = whatever_comes(&on.host, id).await;
    assert_eq!((status, length), (200, content.len()));
    assert!(body.len() < length && body == content[..body.len()] && body.len() >= GROUP);
    let (status, _, body) = whatever_comes(&on.host, id).await;
    assert!(status == 500 && String::from_utf8_lossy(&body).contains("\"bug\""), "{status}");

    // Nine in a row end one answer; the client asks for the rest.
    fail(5, 9);
    let client = Client::builder(format!("http://{}/at", on.host.address)).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    let mut fetched = Vec::new();
    while let Some(piece) = fetch.next().await.unwrap() {
        fetched.extend_from_slice(&piece);
    }
    assert!(fetched == content);
    assert_eq!(troubles.panics.load(Ordering::SeqCst), 0);

    // One who may not ask again is told so, and has only what is right.
    fail(5, u64::MAX);
    let client = Client::builder(format!("http://{}/at", on.host.address)).retries(0).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    let mut fetched = Vec::new();
    let error = loop {
        match fetch.next().await {
            Ok(piece) => fetched.extend_from_slice(&piece.expect("it does not end well")),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    assert!(!fetched.is_empty() && fetched == content[..fetched.len()]);
    fail(0, 0);
    until("all places are free", || on.host.series("get_streams") == 0).await;
    let (status, _, body) = whatever_comes(&on.host, id).await;
    assert!(status == 200 && body == content);
    on.host.supervisor.shutdown().await;
}

/// What the operating system has in memory is served without a worker, whole and in parts, however often workers die.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_memory_needs_no_worker() {
    let on = OnDisk::start(Settings::default(), HttpSettings::default()).await;
    let objects = [content(1000), content(200_000), content(3 * MIB + 7)];
    for content in &objects {
        let id = on.host.put(content).await;
        // The first read opens the file and proves the hashes.
        assert!(whatever_comes(&on.host, id).await.2 == *content);
    }
    let troubles = &on.disk.troubles;
    troubles.panics.store(u64::MAX, Ordering::SeqCst);
    for content in &objects {
        let id = ContentId::of(content);
        let (status, _, body) = whatever_comes(&on.host, id).await;
        assert!(status == 200 && body == *content);
        let part = on.host.ask("GET", &format!("/o/{id}"), "range: bytes=500-899\r\n").await;
        assert!(part.status == 206 && part.body == content[500..900]);
    }
    // Nobody has touched one so far.
    assert_eq!(troubles.panics.load(Ordering::SeqCst), u64::MAX);
    troubles.is_warm.store(false, Ordering::SeqCst);
    let cold = on.host.ask("GET", &format!("/o/{}", ContentId::of(&objects[0])), "").await;
    cold.is_problem(500, "bug");
    on.host.supervisor.shutdown().await;
}

const CROWD: usize = 512;

/// A thousand of them take a while on a machine that has something else to do.
const CROWD_PATIENCE: Duration = Duration::from_secs(120);

/// What readers hold, what writers hold, memory that waits for the next read, what a connection takes on our side and on that
/// of the clients, and what the allocator keeps of what passed through.
const CEILING_MIB: u64 = 96 + 128 + 16 + 2 * CROWD as u64 / 8 + 64;

/// 512 clients that begin to read and 512 that begin to write, and then stand still.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_hardly_move() {
    if !is_alone("disk::a_thousand_clients_that_hardly_move") {
        return;
    }
    raise_file_limit();
    let default = Settings::default();
    // All of them have one address here.
    let limits = GateLimits {
        per_second: 100_000,
        burst: 100_000,
        in_flight: 4 * CROWD as u32,
        ..default.total_limits
    };
    // Two places more than the slow ones take.
    let settings = Settings {
        client_limits: limits,
        total_limits: limits,
        get_streams: CROWD + 2,
        put_streams: CROWD + 2,
        get_lane: CROWD + 2,
        put_lane: CROWD + 2,
        ..default
    };
    let mut patient = HttpSettings::default();
    (patient.connections_max, patient.connections_per_client) = (4 * CROWD, 4 * CROWD);
    (patient.io_timeout, patient.idle_timeout) = (Duration::from_secs(300), Duration::from_secs(300));
    let on = OnDisk::start(settings, patient).await;
    let object = content(16 * MIB);
    let id = on.host.put(&object).await;
    let files = on.large_files();
    let before = rss_mib();
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..CROWD {
        let mut reader = on.host.connect().await;
        let head = format!("GET /at/o/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        reader.write_all(head.as_bytes()).await.unwrap();
        let mut writer = on.host.connect().await;
        let head = format!(
            "POST /at/o HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            on.host.token,
            16 * MIB
        );
        writer.write_all(head.as_bytes()).await.unwrap();
        writer.write_all(&object[..300 << 10]).await.unwrap();
        slow.extend([reader, writer]);
    }
    until_within(CROWD_PATIENCE, "all are being served", || {
        (on.host.series("get_streams"), on.host.series("put_streams")) == (CROWD as u64, CROWD as u64)
    })
    .await;
    until_within(CROWD_PATIENCE, "all writers have a file", || on.large_files() >= files + CROWD).await;
    let held = rss_mib().saturating_sub(before);
    println!("{CROWD} slow readers and {CROWD} slow writers over HTTP: {held} MiB");
    assert!(held <= CEILING_MIB, "{held} MiB");

    // Others are served meanwhile.
    let (status, _, body) = whatever_comes(&on.host, id).await;
    assert!(status == 200 && body == object);
    assert_eq!(on.host.allowed("POST", "/o", "", &object[..MIB]).await.status, 201);
    let kept = on.large_files() - CROWD;

    drop(slow);
    until_within(CROWD_PATIENCE, "all places are free", || {
        (on.host.series("get_streams"), on.host.series("put_streams")) == (0, 0)
    })
    .await;
    until_within(CROWD_PATIENCE, "no file is left", || on.large_files() == kept).await;
    assert_eq!(on.host.store.usage().objects, 2);
    on.host.supervisor.shutdown().await;
}

/// Both ends of two thousand connections are in this process.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
