//! Starts the subsystems in the order in which they need each other, and stops them in reverse.

use std::{
    error::Error,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Router, http::StatusCode};
use prometheus_client::registry::Registry as Prometheus;
use ron_core::{
    Event, Metrics, Supervisor,
    auth::{Authorizer, TokenFile},
    disk::RealDisk,
    http::{HttpMetrics, Problem, Server, VersionInfo, ops_router},
    net::{Endpoint, Identity, NetError},
};
use ron_dht::{Dht, DhtError};
use ron_overlay::Overlay;
use ron_registry::{Registry, ReloadSource, net::Links};
use ron_storage::{StorageError, Store, fetch::Fetcher, peers};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::{Config, ConfigError},
    log, providers,
    topics::{self, ByDht},
};

/// A node that runs.
pub(crate) struct Running {
    /// Under it everything else lives.
    pub(crate) host: Supervisor,
    /// Health, readiness, metrics, and the routes of the subsystems.
    pub(crate) admin: Server,
    /// Where the token is that their changes need.
    pub(crate) token: PathBuf,
    /// Its place on the network.
    pub(crate) endpoint: Endpoint,
    /// Finds peers and content.
    pub(crate) dht: Dht,
    /// Sessions and gossip.
    pub(crate) overlay: Overlay,
    /// Keeps objects.
    pub(crate) store: Store,
    /// Keeps a log, its own or another's.
    pub(crate) registry: Registry,
    _links: Links,
    _blobs: peers::Links,
}

/// Starts a node. The admin listener is first, so that whoever watches sees the rest come up.
pub(crate) async fn start(config: &Config) -> Result<Running, Box<dyn Error>> {
    let data = config.data_dir()?;
    std::fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
    let identity = Identity::load_or_create(data.join("node.key"))?;
    let tokens = TokenFile::open(data.join("token"))?;

    let mut scraped = Prometheus::default();
    let core = Metrics::register("ron_core", &mut scraped);
    let of_dht = Metrics::register("ron_dht", &mut scraped);
    let of_overlay = Metrics::register("ron_overlay", &mut scraped);
    let of_storage = Metrics::register("ron_storage", &mut scraped);
    let of_registry = Metrics::register("ron_registry", &mut scraped);
    let of_http = HttpMetrics::register("refd", &mut scraped);
    let host = Supervisor::builder("refd").metrics(core.clone()).start();
    host.ready().register("refd", &mut scraped);
    let version = VersionInfo::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let ops = ops_router(host.ready().clone(), Arc::new(scraped), version);
    let admin = Server::builder(Router::new().fallback(starting)).ops(ops).listen(config.admin.listen);
    let admin = admin.metrics(core).http_metrics(of_http).start(&host).await;
    let admin = admin.map_err(|error| elsewhere(&error, config.admin.listen, "--admin or admin.listen"))?;

    let store = Store::builder().settings(config.storage.settings()).metrics(of_storage);
    let store = if config.storage.memory {
        store.memory()
    } else {
        store.data(Arc::new(RealDisk::open(&data)?), "store")
    };
    let store = store.start(&host).await.map_err(|error| with_path(&data, error))?;

    let mut endpoint = Endpoint::builder(identity);
    for addr in &config.net.listen {
        endpoint = endpoint.listen(*addr);
    }
    let endpoint = endpoint.start(&host).map_err(|error| match error {
        NetError::Listen { addr, .. } => elsewhere(&error, addr, "--listen or net.listen"),
        error => error.into(),
    })?;

    let settings = ron_dht::Settings {
        preset: config.dht.preset.into(),
        server: config.dht.server,
        ..ron_dht::Settings::default()
    };
    let dht = Dht::builder().settings(settings).seeds(config.seeds()?).external(config.net.external.clone());
    let dht = dht.metrics(of_dht).data(Arc::new(RealDisk::open(&data)?), "dht").start(&endpoint, &host).await;
    let dht = dht.map_err(|error| match error {
        DhtError::Store { .. } => format!("{}: {error}", data.join("dht").display()).into(),
        error => Box::<dyn Error>::from(error),
    })?;

    let overlay =
        Overlay::builder().settings(config.overlay.settings()).external(config.net.external.clone());
    let overlay = overlay.metrics(of_overlay).source(ByDht(dht.clone())).start(&endpoint, &host).await?;
    topics::join(&config.overlay.topics, &config.seeds()?, &overlay, &dht, &host).await?;

    let links = Links::start(&endpoint, &host)?;
    let registry =
        log::start(&config.registry, &data, endpoint.node_id(), &links, of_registry, &host).await?;

    let token = tokens.path().to_owned();
    let tokens: Arc<dyn Authorizer> = Arc::new(tokens);
    // Everybody may read what it can name, and whoever has the token may offer.
    let blobs = peers::Links::start(&endpoint, &host)?;
    blobs.serve(&store, peers::Rules { writes: Some(Arc::clone(&tokens)), ..peers::Rules::default() });
    let fetcher = Fetcher::new(blobs.clone(), &store);
    let finder = Arc::new(providers::ByDht(dht.clone()));
    let of_dht = ron_dht::http::router(&dht).merge(ron_dht::http::mutations(&dht, Arc::clone(&tokens)));
    let of_store =
        ron_storage::http::router(&store).merge(ron_storage::http::guarded(&store, Arc::clone(&tokens)));
    let of_store = of_store.merge(ron_storage::http::fetching(&fetcher, finder, Arc::clone(&tokens)));
    links.serve(&registry, Some(Arc::clone(&tokens)));
    let of_registry =
        ron_registry::http::router(&registry).merge(ron_registry::http::guarded(&registry, tokens));
    let of_overlay = ron_overlay::http::router(&overlay);
    let routes = of_store.nest("/dht", of_dht).nest("/overlay", of_overlay).nest("/registry", of_registry);
    admin.mount(routes);
    Ok(Running { host, admin, token, endpoint, dht, overlay, store, registry, _links: links, _blobs: blobs })
}

/// An address that is taken, and where another is chosen.
fn elsewhere(error: &dyn Error, addr: SocketAddr, by: &str) -> Box<dyn Error> {
    let words = crate::with_causes(error);
    let words = if words.contains(&addr.to_string()) { words } else { format!("{addr}: {words}") };
    format!("{words}; choose another with {by}").into()
}

/// The store says what is wrong, and this where.
fn with_path(data: &Path, error: StorageError) -> Box<dyn Error> {
    if matches!(error, StorageError::Locked { .. }) {
        let data = data.display();
        return format!("{data} is in use by another node; give this one its own with --data-dir").into();
    }
    format!("{}: {}", data.join("store").display(), crate::with_causes(&error)).into()
}

/// Answers for whatever is still being started.
async fn starting() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "starting", "the node is starting")
        .retry_after(Duration::from_secs(1))
}

/// Takes over what may change while the node runs, which so far is the log's part. What cannot is said, and stays.
fn reload(node: &Running, config: Result<Config, ConfigError>) {
    let taken = config.map_err(|error| crate::with_causes(&error)).and_then(|config| {
        let settings = config.registry.settings();
        node.registry.reload_by(ReloadSource::Signal, settings).map_err(|error| crate::with_causes(&error))
    });
    match taken {
        Ok(()) => println!("settings of the log taken over"),
        Err(error) => eprintln!("refd: the settings stay as they are: {error}"),
    }
}

/// Runs a node until it is asked to stop, then drains it. A second request cuts it off. SIGHUP reads the settings `again`.
pub(crate) async fn run(
    config: Config,
    again: impl Fn() -> Result<Config, ConfigError>,
) -> Result<(), Box<dyn Error>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let node = start(&config).await?;
    println!("node {}", node.endpoint.node_id());
    for addr in node.endpoint.local_addrs() {
        println!("listens on {addr}; others begin with --seed {}@{addr}", node.endpoint.node_id());
    }
    for addr in node.admin.local_addrs() {
        println!("health, readiness and metrics on http://{addr}/readyz?verbose");
        println!("the DHT on http://{addr}/dht/status; changes need the token in {}", node.token.display());
        println!(
            "the overlay on http://{addr}/overlay/status; on {} topics, which overlay.topics names",
            config.overlay.topics.len()
        );
        println!(
            "objects on http://{addr}/o/ID ({} here); refd put FILE stores one",
            node.store.usage().objects
        );
        println!(
            "the log {} on http://{addr}/registry/head ({} entries{}); refd registry init begins one",
            node.registry.origin(),
            node.registry.head().version,
            if node.registry.follows() { ", followed" } else { "" },
        );
    }
    let (mut of_dht, mut of_overlay) = (node.dht.events(), node.overlay.events());
    let watch = async {
        let mut looked = None;
        loop {
            tokio::select! {
                Some(event) = of_dht.recv() => {
                    // A table that is as it was is no news, however often it was looked over.
                    let is_look = matches!(event, Event::Item(ron_dht::Event::Refreshed { .. }));
                    if !is_look || looked.as_ref() != Some(&event) {
                        tracing::info!(?event, "dht");
                    }
                    looked = if is_look { Some(event) } else { looked };
                }
                Some(event) = of_overlay.recv() => tracing::info!(?event, "overlay"),
                Some(()) = hangup.recv() => reload(&node, again()),
                else => std::future::pending().await,
            }
        }
    };
    let fatal = tokio::select! {
        () = watch => None,
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        fatal = node.host.fatal() => Some(fatal),
    };
    println!("stopping");
    let stopped = tokio::select! {
        stopped = node.host.shutdown() => stopped,
        _ = terminate.recv() => return Err("cut off by a second request to stop".into()),
        _ = interrupt.recv() => return Err("cut off by a second request to stop".into()),
    };
    if let Err(error) =
        config.data_dir().map_err(std::io::Error::other).and_then(|data| log::remember(&node.registry, &data))
    {
        tracing::warn!(%error, "how far the log was verified could not be kept");
    }
    println!(
        "stopped: {} tasks drained, {} cut off, {:?}",
        stopped.drained, stopped.aborted, stopped.elapsed
    );
    match fatal {
        None => Ok(()),
        Some(fatal) => Err(format!("a task failed: {fatal:?}").into()),
    }
}
