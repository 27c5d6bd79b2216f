//! An answer out of the cache over HTTP: ours, with admission, limits of time and metrics; axum over the same cache without
//! them; bare hyper that always says the same; nginx that does.
//!
//! Each server is a process of its own with two threads, and `wrk` with one thread and 64 connections asks it over the
//! loopback interface for ten thousand keys in turn. Bodies have the same length. Contenders take turns. Processor time and memory are
//! those of the server, of nginx with its workers.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Path as UrlPath, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use ron_core::{ContentId, Deadline, Metrics, NodeId, Supervisor, http::Server};
use ron_index::{
    Index, Key, Rate, Settings, http,
    source::{Answered, Ask, BoxFuture, Provider, Providers, SourceError},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Outcome, median};

/// Keys that are asked for in turn.
const KEYS: u32 = 10_000;

/// What `wrk` does for each contender and round.
const SECONDS: u64 = 3;
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 64;

/// Three providers for everything.
struct Three;

impl Providers for Three {
    fn label(&self) -> &'static str {
        "three"
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        for id in 1..=3 {
            ask.found(Provider::new(NodeId::from_bytes([id; 32]), [([10, 0, id, 7], 4710).into()]));
        }
        Box::pin(async { Ok(Answered { is_final: true }) })
    }
}

pub(crate) fn key(number: u32) -> Key {
    Key::Content(ContentId::of(&number.to_le_bytes()))
}

/// An index that one address may ask as much as it can.
pub(crate) fn index(host: &Supervisor, metrics: Metrics) -> Outcome<Index> {
    let settings = Settings {
        enough: 3.try_into()?,
        client_in_flight: 100_000,
        client_rate: Some(Rate { per_second: 100_000_000, burst: 100_000_000 }),
        total_rate: 100_000_000,
        client_lookups: 100_000,
        ..Settings::default()
    };
    Ok(Index::builder().providers(Three).settings(settings).metrics(metrics).start(host)?)
}

/// What ours answers, as text.
async fn bodies(host: &Supervisor) -> Outcome<Vec<(String, Bytes)>> {
    let index = index(host, Metrics::default())?;
    let mut bodies = Vec::new();
    for number in 0..KEYS {
        let answer = index.resolve(&key(number), Deadline::after(Duration::from_secs(5))).await?;
        let json = http::dto::AnswerDto::of(&answer, 5, false);
        bodies.push((key(number).to_string(), Bytes::from(http::dto::to_json(&json))));
    }
    Ok(bodies)
}

/// The process that is asked.
pub(crate) fn child(role: &str) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let host = Supervisor::new("serve");
        let address = match role {
            "ron" => {
                let mut registry = ron_core::prometheus_client::registry::Registry::default();
                let index = index(&host, Metrics::register("ron_index", &mut registry))?;
                for number in 0..KEYS {
                    index.resolve(&key(number), Deadline::after(Duration::from_secs(5))).await?;
                }
                let mut settings = ron_core::http::Settings::default();
                settings.connections_per_client = 4096;
                let server = Server::builder(http::lookups(&index)).settings(settings);
                let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&host).await?;
                let address = server.local_addrs()[0];
                std::mem::forget((server, index));
                address
            }
            "axum" => serve_axum(bodies(&host).await?).await?,
            "hyper" => serve_hyper(bodies(&host).await?.remove(0).1).await?,
            other => return Err(format!("no role {other}").into()),
        };
        println!("http://{address}");
        tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
        host.shutdown().await;
        Ok(())
    })
}

type Answers = Arc<quick_cache::sync::Cache<Key, Bytes>>;

/// axum over the same cache, as somebody would write it in an afternoon.
async fn serve_axum(bodies: Vec<(String, Bytes)>) -> Outcome<SocketAddr> {
    let cache = Answers::new(quick_cache::sync::Cache::new(2 * KEYS as usize));
    for (key, body) in bodies {
        cache.insert(key.parse()?, body);
    }
    async fn resolve(State(cache): State<Answers>, UrlPath(key): UrlPath<String>) -> Response {
        match key.parse().ok().and_then(|key: Key| cache.get(&key)) {
            Some(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            None => axum::http::StatusCode::NOT_FOUND.into_response(),
        }
    }
    let routes = Router::new().route("/resolve/{*key}", get(resolve)).with_state(cache);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        use axum::serve::ListenerExt as _;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, routes).await
    });
    Ok(address)
}

/// hyper that says the same to everybody.
async fn serve_hyper(body: Bytes) -> Outcome<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let body = body.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |_| {
                    let mut response = hyper::Response::new(http_body_util::Full::new(body.clone()));
                    let json = HeaderValue::from_static("application/json");
                    response.headers_mut().insert(header::CONTENT_TYPE, json);
                    async move { Ok::<_, std::convert::Infallible>(response) }
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                let _ = hyper::server::conn::http1::Builder::new()
                    .pipeline_flush(true)
                    .serve_connection(io, service)
                    .await;
            });
        }
    });
    Ok(address)
}

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

struct Contender {
    name: &'static str,
    url: String,
    process: Process,
    runs: Vec<Run>,
}

/// One run of `wrk`.
struct Run {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Microseconds of the server's processor time for each request.
    cpu_us: f64,
}

impl Contender {
    /// Its process and those that it started.
    fn processes(&self) -> Vec<u32> {
        let own = self.process.0.id();
        let started = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        started.split_whitespace().filter_map(|id| id.parse().ok()).chain([own]).collect()
    }

    /// Seconds that it has worked, the kernel's part included.
    fn cpu(&self) -> Outcome<f64> {
        let mut ticks = 0;
        for process in self.processes() {
            let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
            let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("stat has a name")?.1.split(' ').collect();
            ticks += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        }
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// MiB that it had in memory at its highest.
    fn peak(&self) -> Outcome<f64> {
        let mut kib = 0.0;
        for process in self.processes() {
            let status = fs::read_to_string(format!("/proc/{process}/status"))?;
            let peak =
                status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("there is a peak")?;
            kib += peak.trim().trim_end_matches(" kB").parse::<f64>()?;
        }
        Ok(kib / 1024.0)
    }
}

fn start(name: &'static str, role: &str) -> Outcome<Contender> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(format!("--serve-{role}")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let out = BufReader::new(child.stdout.take().ok_or("it has an output")?);
    let process = Process(child);
    let url = out.lines().next().ok_or("it ended")??;
    Ok(Contender { name, url, process, runs: Vec::new() })
}

fn start_nginx(dir: &Path, body: &str) -> Outcome<Contender> {
    fs::create_dir_all(dir.join("logs"))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = format!(
        "daemon off; worker_processes 2; pid nginx.pid; error_log logs/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 100000000; tcp_nodelay on;\n\
         client_body_temp_path cb; proxy_temp_path pt; fastcgi_temp_path ft; uwsgi_temp_path ut; scgi_temp_path st;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ default_type application/json; return 200 '{body}'; }} }} }}\n"
    );
    fs::write(dir.join("nginx.conf"), config)?;
    Command::new("chmod").args(["-R", "a+rX"]).arg(dir).status()?;
    let child = Command::new("nginx").arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).spawn()?;
    let process = Process(child);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    for _ in 0..100 {
        if std::net::TcpStream::connect(address).is_ok() {
            return Ok(Contender {
                name: "nginx `return 200`",
                url: format!("http://{address}"),
                process,
                runs: Vec::new(),
            });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("nginx does not listen".into())
}

fn wrk(script: &Path, server: &Contender, seconds: u64) -> Outcome<Run> {
    let mut command = Command::new("wrk");
    command.args(["-t1", "--latency", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "-s"]);
    let before = server.cpu()?;
    let output = command.arg(script).arg(&server.url).output()?;
    let spent = server.cpu()? - before;
    let text = String::from_utf8(output.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") || !output.status.success() {
        return Err(format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let field = |name: &str| -> Outcome<&str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        Ok(line.ok_or_else(|| format!("no {name}: {text}"))?.trim_start()[name.len()..].trim())
    };
    let total = text.lines().find_map(|line| line.trim_start().split_once(" requests in "));
    let total: f64 = total.ok_or("wrk counts requests")?.0.parse()?;
    Ok(Run {
        per_second: field("Requests/sec:")?.parse()?,
        cpu_us: spent * 1e6 / total,
        p50_ms: millis(field("50%")?)?,
        p99_ms: millis(field("99%")?)?,
    })
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

pub(crate) fn run(is_quick: bool) -> Outcome<()> {
    for program in ["nginx", "wrk"] {
        if Command::new(program).arg("-v").output().is_err() {
            println!("Left out: there is no `{program}` here.");
            return Ok(());
        }
    }
    let (rounds, seconds) = if is_quick { (1, 1) } else { (ROUNDS, SECONDS) };
    let dir = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (paths, body) = runtime.block_on(async {
        let host = Supervisor::new("bodies");
        let bodies = bodies(&host).await?;
        host.shutdown().await;
        let body = String::from_utf8(bodies[0].1.to_vec())?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
            bodies.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
            body,
        ))
    })?;
    drop(runtime);
    let script = dir.path().join("load.lua");
    let mut file = fs::File::create(&script)?;
    writeln!(file, "local n = 0\nlocal requests = {{")?;
    for path in &paths {
        writeln!(file, "'GET /resolve/{path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n',")?;
    }
    writeln!(file, "}}\nrequest = function()\nn = n % #requests + 1\nreturn requests[n]\nend")?;
    let mut contenders = [
        start("axum, the same cache", "axum")?,
        start("ron-index", "ron")?,
        start("hyper, one answer", "hyper")?,
        start_nginx(dir.path(), &body)?,
    ];
    for turn in 0..=rounds {
        for at in 0..contenders.len() {
            let at = (at + turn) % contenders.len();
            let run = wrk(&script, &contenders[at], seconds)?;
            if turn > 0 {
                contenders[at].runs.push(run);
            }
        }
    }
    println!("Body of {} bytes, {CONNECTIONS} connections.\n", body.len());
    println!(
        "| Server | Requests/s | of axum | of hyper | p50 ms | p99 ms | of axum's | CPU µs each | peak MiB |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    let ratio = |one: &Contender, other: &Contender, of: fn(&Run) -> f64| {
        median(one.runs.iter().zip(&other.runs).map(|(one, other)| of(one) / of(other)).collect())
    };
    for one in &contenders {
        let of = |figure: fn(&Run) -> f64| median(one.runs.iter().map(figure).collect());
        println!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.0} |",
            one.name,
            of(|run| run.per_second),
            ratio(one, &contenders[0], |run| run.per_second),
            ratio(one, &contenders[2], |run| run.per_second),
            of(|run| run.p50_ms),
            of(|run| run.p99_ms),
            ratio(one, &contenders[0], |run| run.p99_ms),
            of(|run| run.cpu_us),
            one.peak()?,
        );
    }
    Ok(())
}
