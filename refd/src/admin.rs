//! The admin listener: the first thing that is there, the last that goes, and nothing for pages from elsewhere.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, http::StatusCode};
use ron_core::{
    Metrics, Supervisor, TaskSpec,
    http::{self, Hosts, HttpError, HttpMetrics, Problem, Server, Settings},
};

use crate::config::AdminSection;

const MOVER: TaskSpec =
    TaskSpec::new("refd", "mover").what("lets a listener that has moved elsewhere finish what it began");

/// How long requests may be finished after a stop.
const DRAIN: Duration = Duration::from_secs(5);

/// What is served, and where.
pub(crate) struct Admin {
    /// Servers come and go in here, so that it keeps its place in the order of the stop.
    group: Supervisor,
    server: Server,
    ops: Router,
    routes: Router,
    metrics: Metrics,
    of_http: HttpMetrics,
    hosts: Hosts,
    settings: Settings,
}

impl Admin {
    /// Listens, with nothing but the health routes yet.
    pub(crate) async fn start(
        section: &AdminSection,
        ops: Router,
        metrics: Metrics,
        of_http: HttpMetrics,
        host: &Supervisor,
    ) -> Result<Admin, HttpError> {
        let hosts = Hosts::new(["localhost"].into_iter().chain(section.hosts.iter().map(String::as_str)));
        let hosts = hosts.or_addresses();
        let ops = ops.layer(http::only(hosts.clone()));
        let routes = Router::new().fallback(starting);
        let group = host.child("admin", DRAIN, metrics.clone());
        let mut settings = Settings::default();
        settings.connections_max = section.max_conns;
        settings.connections_per_client = settings.connections_per_client.min(section.max_conns);
        let server =
            serve(&group, &ops, &routes, &metrics, &of_http, settings.clone(), section.listen).await?;
        Ok(Admin { group, server, ops, routes, metrics, of_http, hosts, settings })
    }

    /// Serves these beside the health routes.
    pub(crate) fn mount(&mut self, routes: Router) {
        self.routes = routes.layer(http::only(self.hosts.clone()));
        self.server.mount(self.routes.clone());
    }

    /// The same on another address, beside the one there is.
    pub(crate) async fn open(&self, listen: SocketAddr) -> Result<Server, HttpError> {
        let settings = self.settings.clone();
        serve(&self.group, &self.ops, &self.routes, &self.metrics, &self.of_http, settings, listen).await
    }

    /// From now on `server` is the listener, and the old one finishes what it began.
    pub(crate) fn move_to(&mut self, server: Server) {
        let old = std::mem::replace(&mut self.server, server);
        let _ = self.group.spawn(MOVER, |_| async move {
            old.shutdown().await;
        });
    }

    /// Where it listens.
    pub(crate) fn local_addrs(&self) -> Vec<SocketAddr> {
        self.server.local_addrs()
    }
}

async fn serve(
    group: &Supervisor,
    ops: &Router,
    routes: &Router,
    metrics: &Metrics,
    of_http: &HttpMetrics,
    settings: Settings,
    listen: SocketAddr,
) -> Result<Server, HttpError> {
    let server = Server::builder(routes.clone()).ops(ops.clone()).settings(settings).listen(listen);
    server.metrics(metrics.clone()).http_metrics(of_http.clone()).start(group).await
}

/// Answers for whatever is still being started.
async fn starting() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "starting", "the node is starting")
        .retry_after(Duration::from_secs(1))
}
