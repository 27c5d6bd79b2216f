//! What the tests share: sources that do as they are told, on a paused clock.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{ContentId, Deadline, Metrics, NodeId, Supervisor, now, prometheus_client};
use ron_index::{
    Builder, Index, Key, Name, Settings,
    source::{
        Answered, Ask, BoxFuture, Manifest, Manifests, NameRecord, Names, Provider, Providers, SourceError,
    },
};

pub(crate) const UNIX: u64 = 1_800_000_000;

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn content(number: u32) -> Key {
    Key::Content(ContentId::of(&number.to_le_bytes()))
}

pub(crate) fn name(text: &str) -> Key {
    Key::Name(text.parse().unwrap())
}

pub(crate) fn provider(id: u8) -> Provider {
    Provider {
        issued: Some(UNIX),
        ..Provider::new(NodeId::from_bytes([id; 32]), [([192, 0, 2, id], 4710).into()])
    }
}

/// What a source does when it is asked.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Says that these have it.
    Finds(Vec<u8>),
    /// Says that nobody has it, and whether it can say so.
    FindsNobody {
        is_final: bool,
    },
    Fails(SourceError),
    /// Says that these have it, and goes on looking for ever.
    FindsAndGoesOn(Vec<u8>),
    /// Never says anything.
    Hangs,
    Panics,
}

/// A source of providers that does as it is told.
#[derive(Clone)]
pub(crate) struct Scripted {
    label: &'static str,
    does: Arc<Mutex<(Duration, Does)>>,
    pub(crate) asked: Arc<AtomicUsize>,
    pub(crate) probed: Arc<AtomicUsize>,
    /// Questions that were answered or called off.
    pub(crate) ended: Arc<AtomicUsize>,
    /// Questions that were called off.
    pub(crate) dropped: Arc<AtomicUsize>,
}

impl Scripted {
    pub(crate) fn new(label: &'static str, after: Duration, does: Does) -> Self {
        Scripted {
            label,
            does: Arc::new(Mutex::new((after, does))),
            asked: Arc::default(),
            probed: Arc::default(),
            ended: Arc::default(),
            dropped: Arc::default(),
        }
    }

    pub(crate) fn now_does(&self, after: Duration, does: Does) {
        *self.does.lock().unwrap() = (after, does);
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn perform(&self, ask: Option<&Ask>) -> Result<Answered, SourceError> {
        let (after, does) = self.does.lock().unwrap().clone();
        tokio::time::sleep(after).await;
        match does {
            Does::Finds(ids) => {
                if let Some(ask) = ask {
                    ids.iter().for_each(|id| ask.found(provider(*id)));
                }
                Ok(Answered { is_final: false })
            }
            Does::FindsAndGoesOn(ids) => {
                if let Some(ask) = ask {
                    ids.iter().for_each(|id| ask.found(provider(*id)));
                    std::future::pending::<()>().await;
                }
                Ok(Answered { is_final: false })
            }
            Does::FindsNobody { is_final } => Ok(Answered { is_final }),
            Does::Fails(error) => Err(error),
            Does::Hangs => std::future::pending().await,
            Does::Panics => panic!("as told"),
        }
    }
}

/// Counts a question out, however it ends.
struct Asked<'a>(&'a Scripted, bool);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Providers for Scripted {
    fn label(&self) -> &'static str {
        self.label
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let mut asked = Asked(self, false);
            let done = self.perform(Some(ask)).await;
            asked.1 = true;
            done
        })
    }

    fn probe(&self, _: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        self.probed.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { self.perform(None).await.map(drop) })
    }

    fn locate(&self, node: NodeId, _: Deadline) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        match self.does.lock().unwrap().1.clone() {
            Does::Hangs => return Box::pin(std::future::pending()),
            Does::Panics => return Box::pin(async { panic!("as told") }),
            Does::Fails(error) => return Box::pin(async { Err(error) }),
            _ => {}
        }
        let known = provider(node.as_bytes()[0]);
        Box::pin(async move { Ok(Some(known).filter(|known| known.id == node && node.as_bytes()[0] < 9)) })
    }
}

/// Names in a map, answered after a while.
#[derive(Clone, Default)]
pub(crate) struct Book {
    pub(crate) names: Arc<Mutex<HashMap<String, (ContentId, u64)>>>,
    pub(crate) after: Duration,
    pub(crate) asked: Arc<AtomicUsize>,
    pub(crate) fails: Arc<Mutex<Option<SourceError>>>,
}

impl Book {
    pub(crate) fn bind(&self, name: &str, content: &Key, version: u64) {
        let Key::Content(id) = content else { panic!("{content:?}") };
        self.names.lock().unwrap().insert(name.to_owned(), (*id, version));
    }
}

impl Names for Book {
    fn label(&self) -> &'static str {
        "book"
    }

    fn resolve<'a>(
        &'a self,
        name: &'a Name,
        _: Deadline,
    ) -> BoxFuture<'a, Result<Option<NameRecord>, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let found = self.names.lock().unwrap().get(name.as_str()).copied();
            tokio::time::sleep(self.after).await;
            if let Some(error) = self.fails.lock().unwrap().clone() {
                return Err(error);
            }
            Ok(found.map(|(content, version)| NameRecord { content, version, proven_by: "book", ttl: None }))
        })
    }
}

/// Knows the manifest of everything, after a while.
#[derive(Clone, Default)]
pub(crate) struct Catalogue {
    pub(crate) after: Duration,
    pub(crate) hangs: bool,
}

impl Manifests for Catalogue {
    fn label(&self) -> &'static str {
        "catalogue"
    }

    fn manifest(
        &self,
        content: ContentId,
        _: Deadline,
    ) -> BoxFuture<'_, Result<Option<Manifest>, SourceError>> {
        Box::pin(async move {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(self.after).await;
            Ok(Some(Manifest { id: content, len: 42, group_bytes: 65_536 }))
        })
    }
}

/// An index with its host and what it counts.
pub(crate) struct World {
    pub(crate) host: Supervisor,
    pub(crate) index: Index,
    registry: prometheus_client::registry::Registry,
}

impl World {
    pub(crate) fn start(builder: Builder, settings: Settings) -> World {
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::register("ron_index", &mut registry);
        let host = Supervisor::new("host");
        let born = now();
        let clock = move || UNIX + born.elapsed().as_secs();
        let builder = builder.settings(settings).metrics(metrics).seed(1).unix_clock(clock);
        let index = builder.start(&host).unwrap();
        World { host, index, registry }
    }

    /// With these sources of providers and everything else by default.
    pub(crate) fn of(sources: &[&Scripted]) -> World {
        World::with(sources, Settings::default())
    }

    pub(crate) fn with(sources: &[&Scripted], settings: Settings) -> World {
        let builder =
            sources.iter().fold(Index::builder(), |builder, source| builder.providers((*source).clone()));
        World::start(builder, settings)
    }

    pub(crate) fn counters(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The value of a series; 0 if it is not there.
    pub(crate) fn series(&self, name: &str) -> f64 {
        let prefix = format!("ron_index_{name} ");
        let text = self.counters();
        text.lines().find_map(|line| line.strip_prefix(&prefix)).map_or(0.0, |value| value.parse().unwrap())
    }
}

/// Lets everything that is ready run.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
