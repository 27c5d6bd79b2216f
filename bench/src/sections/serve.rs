//! Verified objects over HTTP beside static files from nginx.
//!
//! Each server is a process of its own, and `wrk` with one thread asks it over the loopback interface, the same bytes in the
//! same order. nginx sends files with `sendfile` and verifies nothing; ours hashes every byte before it leaves. Both files and
//! objects are in the page cache. Processor time is that of the server alone. Contenders take turns. The bare loop between
//! them reads, hashes and writes and does nothing else: what verification allows at best.
//!
//! nginx has one worker, because `wrk` has the other of two cores, and so have we; with two workers once more. Then three threads
//! want two cores all the time, and whichever waits does so until a tick of the scheduler, with the requests that it has in hand.
//!
//! Needs `nginx` and `wrk`; without them it says so.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Deadline, GateLimits, Supervisor, disk::RealDisk, http::Server};
use ron_storage::{Settings, Store};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    measure::{Bench, Contender, Outcome, cpu_of, runtime_of, take_turns, whole},
    peers::bare_http,
};

/// What `wrk` does for each row.
const SECONDS: u64 = 4;

/// Full runs: each row takes `SECONDS` for each contender and round.
const ROUNDS_MOST: usize = 5;

const MIB: usize = 1 << 20;

/// A row of the table.
struct Load {
    what: &'static str,
    /// Objects of this length; as many as are asked for in turn.
    len: usize,
    objects: usize,
    connections: usize,
    /// Bytes that each request asks for, at another place each time.
    range: Option<usize>,
}

const LOADS: [Load; 5] = [
    Load { what: "4 KiB, 16 connections", len: 4 << 10, objects: 1000, connections: 16, range: None },
    Load { what: "64 KiB, 16 connections", len: 64 << 10, objects: 1000, connections: 16, range: None },
    Load { what: "1 MiB, 16 connections", len: MIB, objects: 64, connections: 16, range: None },
    Load { what: "100 MiB, 4 connections", len: 100 * MIB, objects: 2, connections: 4, range: None },
    Load {
        what: "64 KiB of 1 GiB, 16 connections",
        len: 1024 * MIB,
        objects: 1,
        connections: 16,
        range: Some(64 << 10),
    },
];

/// One run of `wrk`.
struct Run {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Seconds of the server's processor time for a gibibyte.
    cpu: f64,
    memory_mib: f64,
}

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    for program in ["nginx", "wrk"] {
        if Command::new(program).arg("-v").output().is_err() {
            println!("Left out: there is no `{program}` here.");
            return Ok(());
        }
    }
    let dir = tempfile::tempdir()?;
    let seconds = if bench.is_quick() { 1 } else { SECONDS };
    let rounds = bench.rounds.min(ROUNDS_MOST);
    println!(
        "| Object | Server | Requests/s | MiB/s | of nginx | p50 ms | p99 ms | of nginx | CPU s/GiB | of nginx | MiB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for load in &LOADS {
        let load = &Load { len: if bench.is_quick() { load.len.min(8 * MIB) } else { load.len }, ..*load };
        let nginx = Nginx::start(dir.path(), load)?;
        let start = |role| Ours::start(dir.path(), load, role);
        let (bare, ours, two) = (start("bare")?, start("ron")?, start("ron2")?);
        let series = take_turns(
            rounds,
            1,
            vec![
                Contender::new("nginx", || {
                    wrk(dir.path(), load, &nginx.url, &nginx.paths, nginx.worker()?, seconds)
                }),
                Contender::new("read, hash, write", || {
                    wrk(dir.path(), load, &bare.url, &bare.paths, bare.child.0.id(), seconds)
                }),
                Contender::new("ron-storage", || {
                    wrk(dir.path(), load, &ours.url, &ours.paths, ours.child.0.id(), seconds)
                }),
                Contender::new("ron-storage, two workers", || {
                    wrk(dir.path(), load, &two.url, &two.paths, two.child.0.id(), seconds)
                }),
            ],
        )?;
        let each = load.range.unwrap_or(load.len) as f64 / MIB as f64;
        for one in &series {
            println!(
                "| {} | {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
                load.what,
                one.name,
                whole(one.median(|run| run.per_second)),
                whole(one.median(|run| run.per_second * each)),
                one.ratio(&series[0], |run| run.per_second),
                one.median(|run| run.p50_ms),
                one.median(|run| run.p99_ms),
                one.ratio(&series[0], |run| run.p99_ms),
                one.median(|run| run.cpu),
                one.ratio(&series[0], |run| run.cpu),
                one.median(|run| run.memory_mib),
            );
        }
        drop((nginx, bare, ours, two));
        for files in ["www", "bare", "ron", "ron2"] {
            fs::remove_dir_all(dir.path().join(files))?;
        }
    }
    Ok(())
}

/// The same bytes for both, and other ones for each object.
fn content(load: &Load, number: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed((load.len + number) as u64);
    let mut bytes = vec![0; load.len];
    rng.fill(&mut bytes);
    bytes
}

/// A process that ends with its owner. It is asked to, so that it can end its own.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

struct Nginx {
    child: Process,
    url: String,
    paths: Vec<String>,
}

impl Nginx {
    fn start(dir: &Path, load: &Load) -> Outcome<Self> {
        let www = dir.join("www");
        fs::create_dir_all(&www)?;
        fs::create_dir_all(dir.join("logs"))?;
        let mut paths = Vec::new();
        for number in 0..load.objects {
            fs::write(www.join(number.to_string()), content(load, number))?;
            paths.push(format!("/{number}"));
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = format!(
            "daemon off; worker_processes 1; pid nginx.pid; error_log logs/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush off; tcp_nodelay on; keepalive_requests 100000000; etag on;\n\
             client_body_temp_path cb; proxy_temp_path pt; fastcgi_temp_path ft; uwsgi_temp_path ut; scgi_temp_path st;\n\
             open_file_cache max=20000 inactive=60s; server {{ listen 127.0.0.1:{port}; root {}; }} }}\n",
            www.display()
        );
        fs::write(dir.join("nginx.conf"), config)?;
        // Its worker is another user if it is started by root, and has to find the files.
        let mut command = Command::new("chmod");
        command.args(["-R", "a+rX"]).arg(dir).status()?;
        let child = Command::new("nginx").arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).spawn()?;
        let child = Process(child);
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        for _ in 0..100 {
            if std::net::TcpStream::connect(addr).is_ok() {
                return Ok(Nginx { child, url: format!("http://{addr}"), paths });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("nginx does not listen".into())
    }

    /// The process that does the work.
    fn worker(&self) -> Outcome<u32> {
        let master = self.child.0.id();
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        Ok(children.split(' ').next().ok_or("nginx has no worker")?.parse()?)
    }
}

/// A server that is a process of this program.
struct Ours {
    child: Process,
    url: String,
    paths: Vec<String>,
}

impl Ours {
    fn start(dir: &Path, load: &Load, role: &str) -> Outcome<Self> {
        let store = dir.join(role);
        fs::create_dir_all(&store)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(format!("--serve-{role}"))
            .arg(&store)
            .args([load.len.to_string(), load.objects.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("it has an output")?);
        let mut child = Process(child);
        let mut lines = out.lines();
        let url = lines.next().ok_or_else(|| format!("it ended: {:?}", child.0.wait()))??;
        let paths = lines.take(load.objects).collect::<Result<Vec<_>, _>>()?;
        Ok(Ours { child, url, paths })
    }
}

/// The process that is asked: stores the objects, says where, and serves until its input ends.
pub(crate) fn child(role: &str, arguments: &[String]) -> Outcome<()> {
    let [dir, len, objects] = arguments else { return Err("directory, length, objects".into()) };
    let load = Load { what: "", len: len.parse()?, objects: objects.parse()?, connections: 0, range: None };
    if role == "bare" {
        return bare_http::serve(Path::new(dir), load.objects, |number| content(&load, number));
    }
    runtime_of(if role == "ron2" { 2 } else { 1 })?.block_on(async {
        let (host, default) = (Supervisor::new("serve"), Settings::default());
        // One address asks for everything here, and may.
        let limits =
            GateLimits { per_second: 10_000_000, burst: 10_000_000, in_flight: 1024, ..default.total_limits };
        let settings = Settings { client_limits: limits, total_limits: limits, ..default };
        let store = Store::builder()
            .settings(settings)
            .data(Arc::new(RealDisk::open(PathBuf::from(dir))?), "objects")
            .start(&host)
            .await?;
        let server = Server::builder(ron_storage::http::router(&store));
        let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&host).await?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "http://{}", server.local_addrs()[0])?;
        for number in 0..load.objects {
            let content = Bytes::from(content(&load, number));
            let stored = store.put_bytes(content, Deadline::after(Duration::from_secs(60))).await?;
            writeln!(out, "/o/{}", stored.id)?;
        }
        out.flush()?;
        drop(out);
        tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
        host.shutdown().await;
        Ok(())
    })
}

fn wrk(dir: &Path, load: &Load, url: &str, paths: &[String], server: u32, seconds: u64) -> Outcome<Run> {
    let list = paths.iter().map(|path| format!("{path:?}")).collect::<Vec<_>>().join(",");
    let request = match load.range {
        None => "return wrk.format('GET', paths[n % #paths + 1])".to_owned(),
        Some(len) => format!(
            "local at = (n * 104729 * 4096) % ({} - {len})\n\
             return wrk.format('GET', paths[1], {{ ['Range'] = 'bytes=' .. string.format('%d-%d', at, at + {len} - 1) }})",
            load.len
        ),
    };
    let script = dir.join("load.lua");
    fs::write(
        &script,
        format!("local paths = {{{list}}}\nlocal n = 0\nrequest = function()\nn = n + 1\n{request}\nend\n"),
    )?;
    let before = cpu_of(server)?;
    let mut command = Command::new("wrk");
    command.args(["-t1", "--latency", &format!("-c{}", load.connections), &format!("-d{seconds}s"), "-s"]);
    let output = command.arg(&script).arg(url).output()?;
    let spent = cpu_of(server)? - before;
    let text = String::from_utf8(output.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") || !output.status.success() {
        return Err(format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let total = text
        .lines()
        .find_map(|line| line.trim_start().split_once(" requests in "))
        .ok_or("wrk counts requests")?;
    let requests: f64 = total.0.parse()?;
    let gib = requests * load.range.unwrap_or(load.len) as f64 / f64::from(1 << 30);
    Ok(Run {
        per_second: field(&text, "Requests/sec:")?.parse()?,
        p50_ms: millis(field(&text, "50%")?)?,
        p99_ms: millis(field(&text, "99%")?)?,
        cpu: spent / gib,
        memory_mib: memory(server)?,
    })
}

/// One address asked for again and again: requests a second, and the p50 and p99 in milliseconds.
pub(crate) fn wrk_once(url: &str, connections: usize, seconds: u64) -> Outcome<(f64, f64, f64)> {
    let mut command = Command::new("wrk");
    command.args(["-t1", "--latency", &format!("-c{connections}"), &format!("-d{seconds}s"), url]);
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") || !output.status.success() {
        return Err(format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok((
        field(&text, "Requests/sec:")?.parse()?,
        millis(field(&text, "50%")?)?,
        millis(field(&text, "99%")?)?,
    ))
}

/// What `wrk` says behind a name.
fn field<'a>(text: &'a str, name: &str) -> Outcome<&'a str> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
    Ok(line.ok_or_else(|| format!("no {name}: {text}"))?.trim())
}

/// `12.34us`, `1.2ms` or `3.4s`.
fn millis(text: &str) -> Outcome<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or("a time has a unit")?;
    let value: f64 = text[..at].parse()?;
    Ok(match &text[at..] {
        "us" => value / 1000.0,
        "ms" => value,
        "s" => value * 1000.0,
        other => return Err(format!("no unit: {other}").into()),
    })
}

/// MiB of a process that are in memory.
pub(crate) fn memory(process: u32) -> Outcome<f64> {
    let pages = fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm has a second field")?.parse()?;
    Ok((pages * rustix::param::page_size() as u64) as f64 / MIB as f64)
}
