//! IPFS Delegated Routing V1, by the words of its specification: requests as clients send them, answers as it has them.

use ron_index::{Index, Settings, source::FixedProviders};
use serde_json::{Value, json};

use super::{
    routes::{Reply, Served},
    world::{Does, Scripted, World, ms, provider},
};

/// The CID of the specification's own examples, of version 0 and of version 1.
const V0: &str = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n";
const V1: &str = "bafybeihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku";

async fn served() -> Served {
    let cid: ron_index::Key = V1.parse().unwrap();
    let mut bitswap = provider(1);
    bitswap.protocols = vec!["transport-bitswap".into(), "ron-blob-1".into()];
    bitswap.addrs.push("[2001:db8::1]:4710".parse().unwrap());
    let mut bare = provider(2);
    bare.addrs.clear();
    let fixed = FixedProviders::new().of(cid.clone(), bitswap).of(cid, bare);
    let nobody = Scripted::new("nobody", ms(1), Does::FindsNobody { is_final: true });
    let settings = Settings { enough: 2.try_into().unwrap(), ..Settings::default() };
    let world = World::start(Index::builder().providers(fixed).providers(nobody), settings);
    Served::start(world).await
}

fn providers(reply: &Reply) -> Vec<Value> {
    reply.json()["Providers"].as_array().unwrap().clone()
}

/// "4.1.3: 200 the response body contains 0 or more records"; headers of "4.1.4"; the peer schema of "11.1".
#[tokio::test(flavor = "multi_thread")]
async fn providers_are_peers_in_json() {
    let served = served().await;
    let path = |cid: &str| format!("/routing/v1/providers/{cid}");
    let reply = served.get(&path(V1), "").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    assert_eq!(
        reply.header("cache-control"),
        "public, max-age=300, stale-while-revalidate=30, stale-if-error=3600"
    );
    assert_eq!(reply.header("vary"), "Accept");
    assert!(reply.header("last-modified").ends_with(" GMT"), "{:?}", reply.headers);
    assert_eq!(reply.header("access-control-allow-origin"), "*");
    assert_eq!(reply.header("access-control-allow-methods"), "GET, OPTIONS");
    let found = providers(&reply);
    assert_eq!(found.len(), 2);
    let first =
        found.iter().find(|peer| peer["Protocols"] == json!(["transport-bitswap", "ron-blob-1"])).unwrap();
    assert_eq!(first["Schema"], "peer");
    assert_eq!(first["Addrs"], json!(["/ip4/192.0.2.1/tcp/4710", "/ip6/2001:db8::1/tcp/4710"]));
    assert!(
        first["ID"].as_str().unwrap().starts_with("bafz"),
        "as the examples of the specification: {first}"
    );
    // The same hash in another form is the same question.
    assert_eq!(providers(&served.get(&path(V0), "").await), found);
    // Each object has these fields and no others.
    let names: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(names, ["Addrs", "ID", "Protocols", "Schema"]);
    served.world.host.shutdown().await;
}

/// "8. Streaming": only to those who ask for it, one result in each line.
#[tokio::test(flavor = "multi_thread")]
async fn providers_are_lines_on_request() {
    let served = served().await;
    let path = format!("/routing/v1/providers/{V1}");
    let lines = served.get(&path, "accept: application/x-ndjson\r\n").await;
    assert_eq!(
        (lines.status, lines.header("content-type"), lines.header("vary")),
        (200, "application/x-ndjson", "Accept")
    );
    let text = String::from_utf8(lines.body).unwrap();
    let peers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(peers.len(), 2);
    assert!(peers.iter().all(|peer| peer["Schema"] == "peer"));
    for accept in ["", "accept: */*\r\n", "accept: application/json\r\n"] {
        assert_eq!(served.get(&path, accept).await.header("content-type"), "application/json", "{accept}");
    }
    let one = served
        .get(&format!("{path}?filter-protocols=transport-bitswap"), "accept: application/x-ndjson\r\n")
        .await;
    assert_eq!(String::from_utf8(one.body).unwrap().lines().count(), 1);
    served.world.host.shutdown().await;
}

/// An empty list is 200, for a short time (IPIP-513); what is no CID is 422.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_an_empty_list_and_nonsense_an_error() {
    let served = served().await;
    let unknown = "/routing/v1/providers/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    for _ in 0..2 {
        let empty = served.get(unknown, "").await;
        assert_eq!((empty.status, empty.json()), (200, json!({"Providers": []})));
        assert!(empty.header("cache-control").starts_with("public, max-age=15,"), "{:?}", empty.headers);
        let lines = served.get(unknown, "accept: application/x-ndjson\r\n").await;
        assert_eq!(
            (lines.status, lines.body.len(), lines.header("content-type")),
            (200, 0, "application/x-ndjson")
        );
    }
    for nonsense in ["hello", "Qm", "bafy", "b3:00", "zzzz"] {
        let refused = served.get(&format!("/routing/v1/providers/{nonsense}"), "").await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (422, "*"), "{nonsense}");
    }
    assert_eq!(served.get("/routing/v1/ipns/k51x", "").await.status, 501);
    served.world.host.shutdown().await;
}

/// Filters of IPIP-484, through the wire; the rules one by one are tested beside the code.
#[tokio::test(flavor = "multi_thread")]
async fn filters_leave_out_what_is_not_wanted() {
    let served = served().await;
    let ask = |query: &str| {
        let path = format!("/routing/v1/providers/{V1}?{query}");
        let served = &served;
        async move { providers(&served.get(&path, "").await) }
    };
    let addrs =
        |peers: &[Value]| peers.iter().map(|peer| peer["Addrs"].as_array().unwrap().len()).sum::<usize>();
    for (query, peers, addresses) in [
        ("filter-addrs=ip6", 1, 1),
        ("filter-addrs=!ip6", 1, 1),
        ("filter-addrs=unknown,ip4", 2, 1),
        ("filter-addrs=quic-v1%2Cwebtransport", 0, 0),
        ("filter-protocols=transport-bitswap", 1, 2),
        ("filter-protocols=unknown", 1, 0),
        ("filter-protocols=unknown,transport-bitswap&filter-addrs=unknown", 1, 0),
    ] {
        let found = ask(query).await;
        assert_eq!((found.len(), addrs(&found)), (peers, addresses), "{query}: {found:?}");
    }
    let many = format!("/routing/v1/providers/{V1}?filter-addrs={}", "a,".repeat(100));
    assert_eq!(served.get(&many, "").await.status, 422);
    served.world.host.shutdown().await;
}

/// Clients of libp2p know a peer by its key. Where the key is known the id is theirs; a key that is not the node's own is not.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_those_of_libp2p_where_the_key_is_known() {
    let cid: ron_index::Key = V1.parse().unwrap();
    let key = [7; 32];
    let id = ron_core::NodeId::of_public_key(&key);
    let at = |id| ron_index::source::Provider::new(id, ["192.0.2.7:4710".parse().unwrap()]);
    let stranger = at(ron_core::NodeId::from_bytes([9; 32])).with_public_key(key);
    assert_eq!(stranger.public_key, None);
    let fixed = FixedProviders::new().of(cid.clone(), at(id).with_public_key(key)).of(cid, stranger);
    let settings = Settings { enough: 2.try_into().unwrap(), ..Settings::default() };
    let served = Served::start(World::start(Index::builder().providers(fixed), settings)).await;
    let found = providers(&served.get(&format!("/routing/v1/providers/{V1}"), "").await);
    let ids: Vec<&str> = found.iter().map(|peer| peer["ID"].as_str().unwrap()).collect();
    let of_key = ids.iter().find(|id| id.starts_with("12D3KooW")).unwrap();
    assert!(ids.iter().any(|id| id.starts_with("bafzb4i")), "{ids:?}");
    // By the key, by the same as a CID in the base that IPNS uses, and by the hash of the key: one peer.
    for asked in [(*of_key).to_owned(), as_cid(&key), node_cid(&id)] {
        let peers = served.get(&format!("/routing/v1/peers/{asked}"), "").await.json();
        assert_eq!(peers["Peers"][0]["ID"], **of_key, "{asked}: {peers}");
    }
    served.world.host.shutdown().await;
}

/// A CID of a key with these bytes as its hash, in hex.
fn key_cid(multihash: &[u8]) -> String {
    let bytes = [&[0x01, 0x72], multihash].concat();
    format!("f{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn as_cid(key: &[u8; 32]) -> String {
    key_cid(&[&[0x00, 0x24, 0x08, 0x01, 0x12, 0x20], &key[..]].concat())
}

fn node_cid(id: &ron_core::NodeId) -> String {
    key_cid(&[&[0x1e, 0x20], &id.as_bytes()[..]].concat())
}

/// "5. Peer Routing API", and what browsers ask first ("10. CORS").
#[tokio::test(flavor = "multi_thread")]
async fn peers_are_found_by_their_ids() {
    let served = served().await;
    let id = providers(&served.get(&format!("/routing/v1/providers/{V1}"), "").await);
    let id = id.iter().find(|peer| peer["Protocols"].as_array().unwrap().len() == 2).unwrap()["ID"].clone();
    let reply = served.get(&format!("/routing/v1/peers/{}", id.as_str().unwrap()), "").await;
    let peers = reply.json()["Peers"].as_array().unwrap().clone();
    assert_eq!((reply.status, peers.len(), &peers[0]["ID"]), (200, 1, &id));
    assert_eq!(peers[0]["Addrs"].as_array().unwrap().len(), 2);
    // A peer that is none of ours is known to nobody.
    for other in [
        "12D3KooWRBhwfeP2Y4TCx1SM6s9rUoHhR5STiGwxBhgFRcw3UERE",
        "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8",
    ] {
        let reply = served.get(&format!("/routing/v1/peers/{other}"), "").await;
        assert_eq!((reply.status, reply.json()), (200, json!({"Peers": []})), "{other}");
    }
    assert_eq!(served.get(&format!("/routing/v1/peers/{V1}"), "").await.status, 422, "content is no peer");
    let preflight = served
        .send("OPTIONS", &format!("/at/routing/v1/peers/{V1}"), "origin: https://example.com\r\n", b"")
        .await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (204, "*"));
    served.world.host.shutdown().await;
}
