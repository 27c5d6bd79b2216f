//! Those who use the nodes: a few all the time, and now and then a crowd.

use std::time::Duration;

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Supervisor, TaskSpec};
use ron_index::Key;

use crate::{
    kept::Kept,
    names::Names,
    news::News,
    node::{Host, Hosts, Role},
    options::Log,
    provided::Provided,
    shared::Shared,
    verdict::Verdict,
};

pub(crate) const USER: TaskSpec = TaskSpec::new("examples", "user").what("asks nodes for this and that");

/// What watches over the promises of the nodes. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Checkers {
    pub(crate) verdict: Verdict,
    pub(crate) hosts: Hosts,
    pub(crate) shared: Shared,
    pub(crate) kept: Kept,
    pub(crate) names: Names,
    pub(crate) news: News,
    pub(crate) provided: Provided,
}

impl Checkers {
    pub(crate) fn new(log: Log) -> Self {
        let (verdict, hosts) = (Verdict::new(log), Hosts::default());
        Checkers {
            shared: Shared::new(&hosts, &verdict),
            kept: Kept::new(&verdict),
            names: Names::new(&hosts, &verdict),
            news: News::new(&hosts, &verdict),
            provided: Provided::new(&verdict),
            verdict,
            hosts,
        }
    }

    /// A node that is up and fits.
    pub(crate) fn some(&self, rng: &mut fastrand::Rng, fits: impl Fn(&Host) -> bool) -> Option<Host> {
        let mut hosts = self.hosts.all();
        hosts.retain(|host| host.role != Role::Liar && fits(host));
        (!hosts.is_empty()).then(|| hosts.swap_remove(rng.usize(..hosts.len())))
    }

    /// One user, for ever.
    async fn live(self, seed: u64, pause_max: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(pause_max / 10..pause_max))).await;
            self.act(&mut rng).await;
        }
    }

    async fn act(&self, rng: &mut fastrand::Rng) {
        let is_server = |host: &Host| host.role == Role::Server;
        let is_client = |host: &Host| host.role == Role::Client;
        let what = rng.u8(..100);
        let host = match what {
            0..64 => self.some(rng, is_server),
            64..73 => self.some(rng, is_client),
            _ => self.some(rng, |_| true),
        };
        let Some(host) = host else { return };
        match what {
            0..26 => {
                let put = self.shared.put(&host, rng).await;
                if let Some(id) = put.filter(|_| rng.bool()) {
                    self.shared.provide(id).await;
                }
            }
            26..50 => self.shared.get(&host, rng).await,
            50..58 => self.shared.delete(&host, rng).await,
            58..64 => self.shared.change(&host, rng).await,
            64..71 => self.shared.fetch(&host, rng).await,
            71..73 => self.provided.look(&host, rng, false).await,
            73..76 => self.shared.download(&host, rng).await,
            76..82 => {
                let provided = self.provided.pick(rng).map(|(_, content)| content).filter(|_| rng.bool());
                if let Some(id) = provided.or_else(|| self.shared.pick(rng)) {
                    self.names.bind(id, rng).await;
                }
            }
            82..83 => self.names.rotate().await,
            83..88 => self.names.resolve(&host, &self.provided, rng, false).await,
            88..93 => self.names.locate(&host, &self.provided, rng, false).await,
            _ => self.news.publish(host.number, false).await,
        }
    }

    /// So many users begin.
    pub(crate) fn begin(&self, users: &Supervisor, rng: &mut fastrand::Rng, count: usize, pause_max: u64) {
        for _ in 0..count {
            let (user, seed) = (self.clone(), rng.u64(..));
            users.spawn(USER, |_| user.live(seed, pause_max));
        }
    }

    /// A crowd asks one node, all at once, for some seconds.
    pub(crate) fn crowd(&self, users: &Supervisor, rng: &mut fastrand::Rng, host: &Host, callers: usize) {
        for _ in 0..callers {
            let (caller, host, seed) = (self.clone(), host.clone(), rng.u64(..));
            users.spawn(USER, |_| async move { caller.press(&host, seed).await });
        }
    }

    async fn press(&self, host: &Host, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..6 {
            let deadline = Deadline::after(Duration::from_millis(1500));
            let id = self.shared.pick(&mut rng).unwrap_or(ContentId::of(b"nothing"));
            match rng.u8(..4) {
                0 => match host.store.get_bytes(id, u64::MAX, deadline).await {
                    Ok(bytes) => self.shared.judge(&id, &bytes, "a crowded store"),
                    Err(error) => self.verdict.refused("crowd: read", &error),
                },
                1 => {
                    // Not zeros: shards of short objects are, and this is nobody's.
                    let content = Bytes::from(vec![!host.number; 1 + rng.usize(..2000)]);
                    match host.store.put_bytes(content, deadline).await {
                        Ok(_) => self.verdict.count("crowd: written"),
                        Err(error) => self.verdict.refused("crowd: write", &error),
                    }
                }
                2 => match host.index.resolve(&Key::Content(id), deadline).await {
                    Ok(_) => self.verdict.count("crowd: resolved"),
                    Err(error) => self.verdict.refused("crowd: resolve", &error),
                },
                _ => {
                    let Some(keeping) = &host.keeping else { continue };
                    match keeping.get(id, deadline).await {
                        Ok(bytes) => self.shared.judge(&id, &bytes, "a crowded node"),
                        Err(error) => self.verdict.refused("crowd: get", &error),
                    }
                }
            }
        }
        self.verdict.count("crowd: caller done");
    }
}
