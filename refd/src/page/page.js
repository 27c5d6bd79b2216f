// The dashboard: draws what /state says, once and then whenever /events brings it anew, and asks by hand. Everything that
// comes from the network is put into the page as text, never as markup.
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
const short = (value) => (value.length > 20 ? `${value.slice(0, 17)}…` : value);
const pairs = (id, list) => fill(id, list.flatMap(([name, value]) => {
  const shown = made("dd", short(value));
  shown.title = value;
  return [made("dt", name), shown];
}));
const row = (cells) => {
  const line = document.createElement("tr");
  line.append(...cells.map((cell, at) => made("td", cell, at === 0 ? "id" : "")));
  return line;
};
const rows = (id, columns, lines, otherwise) => {
  if (lines.length) return fill(id, lines.map(row));
  const cell = made("td", otherwise, "none");
  cell.colSpan = columns;
  const line = document.createElement("tr");
  line.append(cell);
  fill(id, [line]);
};
const bar = (value, max) => Object.assign(document.createElement("meter"), { min: 0, max, high: max, optimum: 0, value });
const bars = (id, list, otherwise) => {
  const most = Math.max(1, ...list.map(([, value]) => value));
  const lines = list.flatMap(([name, value]) => [made("span", name), bar(value, most), made("span", count(value))]);
  fill(id, lines.length ? lines : [made("span", otherwise, "none")]);
};

function draw(state) {
  at("version").textContent = state.version;
  at("node").textContent = `${state.node}@${state.addrs.join(",")}`;
  const { ready, dht, overlay, storage, registry } = state;
  const words = ready.writes ? "ready" : ready.reads ? "reads only" : "not ready";
  at("ready").textContent = words;
  at("ready").className = `big ${ready.writes ? "good" : "bad"}`;
  const closed = ready.gates.filter((gate) => gate.reason);
  fill("closed", closed.map((gate) => made("li", `${gate.name}: ${gate.reason}`, "bad")));
  at("opened").textContent = `${ready.gates.length - closed.length} of ${ready.gates.length} gates are open`;
  const open = new Set(ready.gates.filter((gate) => !gate.reason).map((gate) => gate.name));
  fill("gates", [...open].sort().map((name) => made("li", name)));
  pairs("network", [
    ["peers known", count(dht.peers.length)],
    ["nodes, estimated", dht.network_size ? `about ${Math.round(dht.network_size)}` : "–"],
    ["sessions", count(overlay.sessions)],
    ["records kept", count(dht.records)],
    ["keys provided", count(dht.provided)],
  ]);
  const shares = new Map();
  for (const peer of dht.peers) shares.set(peer.shared_bits, (shares.get(peer.shared_bits) ?? 0) + 1);
  const buckets = [...shares].sort(([one], [other]) => one - other);
  bars("buckets", buckets.map(([bits, peers]) => [`${bits} bits`, peers]), "nobody yet");
  pairs("searches", [
    ["so far", count(dht.lookups)],
    ["hops, on average", dht.hops === null ? "–" : dht.hops.toFixed(1)],
    ["time, on average", dht.seconds === null ? "–" : `${(dht.seconds * 1e3).toFixed(1)} ms`],
  ]);
  bars("hops", dht.depths.map(({ most, searches }) => [most === null ? "more" : `≤ ${most}`, searches]), "none yet");
  bars("ended", dht.ended.map(({ reason, searches }) => [reason, searches]), "none yet");
  pairs("objects", [
    ["objects", count(storage.objects)],
    ["bytes", bytes(storage.bytes)],
    ["pinned", count(storage.pinned)],
    ["damaged", count(storage.quarantined)],
    ["on disk", bytes(storage.disk_bytes)],
    ["free", storage.free_bytes === null ? "–" : bytes(storage.free_bytes)],
  ]);
  drawKeeping(state.keeping);
  pairs("log", [
    ["log", registry.origin],
    ["kind", registry.follows ? "followed" : "its own"],
    ["entries", count(registry.version)],
    ["head", registry.hash],
    ["names", count(registry.names)],
    ["verified again up to", count(registry.verified)],
  ]);
  if (shownHead !== registry.hash) drawLog(registry);
  rows("peers", 5, dht.peers.map((peer) => [
    peer.id, peer.addrs.join(", "), peer.rtt_ms === null ? "–" : `${peer.rtt_ms.toFixed(1)} ms`,
    `${peer.shared_bits} bits`, peer.session ? "yes" : "–",
  ]), "nobody yet: others begin with --seed and the line above");
  rows("topics", 4, overlay.topics.map((topic) => [
    topic.name, count(topic.neighbours), count(topic.published), count(topic.delivered),
  ]), "none: overlay.topics names those to be on");
  fill("queues", [...Map.groupBy(state.queues, (queue) => queue.part)].map(([part, queues]) => {
    const group = document.createElement("div");
    const lines = made("div", "", "bars");
    lines.append(...queues.flatMap((queue) => {
      const meter = bar(queue.depth, queue.capacity);
      meter.high = queue.capacity * 0.8;
      return [made("span", queue.name), meter, made("span", `${count(queue.depth)} of ${count(queue.capacity)}`)];
    }));
    group.append(made("h3", part), lines);
    return group;
  }));
}

function drawKeeping(keeping) {
  if (!keeping) {
    at("copies").textContent = "kept here alone";
    return;
  }
  at("company").hidden = false;
  const { met, under, urgent, lost } = { met: 0, under: 0, urgent: 0, lost: 0, ...keeping.objects };
  const words = lost ? `${count(lost)} lost` : under + urgent ? `${count(under + urgent)} being restored` : "all there";
  at("copies").textContent = words;
  at("copies").className = `big ${lost + urgent ? "bad" : "good"}`;
  pairs("keeping", [
    ["policy", keeping.policy],
    ["as they should be", count(met)],
    ["something missing", count(under)],
    ["at their last copy", count(urgent)],
    ["fewest copies", keeping.rf_observed === null ? "–" : count(keeping.rf_observed)],
    ["repairs under way", count(keeping.repairs)],
    ["pace of repair", `${bytes(keeping.bytes_per_second)}/s`],
    ["nodes up, away", `${count(keeping.up)}, ${count(keeping.away)}`],
  ]);
  rows("keepers", 4, keeping.nodes.map((node) => {
    const seen = node.this ? "this node" : node.seen_ms === null ? "never" : `${Math.round(node.seen_ms / 1000)} s ago`;
    return [node.id, node.presence, seen, count(node.pieces)];
  }), "nobody yet");
  for (const line of at("keepers").rows) if (line.cells[1]?.textContent === "away") line.className = "bad";
}

// The head with its signature and the last entries, whenever the log has moved.
let shownHead = null;
async function drawLog(registry) {
  shownHead = registry.hash;
  try {
    const head = await (await fetch("registry/head")).json();
    at("checkpoint").textContent = head.checkpoint;
    const from = Math.max(head.first, head.version - 4);
    const begun = head.version > 0;
    const { entries } = begun ? await (await fetch(`registry/entries?from=${from}&limit=5`)).json() : { entries: [] };
    const { policy } = begun ? await (await fetch("registry/policy")).json() : { policy: { signers: [] } };
    const signers = new Map(policy.signers.map(({ name, key }) => [key, name]));
    rows("entries", 4, entries.reverse().map(({ version, proposal, approvals, time }) => [
      `${version}`, [proposal.action, proposal.name, proposal.b3].filter(Boolean).join(" "),
      approvals.map(({ key }) => signers.get(key) ?? short(key)).join(", ") || "–",
      `${new Date(time).toISOString().replace("T", " ").slice(0, 19)} UTC`,
    ]), "none: refd registry init begins one");
  } catch { shownHead = null; }
}

// Of what was refused, what it is and what to do.
const refusal = (body) => [body.title, body.detail, body.hint].filter(Boolean).join("; ");

// A form that says what came of it, and is not sent twice at once.
const form = (id, ask) => at(id).addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = at(id).querySelector("button");
  const say = (text, kind) => Object.assign(at(`${id}-said`), { textContent: text, className: kind });
  button.disabled = true;
  say("…", "");
  try {
    say(await ask(), "good");
  } catch (error) {
    say(error.message, "bad");
  }
  button.disabled = false;
});
const asked = async (url, options) => {
  const answer = await fetch(url, options).catch((error) => { throw new Error(`the node cannot be reached: ${error.message}`); });
  if (!answer.ok) throw new Error(refusal(await answer.json()));
  return answer;
};
const written = (id, what) => {
  const text = at(id).value.trim();
  if (!text) throw new Error(what);
  return text;
};
const authorized = () => ({ authorization: `Bearer ${at("token").value.trim()}` });

async function list() {
  const { objects } = await (await asked("o?limit=20", { headers: authorized() })).json();
  rows("list", 4, objects.map((object) => [
    object.id, bytes(object.size), object.pinned ? "yes" : "–", object.quarantined ? "yes" : "–",
  ]), "none yet");
  at("listed").hidden = false;
}
at("token").addEventListener("change", () => list().catch(() => { at("listed").hidden = true; }));

form("put", async () => {
  const file = at("file").files[0];
  if (!file) throw new Error("choose a file first");
  const stored = await (await asked("o", { method: "POST", body: file, headers: authorized() })).json();
  at("id").value = stored.id;
  at("key").value = stored.id;
  await list();
  return `stored as ${stored.id}`;
});

form("get", async () => {
  const id = written("id", "say which: b3: and 64 hex digits");
  const content = await (await asked(`o/${encodeURIComponent(id)}`)).blob();
  const link = made("a", "");
  link.href = URL.createObjectURL(content);
  link.download = id.replace(":", "-");
  link.click();
  URL.revokeObjectURL(link.href);
  return `fetched ${bytes(content.size)}`;
});

form("find", async () => {
  const key = written("key", "say which: b3: and 64 hex digits, or a CID");
  const { providers, verdict } = await (await asked(`dht/providers/${encodeURIComponent(key)}?limit=5&trace=1`)).json();
  rows("asked", 5, verdict.trace.map((asked) => [
    asked.peer, `${asked.hop}`, `${asked.at_ms.toFixed(1)} ms`, asked.took_ms === null ? "–" : `${asked.took_ms.toFixed(1)} ms`,
    `${asked.outcome}${asked.found ? `, ${asked.found} found` : ""}${asked.named ? `, ${asked.named} named` : ""}${asked.hedge ? ", a hedge" : ""}`,
  ]), "nobody had to be asked");
  at("trace").hidden = false;
  const who = providers.map((provider) => short(provider.id)).join(", ");
  return `${providers.length ? `provided by ${who}` : "nobody provides it"}; hops: ${verdict.hops}, questions: ${verdict.rpcs}, ended: ${verdict.reason}`;
});

// RFC 6962 in the browser: from the entry and the hashes beside it up to the root that the signed head names.
const unpacked = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const hashed = async (...parts) => {
  const all = new Uint8Array(await new Blob(parts).arrayBuffer());
  return new Uint8Array(await crypto.subtle.digest("SHA-256", all));
};
async function rootOf(leaf, index, size, path) {
  let [hash, last] = [await hashed(new Uint8Array([0]), leaf), size - 1];
  for (const beside of path) {
    if (last === 0) throw new Error("the proof is too long");
    if (index % 2 === 1 || index === last) {
      hash = await hashed(new Uint8Array([1]), beside, hash);
      while (index % 2 === 0 && index !== 0) [index, last] = [Math.floor(index / 2), Math.floor(last / 2)];
    } else hash = await hashed(new Uint8Array([1]), hash, beside);
    [index, last] = [Math.floor(index / 2), Math.floor(last / 2)];
  }
  if (last !== 0) throw new Error("the proof is too short");
  return hash;
}

form("prove", async () => {
  const name = written("name", "say which name");
  const answer = await (await asked(`registry/names/${name.split("/").map(encodeURIComponent).join("/")}`)).json();
  if (!answer.version) return `${name} stands for nothing, and the log proves it`;
  if (!crypto.subtle) return `${name} is ${answer.b3} since entry ${answer.version}; a browser checks proofs on https or localhost only`;
  const [proof, ...note] = answer.inclusion.split("\n\n");
  const [, index, ...path] = proof.split("\n");
  const [, size, root] = note[0].split("\n");
  const reached = await rootOf(unpacked(answer.entry), Number(index.slice(6)), Number(size), path.map(unpacked));
  if (btoa(String.fromCharCode(...reached)) !== root) throw new Error("the proof does not lead to the signed head");
  return `${name} is ${answer.b3} since entry ${answer.version}; checked here: the proof (hashes: ${path.length}) leads to the signed head of ${size} entries`;
});

const live = (text, kind) => Object.assign(at("live"), { textContent: text, className: kind });
fetch("state").then((answer) => answer.json()).then((state) => {
  draw(state);
  live("once", "");
  if (new URLSearchParams(location.search).has("once")) return;
  const events = new EventSource("events");
  events.onmessage = (event) => {
    draw(JSON.parse(event.data));
    live("live", "good");
  };
  events.onerror = () => live("the node does not answer; trying again", "bad");
}).catch((error) => live(`the node does not answer: ${error.message}`, "bad"));
