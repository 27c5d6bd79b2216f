//! How do I add a store and an index to an axum program that I already have?
//!
//! The program keeps what is its own: its routes, its listener, its users and what they may do, its metrics and the page
//! that shows them. The libraries add routers, and ask the program's [`Authorizer`] before they read a body. Here it then
//! asks itself, and ends with an error if an answer is not as it should be.

use std::{collections::HashMap, error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, routing::get};
use prometheus_client::{encoding::text, metrics::counter::Counter, registry::Registry};
use ron_core::{
    Deadline, Metrics, NodeId, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
};
use ron_index::{
    Index,
    source::{StoreManifests, StoreProviders},
};
use ron_storage::Store;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The users of this program, however it came to know them: by token, who they are and what they may.
struct Users(HashMap<&'static str, (&'static str, &'static [&'static str])>);

impl Authorizer for Users {
    fn authorize(&self, action: &Action<'_>, shown: &Credentials<'_>) -> Result<Grant, Denied> {
        let token = shown.bearer.ok_or(Denied::Missing)?;
        let (name, may) = self.0.get(token).ok_or(Denied::Unknown)?;
        if may.contains(&action.name) { Ok(Grant::new(*name)) } else { Err(Denied::Forbidden) }
    }
}

async fn hello(State(visits): State<Counter>) -> &'static str {
    visits.inc();
    "hello"
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let host = Supervisor::new("host");
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    let mut registry = Registry::default();
    let visits = Counter::default();
    registry.register("shop_visits", "People who said hello", visits.clone());

    // Each part writes into the program's registry, under the name that the program gives it.
    let store = Store::builder().memory().metrics(Metrics::register("shop_store", &mut registry));
    let store = store.start(&host).await?;
    let this = StoreProviders::new(&store, NodeId::from_bytes([7; 32]), [address]);
    let index = Index::builder().manifests(StoreManifests::new(&store)).providers(this);
    let index = index.metrics(Metrics::register("shop_index", &mut registry)).start(&host)?;

    let users: Arc<dyn Authorizer> = Arc::new(Users(HashMap::from([
        ("anna-0123456789", ("anna", &["objects.put", "index.reindex"][..])),
        ("boris-0123456789", ("boris", &["objects.list"][..])),
    ])));
    let objects = ron_storage::http::router(&store).merge(ron_storage::http::guarded(&store, users.clone()));
    let finding = ron_index::http::router(&index).merge(ron_index::http::guarded(&index, users));
    let registry = Arc::new(registry);
    let scrape = async move || {
        let mut page = String::new();
        text::encode(&mut page, &registry).map(|()| page).map_err(|error| error.to_string())
    };
    let app = Router::new()
        .route("/hello", get(hello).with_state(visits))
        .route("/metrics", get(scrape))
        .nest("/objects", objects)
        .nest("/find", finding);
    // `ron_core::http::Server` would add limits against slow and hostile clients, and a drain; axum's own has neither.
    let served = axum::serve(listener, app);
    tokio::select! {
        ended = async { served.await } => Err(format!("the server ended: {ended:?}").into()),
        asked = check(address, &host) => asked,
    }
}

/// What a client of the program sees of all that.
async fn check(address: SocketAddr, host: &Supervisor) -> Result<(), Box<dyn Error>> {
    ask(address, "GET", "/hello", "", "").await?.is("200", "hello")?;
    let film = "a film";
    ask(address, "POST", "/objects/o", "", film).await?.is("401", "credentials are needed")?;
    ask(address, "POST", "/objects/o", "boris-0123456789", film).await?.is("403", "problem:forbidden")?;
    let stored = ask(address, "POST", "/objects/o", "anna-0123456789", film).await?;
    stored.is("201", "\"id\":\"b3:")?;
    let id = stored.0.split('"').find(|word| word.starts_with("b3:")).ok_or("it has a name")?;
    ask(address, "GET", &format!("/objects/o/{id}"), "", "").await?.is("200", film)?;
    ask(address, "GET", "/objects/usage", "boris-0123456789", "").await?.is("200", "\"objects\":1")?;

    // Where is it? Here: the index asks the store, and says how to reach this node.
    let resolve = format!("/find/resolve/{id}");
    ask(address, "GET", &resolve, "", "").await?.is("200", &address.to_string())?;
    ask(address, "POST", &format!("/find/reindex/{id}"), "boris-0123456789", "").await?.is("403", "")?;
    for line in ["shop_visits_total 1", "shop_store_queue_capacity", "shop_index_queue_capacity"] {
        ask(address, "GET", "/metrics", "", "").await?.is("200", line)?;
    }

    let stopped = host.shutdown().await;
    println!("{} tasks stopped, {} cut off", stopped.drained, stopped.aborted);
    // The program goes on without them, and says so.
    ask(address, "GET", &resolve, "", "").await?.is("503", "")?;
    ask(address, "GET", "/hello", "", "").await?.is("200", "hello")
}

/// A whole answer, head and body.
struct Said(String);

impl Said {
    fn is(&self, status: &str, words: &str) -> Result<(), Box<dyn Error>> {
        println!("{}", self.0.lines().next().unwrap_or_default());
        let held = self.0.starts_with(&format!("HTTP/1.1 {status} ")) && self.0.contains(words);
        if held { Ok(()) } else { Err(format!("not {status} with {words:?}: {}", self.0).into()) }
    }
}

async fn ask(
    to: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: &str,
) -> Result<Said, Box<dyn Error>> {
    print!("{method} {path}: ");
    let shown = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n{shown}");
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    Deadline::after(Duration::from_secs(10)).limit("answer", read).await??;
    Ok(Said(answer))
}
