//! The routes, through a real server, over two nodes with real links.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{net::SocketAddr, time::Duration};

use ron_core::{
    Deadline, Supervisor,
    http::Server,
    net::{Endpoint, Identity},
};
use ron_overlay::{Overlay, http};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

async fn node(host: &Supervisor) -> Overlay {
    let endpoint = Endpoint::builder(Identity::generate().unwrap()).listen(([127, 0, 0, 1], 0).into());
    Overlay::builder().start(&endpoint.start(host).unwrap(), host).await.unwrap()
}

async fn ask(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn json(addr: SocketAddr, path: &str) -> Value {
    let (status, body) = ask(addr, path).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_topics_and_queues() {
    let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(20)));
    let (first, second) = (node(&host).await, node(&host).await);
    let here = first.topic("news").unsigned().join([], soon()).await.unwrap();
    let there = second.topic("news").unsigned().join([first.contact()], soon()).await.unwrap();
    let mut heard = there.subscribe(soon()).await.unwrap();
    here.joined(soon()).await.unwrap();
    there.joined(soon()).await.unwrap();
    here.publish("hello", soon()).await.unwrap();
    heard.next().await.unwrap();
    // Under whatever the host likes: no route is absolute.
    let routes = axum::Router::new().nest("/overlay", http::router(&second));
    let server = Server::builder(routes).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.start(&host).await.unwrap();
    let addr = server.local_addrs()[0];

    let status = json(addr, "/overlay/status").await;
    assert_eq!(status["id"], second.node_id().to_string());
    assert_eq!(status["addrs"][0], second.contact().addrs[0].to_string());
    assert_eq!((&status["sessions"], &status["neighbours"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(status["ready"]["writes"], true);

    let peers = json(addr, "/overlay/peers").await;
    assert_eq!(peers[0]["id"], first.node_id().to_string());
    assert_eq!((&peers[0]["incoming"], &peers[0]["topics"]), (&Value::from(false), &Value::from(1)));
    assert_eq!((&peers[0]["points"], &peers[0]["post_quantum"]), (&Value::from(0.0), &Value::from(true)));

    let topics = json(addr, "/overlay/topics").await;
    assert_eq!((&topics[0]["name"], &topics[0]["id"]), (&"news".into(), &there.id().to_string().into()));
    assert_eq!(topics[0]["neighbours"][0], first.node_id().to_string());
    assert_eq!((&topics[0]["delivered"], &topics[0]["subscribers"]), (&Value::from(1), &Value::from(1)));

    let queues = json(addr, "/overlay/queues").await;
    let names: Vec<&str> =
        queues.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["engine", "control_ingress", "gossip_ingress", "checks", "egress"]);
    assert_eq!((&queues[2]["depth"], &queues[2]["capacity"]), (&Value::from(0), &Value::from(1024)));

    second.shutdown().await;
    let (status, body) = ask(addr, "/overlay/topics").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("canceled"), "{body}");
    host.shutdown().await;
}
