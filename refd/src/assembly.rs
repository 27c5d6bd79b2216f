//! Starts the subsystems in the order in which they need each other, and stops them in reverse.

use std::{
    error::Error, net::SocketAddr, os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc, time::Duration,
};

use axum::Router;
use prometheus_client::registry::Registry as Prometheus;
use ron_core::{
    Deadline, Event, Inbox, Metrics, ReadyGate, Snapshot, Subscriber, Supervisor,
    auth::{Authorizer, TokenFile},
    disk::RealDisk,
    http::{HttpMetrics, VersionInfo, ops_router},
    net::{Endpoint, EndpointSettings, Identity, NetError, rpc::PeersSettings},
};
use ron_dht::{Dht, DhtError};
use ron_index::{
    Index,
    source::{DhtNames, DhtProviders, KeepingProviders, StoreManifests, StoreProviders},
};
use ron_overlay::Overlay;
use ron_registry::{LogTrust, Registry, ReloadSource, net::Links};
use ron_storage::{
    StorageError, Store,
    fetch::{Fetcher, Finder},
    http::Kept,
    peers,
    repair::KeepingEvent,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    admin::Admin,
    company::Company,
    config::{Config, ConfigError},
    dashboard::{self, Watched},
    doctor, gossip,
    life::{self, Stops},
    log, openapi,
    providers::{ByDht, Everywhere},
    reload::{self, Desk, Doors, Order, Parts, SetFilter},
    systemd::Notify,
    topics,
};

/// What a reload that nobody waits for may take.
const RELOAD_MAX: Duration = Duration::from_secs(10);

/// A node that runs.
pub(crate) struct Running {
    /// Under it everything else lives.
    pub(crate) host: Supervisor,
    /// Opened when all of it is there.
    pub(crate) gate: ReadyGate,
    /// Health, readiness, metrics, and the routes of the subsystems.
    pub(crate) admin: Admin,
    /// The token that their changes need.
    pub(crate) token: TokenFile,
    /// Where other settings are asked for, and who asked.
    pub(crate) desk: Desk,
    pub(crate) orders: Inbox<Order>,
    /// What only this program counts.
    pub(crate) metrics: Metrics,
    /// Its place on the network.
    pub(crate) endpoint: Endpoint,
    /// Finds peers and content.
    pub(crate) dht: Dht,
    /// Sessions and gossip.
    pub(crate) overlay: Overlay,
    /// Keeps objects.
    pub(crate) store: Store,
    /// With others, if there are any.
    pub(crate) company: Option<Company>,
    /// Keeps a log, its own or another's.
    pub(crate) registry: Registry,
    /// Says where things are.
    pub(crate) index: Index,
    /// Objects of others.
    pub(crate) blobs: peers::Links,
    /// What sends traces, if they are wanted.
    #[cfg(feature = "otel")]
    pub(crate) traces: Option<crate::otel::Traces>,
    _links: Links,
}

/// Starts a node. The admin listener is first, so that whoever watches sees the rest come up.
pub(crate) async fn start(config: &Config) -> Result<Running, Box<dyn Error>> {
    // A node without a memory has no place for data, not even an empty one.
    let data = if config.node.amnesia { None } else { Some(config.data_dir()?) };
    let identity = match &data {
        None => Identity::generate()?,
        Some(data) => {
            // Only its owner looks in, as `refd init` makes it.
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
            made.map_err(|error| format!("{}: {error}", data.display()))?;
            Identity::load_or_create(data.join("node.key"))?
        }
    };
    let owner = identity.clone();
    let tokens = TokenFile::open(config.token_file()?)?;

    let mut scraped = Prometheus::default();
    let core = Metrics::register("ron_core", &mut scraped);
    let of_dht = Metrics::register("ron_dht", &mut scraped);
    let of_overlay = Metrics::register("ron_overlay", &mut scraped);
    let of_storage = Metrics::register("ron_storage", &mut scraped);
    let of_registry = Metrics::register("ron_registry", &mut scraped);
    let of_index = Metrics::register("ron_index", &mut scraped);
    let of_http = HttpMetrics::register("refd", &mut scraped);
    let of_refd = Metrics::register("refd", &mut scraped);
    let host = Supervisor::builder("refd").metrics(core.clone()).start();
    host.ready().register("refd", &mut scraped);
    let gate = life::gate(&host);
    let version = VersionInfo::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let scraped = Arc::new(scraped);
    let ops = ops_router(host.ready().clone(), Arc::clone(&scraped), version);
    let admin = Admin::start(&config.admin, ops, core, of_http, &host).await;
    let mut admin =
        admin.map_err(|error| elsewhere(&error, config.admin.listen, "--admin or admin.listen"))?;
    #[cfg(debug_assertions)]
    life::plant_start().await;

    let store = Store::builder().settings(config.storage.settings()).metrics(of_storage.clone());
    let store = match data.as_deref().filter(|_| !config.storage.memory) {
        None => store.memory(),
        Some(data) => store.data(Arc::new(RealDisk::open(data)?), "store"),
    };
    let store = store.start(&host).await.map_err(|error| with_path(data.as_deref(), error))?;

    let handshakes_max = config.net.handshakes_max;
    let mut endpoint = Endpoint::builder(identity)
        .settings(EndpointSettings { handshakes_max, ..EndpointSettings::default() });
    for addr in &config.net.listen {
        endpoint = endpoint.listen(*addr);
    }
    let endpoint = endpoint.start(&host).map_err(|error| match error {
        NetError::Listen { addr, .. } => elsewhere(&error, addr, "--listen or net.listen"),
        error => error.into(),
    })?;

    let dht = Dht::builder().settings(config.dht.settings()).seeds(config.seeds()?);
    let dht = dht.external(config.net.external.clone()).metrics(of_dht);
    let dht = match &data {
        None => dht,
        Some(data) => dht.data(Arc::new(RealDisk::open(data)?), "dht"),
    };
    let dht = dht.start(&endpoint, &host).await.map_err(|error| match (error, &data) {
        (error @ DhtError::Store { .. }, Some(data)) => {
            format!("{}: {error}", data.join("dht").display()).into()
        }
        (error, _) => Box::<dyn Error>::from(error),
    })?;

    let overlay =
        Overlay::builder().settings(config.overlay.settings()).external(config.net.external.clone());
    let overlay =
        overlay.metrics(of_overlay).source(topics::ByDht(dht.clone())).start(&endpoint, &host).await?;
    topics::join(&config.overlay.topics, &config.seeds()?, &overlay, &dht, &host).await?;

    let links = Links::start_with(&endpoint, config.links(PeersSettings::default()), &host)?;
    let registry =
        log::start(&config.registry, data.as_deref(), endpoint.node_id(), &links, of_registry, &host).await?;

    let token = tokens.clone();
    let tokens: Arc<dyn Authorizer> = Arc::new(tokens);
    // Everybody may read what it can name, and whoever has the token may offer.
    let blobs = peers::Links::start_with(&endpoint, config.links(peers::links_settings()), &host)?;
    let rules = peers::Rules { writes: Some(Arc::clone(&tokens)), ..peers::Rules::default() };
    let parts = (&endpoint, &dht, &store, &blobs);
    let company = Company::start(config, data.as_deref(), owner, parts, of_storage, &host)?;
    let index = index(config, &endpoint, &store, &dht, &registry);
    let index = match &company {
        Some(company) => index.providers(KeepingProviders::new(&company.keeping)),
        None => index,
    };
    let index = index.metrics(of_index).start(&host)?;
    blobs.serve(&store, company.as_ref().map_or(rules.clone(), |company| company.rules(rules)));
    let fetcher = Fetcher::new(blobs.clone(), &store);
    let by_dht = ByDht(dht.clone());
    let finder: Arc<dyn Finder> = match &company {
        Some(company) => Arc::new(Everywhere { keeping: company.keeping.clone(), dht: by_dht }),
        None => Arc::new(by_dht),
    };
    let of_dht = ron_dht::http::router(&dht).merge(ron_dht::http::mutations(&dht, Arc::clone(&tokens)));
    let of_store =
        match &company {
            Some(Company { kept, .. }) => ron_storage::http::kept(kept)
                .merge(ron_storage::http::kept_guarded(kept, Arc::clone(&tokens))),
            None => ron_storage::http::router(&store)
                .merge(ron_storage::http::guarded(&store, Arc::clone(&tokens))),
        };
    let of_store = of_store.merge(ron_storage::http::fetching(&fetcher, finder, Arc::clone(&tokens)));
    links.serve(&registry, Some(Arc::clone(&tokens)));
    let of_registry = ron_registry::http::router(&registry)
        .merge(ron_registry::http::guarded(&registry, Arc::clone(&tokens)));
    let of_index =
        ron_index::http::router(&index).merge(ron_index::http::guarded(&index, Arc::clone(&tokens)));
    let of_overlay = ron_overlay::http::router(&overlay);
    let routes = of_store.nest("/dht", of_dht).nest("/overlay", of_overlay).nest("/registry", of_registry);
    // At the root too, where clients of other indexes look for them.
    let routes = routes.nest("/index", of_index).merge(ron_index::http::lookups(&index));
    let (desk, orders) = Desk::open(&of_refd);
    let kept = company.as_ref().map(|company| company.kept.clone());
    let parts = (&dht, &overlay, &store, &registry, kept);
    let own = own_routes(&desk, parts, &endpoint, &host, scraped, tokens, &of_refd);
    let routes = routes.merge(own);
    #[cfg(feature = "otel")]
    let traces = match &config.otel.endpoint {
        Some(collector) => Some(crate::otel::Traces::start(collector, endpoint.node_id())?),
        None => None,
    };
    #[cfg(feature = "otel")]
    let routes = match &traces {
        Some(traces) => traces.of(routes),
        None => routes,
    };
    admin.mount(routes);
    let metrics = of_refd;
    Ok(Running {
        host,
        gate,
        admin,
        token,
        desk,
        orders,
        metrics,
        endpoint,
        dht,
        overlay,
        store,
        company,
        registry,
        index,
        blobs,
        #[cfg(feature = "otel")]
        traces,
        _links: links,
    })
}

/// Where things are: names by the log and by their owners, manifests and this node by its store, providers by the DHT.
pub(crate) fn index(
    config: &Config,
    endpoint: &Endpoint,
    store: &Store,
    dht: &Dht,
    registry: &Registry,
) -> ron_index::Builder {
    let external = &config.net.external;
    let this = StoreProviders::new(store, endpoint.node_id(), external.iter().copied())
        .public_key(*dht.public_key().as_bytes());
    let this = match external.is_empty() {
        true => {
            let endpoint = endpoint.clone();
            this.addrs(move || endpoint.local_addrs().to_vec())
        }
        false => this,
    };
    let this = match &config.index.region {
        Some(region) => this.region(region.as_str()),
        None => this,
    };
    Index::builder()
        .settings(config.index.settings())
        .registry(registry, LogTrust::new(registry.log_key()))
        .names(DhtNames::new(dht))
        .manifests(StoreManifests::new(store))
        .providers(this)
        .providers(DhtProviders::new(dht))
}

/// What this program serves beside the subsystems.
fn own_routes(
    desk: &Desk,
    (dht, overlay, store, registry, kept): (&Dht, &Overlay, &Store, &Registry, Option<Kept>),
    endpoint: &Endpoint,
    host: &Supervisor,
    scraped: Arc<Prometheus>,
    tokens: Arc<dyn Authorizer>,
    metrics: &Metrics,
) -> Router {
    let watched = Watched {
        ready: host.ready().clone(),
        endpoint: endpoint.clone(),
        dht: dht.clone(),
        overlay: overlay.clone(),
        store: store.clone(),
        kept,
        registry: registry.clone(),
        scraped,
    };
    dashboard::router(watched, metrics)
        .merge(openapi::router())
        .merge(gossip::router(overlay, Arc::clone(&tokens), metrics))
        .merge(desk.router(tokens, metrics))
}

/// An address that is taken, and where another is chosen.
fn elsewhere(error: &dyn Error, addr: SocketAddr, by: &str) -> Box<dyn Error> {
    let words = crate::with_causes(error);
    let words = if words.contains(&addr.to_string()) { words } else { format!("{addr}: {words}") };
    format!("{words}; choose another with {by}").into()
}

/// The store says what is wrong, and this where.
fn with_path(data: Option<&Path>, error: StorageError) -> Box<dyn Error> {
    let Some(data) = data else { return error.into() };
    if matches!(error, StorageError::Locked { .. }) {
        let data = data.display();
        return format!("{data} is in use by another node; give this one its own with --data-dir").into();
    }
    format!("{}: {}", data.join("store").display(), crate::with_causes(&error)).into()
}

/// Runs a node until it is asked to stop, then drains it. A second request cuts it off. SIGHUP reads the settings `again`.
pub(crate) async fn run(
    config: Config,
    again: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static,
    set_filter: SetFilter,
) -> Result<(), Box<dyn Error>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut stops, notify) = (Stops::new()?, Notify::from_env());
    if let Some(short) = doctor::descriptors_short(&config) {
        tracing::warn!("{short}");
    }
    let node = tokio::select! {
        biased;
        node = start(&config) => node?,
        // Nothing was promised to anybody yet, so there is nothing to finish.
        () = stops.next() => {
            notify.say("STOPPING=1");
            println!("stopped before it had started");
            return Ok(());
        }
    };
    introduce(&node, &config);
    let Running {
        host,
        gate,
        admin,
        token: tokens,
        desk,
        orders,
        metrics,
        endpoint,
        dht,
        overlay,
        store,
        company,
        registry,
        index,
        ..
    } = node;
    let events = (dht.events(), overlay.events());
    let of_company = company.as_ref().map(|company| company.keeping.events());
    let doors = Doors::new(endpoint.clone(), &config.net.listen);
    let config = Snapshot::new(config);
    let kept = registry.clone();
    let parts = Parts { doors, dht, overlay, store, company, registry, index, tokens, admin, set_filter };
    reload::start(&desk, orders, &host, parts, config.clone(), again, metrics);
    let reloading = async {
        while hangup.recv().await.is_some() {
            let done = desk.reload(ReloadSource::Signal, Deadline::after(RELOAD_MAX)).await;
            match done {
                Ok(Ok(changed)) if changed.is_empty() => println!("settings read again: nothing changed"),
                Ok(Ok(changed)) => {
                    println!("settings taken over: {} changed", changed.join(", "));
                    if changed.iter().any(|key| key == "net.listen") {
                        tell_addrs(&endpoint);
                    }
                }
                Ok(Err(error)) => {
                    eprintln!("refd: the settings stay as they are: {}", crate::with_causes(&error))
                }
                Err(error) => eprintln!("refd: the settings stay as they are: {error}"),
            }
        }
    };
    let living = async {
        loop {
            notify.due().await;
            notify.say("WATCHDOG=1");
        }
    };
    #[cfg(debug_assertions)]
    life::plant(&host)?;
    gate.open();
    notify.say("READY=1");
    let fatal = tokio::select! {
        () = tell(events.0, events.1, of_company) => None,
        () = living => None,
        () = async { reloading.await; std::future::pending().await } => None,
        () = stops.next() => None,
        fatal = host.fatal() => Some(fatal),
    };
    notify.say("STOPPING=1");
    println!("stopping");
    let pause = Duration::from_millis(config.load().node.pre_stop_ms);
    let is_asked = fatal.is_none();
    let second = async {
        // Of a node that stops by itself, the first request asks for nothing new.
        if !is_asked {
            stops.next().await;
        }
        stops.again().await;
    };
    let ended = life::stop(&host, &gate, pause, fatal, second).await;
    #[cfg(feature = "otel")]
    if let Some(traces) = &node.traces {
        traces.shutdown();
    }
    let config = config.load();
    if let Some(data) = config.data_dir().ok().filter(|_| !config.node.amnesia) {
        if let Err(error) = log::remember(&kept, &data) {
            tracing::warn!(%error, "how far the log was verified could not be kept");
        }
    }
    ended?;
    Ok(())
}

/// Says on standard output what runs where, and what to type next.
fn introduce(node: &Running, config: &Config) {
    println!("node {}", node.endpoint.node_id());
    tell_addrs(&node.endpoint);
    for addr in node.admin.local_addrs() {
        println!(
            "health, readiness and metrics on http://{addr}/readyz?verbose; http://{addr}/ in a browser shows all of it"
        );
        println!(
            "the DHT on http://{addr}/dht/status; changes need the token in {}",
            node.token.path().display()
        );
        println!(
            "the overlay on http://{addr}/overlay/status; on {} topics, which overlay.topics names",
            config.overlay.topics.len()
        );
        println!(
            "objects on http://{addr}/o/ID ({} here); refd put FILE stores one",
            node.store.usage().objects
        );
        if node.company.is_some() {
            println!(
                "they are kept with other nodes, {}; refd repair status says how they are doing",
                config.keeping.policy
            );
        }
        println!(
            "the log {} on http://{addr}/registry/head ({} entries); {}",
            node.registry.origin(),
            node.registry.head().version,
            match (node.registry.follows(), node.registry.head().version) {
                (true, _) => "it follows another node, which is where to propose",
                (false, 0) => "refd registry init begins it",
                (false, _) => "refd registry log lists them",
            },
        );
        println!("where things are on http://{addr}/resolve/KEY; IPFS clients ask http://{addr}/routing/v1");
    }
}

/// Where others find the node.
fn tell_addrs(endpoint: &Endpoint) {
    for addr in endpoint.local_addrs() {
        println!("listens on {addr}; others begin with --seed {}@{addr}", endpoint.node_id());
    }
}

/// Logs what happens, for ever.
async fn tell(
    mut of_dht: Subscriber<ron_dht::Event>,
    mut of_overlay: Subscriber<ron_overlay::Event>,
    mut of_company: Option<Subscriber<KeepingEvent>>,
) {
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
            Some(event) = next(&mut of_company) => match event {
                Event::Item(KeepingEvent::Lost(object)) => {
                    tracing::error!(%object, "it cannot be restored from any node that is known")
                }
                event => tracing::info!(?event, "keeping"),
            },
            else => std::future::pending().await,
        }
    }
}

/// What happens next, if there is anybody to tell; for ever without.
async fn next(of: &mut Option<Subscriber<KeepingEvent>>) -> Option<Event<KeepingEvent>> {
    match of {
        Some(of) => of.recv().await,
        None => std::future::pending().await,
    }
}
