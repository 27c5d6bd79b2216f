// The dashboard: draws what /state says, once and then whenever /events brings it anew. Everything that comes from the
// network is put into the page as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const made = (tag, text, kind) => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const fill = (id, children) => at(id).replaceChildren(...children);
const count = (value) => (value ?? 0).toLocaleString("en");
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
};
// What is too long for a card is cut; the whole is there for who points at it.
const short = (value) => (value.length > 28 ? `${value.slice(0, 25)}…` : value);
const pairs = (id, list) => fill(id, list.flatMap(([name, value]) => {
  const shown = made("dd", short(value));
  shown.title = value;
  return [made("dt", name), shown];
}));
const row = (cells) => {
  const line = document.createElement("tr");
  line.append(...cells.map((cell) => made("td", cell)));
  return line;
};
const nothing = (id, columns, text) => {
  const line = document.createElement("tr");
  const cell = made("td", text);
  cell.colSpan = columns;
  line.append(cell);
  fill(id, [line]);
};

function draw(state) {
  at("version").textContent = state.version;
  at("node").textContent = `${state.node}@${state.addrs.join(",")}`;
  const { ready, dht, overlay, storage, registry } = state;
  const words = ready.writes ? "ready" : ready.reads ? "reads only" : "not ready";
  at("ready").textContent = words;
  at("ready").className = `big ${ready.writes ? "good" : "bad"}`;
  const closed = ready.gates.filter((gate) => gate.reason).map((gate) => made("li", `${gate.name}: ${gate.reason}`, "bad"));
  fill("gates", [...closed, made("li", `${ready.gates.length - closed.length} of ${ready.gates.length} gates are open`)]);
  pairs("network", [
    ["peers known", count(dht.peers.length)],
    ["nodes, estimated", dht.network_size ? `about ${Math.round(dht.network_size)}` : "–"],
    ["sessions", count(overlay.sessions)],
    ["records kept", count(dht.records)],
    ["keys provided", count(dht.provided)],
    ["searches", count(dht.lookups)],
    ["hops of a search", dht.hops === null ? "–" : dht.hops.toFixed(1)],
  ]);
  const shares = new Map();
  for (const peer of dht.peers) shares.set(peer.shared_bits, (shares.get(peer.shared_bits) ?? 0) + 1);
  fill("buckets", [...shares].sort(([one], [other]) => one - other).map(([bits, peers]) => made("span", `${peers} at ${bits} bits`)));
  pairs("objects", [
    ["objects", count(storage.objects)],
    ["bytes", bytes(storage.bytes)],
    ["pinned", count(storage.pinned)],
    ["damaged", count(storage.quarantined)],
    ["on disk", bytes(storage.disk_bytes)],
    ["free", storage.free_bytes === null ? "–" : bytes(storage.free_bytes)],
  ]);
  pairs("log", [
    ["log", registry.origin],
    ["entries", count(registry.version)],
    ["head", registry.hash],
    ["names", count(registry.names)],
    ["verified again up to", count(registry.verified)],
    ["kind", registry.follows ? "followed" : "its own"],
  ]);
  if (dht.peers.length) {
    fill("peers", dht.peers.map((peer) => row([
      peer.id, peer.addrs.join(", "), peer.rtt_ms === null ? "–" : `${peer.rtt_ms.toFixed(1)} ms`,
      `${peer.shared_bits} bits`, peer.session ? "yes" : "–",
    ])));
  } else nothing("peers", 5, "nobody yet: others begin with --seed and the line above");
  if (overlay.topics.length) {
    fill("topics", overlay.topics.map((topic) => row([topic.name, count(topic.neighbours), count(topic.published), count(topic.delivered)])));
  } else nothing("topics", 4, "none: overlay.topics names those to be on");
  fill("queues", state.queues.map((queue) => {
    const line = document.createElement("div");
    const meter = document.createElement("meter");
    Object.assign(meter, { min: 0, max: queue.capacity, high: queue.capacity * 0.8, optimum: 0, value: queue.depth });
    line.append(made("span", queue.name), made("span", `${count(queue.depth)} of ${count(queue.capacity)}`), meter);
    return line;
  }));
}

const say = (text, kind) => {
  at("said").textContent = text;
  at("said").className = kind ?? "";
};

at("put").addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = at("file").files[0];
  if (!file) return say("choose a file first", "bad");
  try {
    const headers = { authorization: `Bearer ${at("token").value.trim()}` };
    const answer = await fetch("o", { method: "POST", body: file, headers });
    const body = await answer.json();
    if (!answer.ok) return say(`${body.title}${body.hint ? `; ${body.hint}` : ""}`, "bad");
    at("id").value = body.id;
    say(`stored as ${body.id}`, "good");
  } catch (error) {
    say(`the node cannot be reached: ${error.message}`, "bad");
  }
});

at("get").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = at("id").value.trim();
  try {
    const answer = await fetch(`o/${encodeURIComponent(id)}`);
    if (!answer.ok) {
      const body = await answer.json();
      return say(`${body.title}${body.detail ? `: ${body.detail}` : ""}`, "bad");
    }
    const content = await answer.blob();
    const link = made("a", "");
    link.href = URL.createObjectURL(content);
    link.download = id.replace(":", "-");
    link.click();
    URL.revokeObjectURL(link.href);
    say(`fetched ${bytes(content.size)}`, "good");
  } catch (error) {
    say(`the node cannot be reached: ${error.message}`, "bad");
  }
});

fetch("state").then((answer) => answer.json()).then((state) => {
  draw(state);
  at("live").textContent = "once";
  if (new URLSearchParams(location.search).has("once")) return;
  const events = new EventSource("events");
  events.onmessage = (event) => {
    draw(JSON.parse(event.data));
    at("live").textContent = "live";
  };
  events.onerror = () => { at("live").textContent = "the node does not answer; trying again"; };
}).catch((error) => { at("live").textContent = `the node does not answer: ${error.message}`; });
