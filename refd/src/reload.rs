//! Other settings for a running node: taken over as a whole, or not at all.
//!
//! What is in force is always one whole configuration that somebody wrote. So a change that needs a restart is refused with
//! everything beside it, and every such key is named, not only the first.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, http::StatusCode, routing::post};
use ron_core::{
    CallError, ConfigError as LibraryError, Counter, Deadline, Inbox, Lane, LaneSpec, Metrics, OwnCounter,
    Reply, Snapshot, TaskSpec,
    auth::{Authorizer, TokenFile, TokenFileError},
    http::{Guard, HttpError, Json, Problem},
    net::{Endpoint, NetError},
};
use ron_dht::Dht;
use ron_index::Index;
use ron_overlay::Overlay;
use ron_registry::{Registry, ReloadSource};
use ron_storage::Store;
use serde_json::json;

use crate::{
    admin::Admin,
    company::Company,
    config::{Config, ConfigError, layers},
};

const RELOADS: LaneSpec = LaneSpec::new("refd", "reload", 16)
    .flow("SIGHUP, POST /admin/reload → reloader")
    .why("one takes milliseconds, and the same settings asked for seventeen times at once are a mistake");

const RELOADER: TaskSpec = TaskSpec::new("refd", "reloader")
    .what("reads settings again, and is the only one to change them while a node runs");

const UPDATES: Counter = Counter::Own(OwnCounter {
    name: "config_update",
    help: "Requests for other settings, by what came of them",
    label: "result",
});

/// What reading and applying settings may take.
const RELOAD_MAX: Duration = Duration::from_secs(10);

/// Changes what is logged.
pub(crate) type SetFilter = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Why the settings stay as they are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// What was read is no configuration.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The disk does not give it out.
    #[error("the settings cannot be read")]
    Unread(#[source] CallError),
    /// It is one, and not for a node that runs.
    #[error("{} can only change with a restart", keys.join(", "))]
    NeedsRestart {
        /// All such keys that were changed.
        keys: Vec<String>,
    },
    /// The token cannot be read again.
    #[error(transparent)]
    Token(#[from] TokenFileError),
    /// The admin listener cannot move to where it should be.
    #[error("admin.listen")]
    Listen(#[from] HttpError),
    /// The node cannot listen for others where it should.
    #[error("net.listen")]
    NetListen(#[from] NetError),
    /// A part does not take what it was asked about before.
    #[error("{part}: {why}")]
    Refused {
        /// Which.
        part: &'static str,
        /// What it said.
        why: String,
    },
}

impl ReloadError {
    fn label(&self) -> &'static str {
        match self {
            ReloadError::Invalid(_) => "invalid",
            ReloadError::NeedsRestart { .. } => "needs_restart",
            ReloadError::Unread(_)
            | ReloadError::Token(_)
            | ReloadError::Listen(_)
            | ReloadError::NetListen(_)
            | ReloadError::Refused { .. } => "failed",
        }
    }
}

/// Somebody wants the settings read again. The answer has the keys that changed.
pub(crate) struct Order {
    source: ReloadSource,
    reply: Reply<Result<Vec<String>, ReloadError>>,
}

/// Where orders are given.
#[derive(Clone)]
pub(crate) struct Desk(Lane<Order>);

impl Desk {
    pub(crate) fn open(metrics: &Metrics) -> (Desk, Inbox<Order>) {
        let (lane, inbox) = Lane::open(RELOADS, metrics);
        (Desk(lane), inbox)
    }

    /// Reads the settings again, and says which keys changed.
    pub(crate) async fn reload(
        &self,
        source: ReloadSource,
        deadline: Deadline,
    ) -> Result<Result<Vec<String>, ReloadError>, CallError> {
        self.0.call("reload", deadline, |reply| Order { source, reply }).await
    }

    /// `POST /admin/reload`, for those whom `authorizer` allows `node.reload`.
    pub(crate) fn router(&self, authorizer: Arc<dyn Authorizer>, metrics: &Metrics) -> Router {
        let guard = Guard::new("admin_reload").in_flight(64).metrics(metrics);
        let router = Router::new().route("/admin/reload", post(over_http));
        router.route_layer(guard.require(authorizer, "node.reload")).layer(Extension(self.clone()))
    }
}

async fn over_http(Extension(desk): Extension<Desk>) -> Result<Json<serde_json::Value>, Problem> {
    let refused = |status, code, title, error: &ReloadError| {
        Problem::new(status, code, title).detail(crate::with_causes(error))
    };
    match desk.reload(ReloadSource::Host, Deadline::after(RELOAD_MAX)).await? {
        Ok(changed) => Ok(Json(json!({ "changed": changed }))),
        Err(error @ ReloadError::Invalid(_)) => Err(refused(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid",
            "these are no settings, the old ones stay",
            &error,
        )
        .hint("`refd config check` says what is wrong")),
        Err(error @ ReloadError::NeedsRestart { .. }) => Err(refused(
            StatusCode::CONFLICT,
            "needs_restart",
            "these settings are not for a node that runs, the old ones stay",
            &error,
        )
        .hint("restart the node, or take these changes back")),
        Err(error) => Err(refused(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not_applied",
            "the settings could not be applied, the old ones stay",
            &error,
        )),
    }
}

/// What has settings that can change.
pub(crate) struct Parts {
    pub(crate) doors: Doors,
    pub(crate) dht: Dht,
    pub(crate) overlay: Overlay,
    pub(crate) store: Store,
    pub(crate) company: Option<Company>,
    pub(crate) registry: Registry,
    pub(crate) index: Index,
    pub(crate) tokens: TokenFile,
    pub(crate) admin: Admin,
    pub(crate) set_filter: SetFilter,
}

/// Takes orders until the node stops. `again` reads the settings, `config` has those in force.
pub(crate) fn start(
    desk: &Desk,
    orders: Inbox<Order>,
    host: &ron_core::Supervisor,
    parts: Parts,
    config: Snapshot<Config>,
    again: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static,
    metrics: Metrics,
) {
    desk.0.close_on(&host.stop());
    let (again, spawner) = (Arc::new(again), host.spawner());
    let mut parts = parts;
    let _ = host.spawn(RELOADER, move |_| async move {
        while let Some(order) = orders.recv().await {
            let again = Arc::clone(&again);
            let read = spawner.blocking("read settings", Deadline::after(RELOAD_MAX), move || again()).await;
            let done = match read {
                Ok(Ok(new)) => take_over(&mut parts, &config, new, order.source).await,
                Ok(Err(error)) => Err(error.into()),
                Err(CallError::Canceled) => continue, // stopping, and the caller is told so by the dropped reply
                Err(error) => Err(ReloadError::Unread(error)),
            };
            metrics.tally(UPDATES, done.as_ref().map_or_else(ReloadError::label, |_| "applied")).add(1);
            match &done {
                Ok(changed) => tracing::info!(?changed, "settings taken over"),
                Err(error) => {
                    tracing::warn!(error = crate::with_causes(error), "the settings stay as they are")
                }
            }
            order.reply.send(done);
        }
    });
}

async fn take_over(
    parts: &mut Parts,
    config: &Snapshot<Config>,
    new: Config,
    source: ReloadSource,
) -> Result<Vec<String>, ReloadError> {
    let old = config.load();
    let changed = layers::changed(&old, &new);
    let name = |(section, key): &(&str, &str)| format!("{section}.{key}");
    let fixed = changed.iter().filter(|(section, key)| needs_restart(&old, &new, section, key));
    let keys: Vec<String> = fixed.map(name).collect();
    if !keys.is_empty() {
        return Err(ReloadError::NeedsRestart { keys });
    }
    // First what may fail for reasons of its own. The old listeners go on until the new ones are there, and the old token
    // holds until nothing but the parts is left to be asked.
    let moved = match old.admin.listen == new.admin.listen {
        true => None,
        false => Some(parts.admin.open(new.admin.listen).await?),
    };
    let mut opened = Vec::new();
    let taken = match parts.doors.open(&new.net.listen).await {
        Ok(doors) => {
            opened = doors;
            parts.tokens.reload().map_err(ReloadError::from)
        }
        Err(error) => Err(error.into()),
    };
    let taken = taken.and_then(|()| {
        // Each was asked before, so a refusal is a bug; what was in force is in force again.
        parts.apply(&new, source).inspect_err(|_| drop(parts.apply(&old, source)))
    });
    if let Err(error) = taken {
        parts.doors.close(&opened).await;
        if let Some(server) = moved {
            server.shutdown().await;
        }
        return Err(error);
    }
    if let Some(server) = moved {
        parts.admin.move_to(server);
    }
    if parts.doors.take(opened, &new.net.listen).await && new.net.external.is_empty() {
        let due = parts.dht.moved();
        tracing::info!(due, "elsewhere than before: our keys are said again");
        if let Err(error) = parts.overlay.moved(parts.doors.endpoint.local_addrs().iter().copied()) {
            tracing::error!(%error, "others are told the old addresses");
        }
    }
    config.replace(new);
    Ok(changed.iter().map(name).collect())
}

/// Where the node listens for others: what was asked for, and what that is. They differ where the port is 0.
pub(crate) struct Doors {
    endpoint: Endpoint,
    open: Vec<(SocketAddr, SocketAddr)>,
}

impl Doors {
    /// Of an endpoint that was started to listen on `asked`.
    pub(crate) fn new(endpoint: Endpoint, asked: &[SocketAddr]) -> Self {
        let open = asked.iter().copied().zip(endpoint.local_addrs().iter().copied()).collect();
        Doors { endpoint, open }
    }

    /// Listens on those of `asked` where it does not yet, or on none of them.
    async fn open(&self, asked: &[SocketAddr]) -> Result<Vec<(SocketAddr, SocketAddr)>, NetError> {
        let mut opened = Vec::new();
        for addr in asked.iter().filter(|addr| !self.open.iter().any(|(asked, _)| asked == *addr)) {
            match self.endpoint.listen(*addr) {
                Ok(local) => opened.push((*addr, local)),
                Err(error) => {
                    self.close(&opened).await;
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    async fn close(&self, doors: &[(SocketAddr, SocketAddr)]) {
        for (_, local) in doors {
            self.endpoint.unlisten(*local).await;
        }
    }

    /// From now on it is `asked`, of which some were `opened`, and those that are not asked for are closed. Links stay. Says
    /// whether anything is different.
    async fn take(&mut self, opened: Vec<(SocketAddr, SocketAddr)>, asked: &[SocketAddr]) -> bool {
        let (stay, go): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|(addr, _)| asked.contains(addr));
        self.close(&go).await;
        let is_different = !opened.is_empty() || !go.is_empty();
        self.open = stay.into_iter().chain(opened).collect();
        is_different
    }
}

/// Whether a running node cannot take this key from `new`. The libraries know it of theirs.
fn needs_restart(old: &Config, new: &Config, section: &str, key: &str) -> bool {
    let one = layers::with_one(old, new, section, key);
    let fixed = |checked: Result<(), LibraryError>| matches!(checked, Err(LibraryError::NeedsRestart { .. }));
    match (section, key) {
        ("log", "filter") | ("node", "pre_stop_ms") | ("net" | "admin", "listen") => false,
        ("dht", key) if key != "seeds" => fixed(old.dht.settings().check_change(&one.dht.settings())),
        ("overlay", key) if key != "topics" => {
            fixed(old.overlay.settings().check_change(&one.overlay.settings()))
        }
        ("storage", key) if key != "memory" => {
            fixed(old.storage.settings().check_change(&one.storage.settings()))
        }
        ("registry", key)
            if !matches!(key, "origin" | "follow" | "log_key" | "memory") && !key.starts_with("witness") =>
        {
            fixed(old.registry.settings().check_change(&one.registry.settings()))
        }
        ("keeping", "secret_file") => true,
        // A list may change; whether there is one, not.
        ("keeping", "members") => old.keeping.members.is_empty() || new.keeping.members.is_empty(),
        ("keeping", _) => fixed(old.keeping.settings().check_change(&one.keeping.settings())),
        ("index", _) => fixed(old.index.settings().check_change(&one.index.settings())),
        _ => true,
    }
}

impl Parts {
    fn apply(&self, config: &Config, source: ReloadSource) -> Result<(), ReloadError> {
        fn refused<E: Error + 'static>(part: &'static str) -> impl Fn(E) -> ReloadError {
            move |error| ReloadError::Refused { part, why: crate::with_causes(&error) }
        }
        (self.set_filter)(&config.log.filter).map_err(|why| ReloadError::Refused { part: "log", why })?;
        self.dht.reload(config.dht.settings()).map_err(refused("dht"))?;
        self.overlay.reload(config.overlay.settings()).map_err(refused("overlay"))?;
        self.store.reload(config.storage.settings()).map_err(refused("storage"))?;
        if let Some(company) = &self.company {
            let reloaded = company.reload(&config.keeping);
            reloaded.map_err(|error| ReloadError::Refused {
                part: "keeping",
                why: crate::with_causes(&*error),
            })?;
        }
        self.index.reload(config.index.settings()).map_err(refused("index"))?;
        self.registry.reload_by(source, config.registry.settings()).map_err(refused("registry"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use ron_registry::{KeyKind, NoteSigner};

    use super::*;
    use crate::config::SECTIONS;

    /// What `docs/operating.md` says can change while a node runs is what can.
    #[test]
    fn what_can_change_is_documented() {
        let old = Config::default();
        let table = toml::Table::try_from(&old).unwrap();
        let mut live = Vec::new();
        let witness = NoteSigner::from_seed("w.example/one", KeyKind::Cosignature, &[7; 32]).unwrap();
        let witness = format!("http://127.0.0.1:1/w {}", witness.verifier());
        for (section, keys) in SECTIONS {
            for (key, _) in keys {
                let other: toml::Value = match table[section].get(key) {
                    Some(toml::Value::Boolean(value)) => (!value).into(),
                    Some(toml::Value::Integer(value @ (0 | 1))) => (value + 1).into(),
                    // Of whole groups.
                    Some(toml::Value::Integer(value)) if (section, *key) == ("storage", "chunk_bytes") => {
                        (value / 2).into()
                    }
                    Some(toml::Value::Integer(value)) => (value - 1).into(),
                    Some(toml::Value::Float(value)) => (value / 2.0).into(),
                    Some(toml::Value::String(_)) if *key == "filter" => "info".into(),
                    Some(toml::Value::String(_)) if *key == "listen" => "127.0.0.1:1".into(),
                    Some(toml::Value::String(_)) if *key == "policy" => "6+3".into(),
                    Some(toml::Value::String(_)) if *key == "ack" => "2".into(),
                    Some(toml::Value::String(_)) => "lan".into(),
                    Some(toml::Value::Array(_)) if matches!(*key, "seeds" | "members") => continue,
                    Some(toml::Value::Array(_)) if *key == "witnesses" => vec![&*witness].into(),
                    Some(toml::Value::Array(_)) if *key == "warmup_keys" => vec!["a/name"].into(),
                    Some(toml::Value::Array(_)) => vec!["127.0.0.1:1"].into(),
                    // One without a default: text where it is text, and a number where it is one.
                    _ if matches!(
                        *key,
                        "data_dir"
                            | "token_file"
                            | "secret_file"
                            | "origin"
                            | "follow"
                            | "log_key"
                            | "region"
                            | "endpoint"
                    ) =>
                    {
                        "x".into()
                    }
                    // Of at least that.
                    _ if *key == "bytes_max" => (64 << 20).into(),
                    // Of at least a while.
                    _ if *key == "purge_interval_ms" => 3_600_000.into(),
                    _ => 7.into(),
                };
                let mut changed = table.clone();
                changed[section].as_table_mut().unwrap().insert((*key).to_owned(), other);
                let new: Config = changed.try_into().unwrap();
                assert_eq!(layers::changed(&old, &new), [(section, *key)]);
                assert!(
                    new.check().is_ok()
                        || matches!(section, "node" | "net" | "limits" | "otel")
                        || (section, *key) == ("registry", "follow"),
                    "{section}.{key}"
                );
                if !needs_restart(&old, &new, section, key) {
                    live.push(format!("`{section}.{key}`"));
                }
            }
        }
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
        let docs = std::fs::read_to_string(docs).unwrap().replace('\n', " ");
        let (_, listed) = docs.split_once("These can change while the node runs: ").unwrap();
        let (listed, _) = listed.split_once(". ").unwrap();
        assert_eq!(listed, live.join(", "));
    }
}
