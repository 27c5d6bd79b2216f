//! A search as it runs: the questions that are out, and what their answers teach.
//!
//! All decisions are [`Lookup`]'s. Here its steps are carried out: a question is a future, giving it up is dropping
//! that, and every answer is news for the routing table, whatever it is worth to the search.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use ron_core::{Deadline, NodeId, now};
use tokio::time::Instant;

use crate::{
    buckets::Errand,
    inflight::InFlight,
    logic::{
        Contact, Key, Rtt,
        lookup::{Asked, Failure, Goal, Lead, Lookup, LookupSettings, Named, Outcome, Reason, Step, Verdict},
        table::Entry,
        wire::{Answer, Request},
    },
    metrics::{HEDGE_CANCELED, HEDGE_SPAWNED},
    network::Reply,
    node::Node,
    retry::Spent,
};

/// How often a node that is looked for by its own name, and was named by others, is asked again when it is silent. With
/// one message in ten lost, a question and its answer fail together one time in five: three times in a row, one in a
/// hundred and fifty.
const INSISTS: usize = 2;

/// What a search asks, and what it makes of the answers.
pub(crate) trait Quest: Send {
    /// The question to every peer.
    fn request(&self) -> Arc<Request>;

    /// Takes what an answer of a peer at `from` brought beside closer peers. Says how much of it was new; it counts
    /// towards the goal.
    fn on_answer(&mut self, from: IpAddr, answer: Answer) -> impl Future<Output = usize> + Send;
}

/// Only looks for the nearest peers.
pub(crate) struct Nearest(pub(crate) Key);

impl Quest for Nearest {
    fn request(&self) -> Arc<Request> {
        Arc::new(Request::FindNode { target: self.0 })
    }

    async fn on_answer(&mut self, _: IpAddr, _: Answer) -> usize {
        0
    }
}

/// How one search differs from another.
pub(crate) struct Plan {
    pub(crate) target: Key,
    pub(crate) goal: Goal,
    pub(crate) settings: LookupSettings,
    pub(crate) deadline: Deadline,
    /// Whether nobody chose the target, so that its neighbourhood tells the size of the network.
    pub(crate) is_sample: bool,
}

/// A question that is out.
struct Question {
    to: Contact,
    hedge: bool,
    asked: Duration,
    deadline: Deadline,
    /// Whether the peer was too busy at first.
    is_again: bool,
}

type Questions = InFlight<'static, Question, Result<Reply, Failure>>;

/// Runs a search to its end. Dropping the future calls it off, and with it every question that is out.
pub(crate) async fn search<Q: Quest>(node: &Node, plan: Plan, quest: &mut Q) -> Verdict {
    let settings = node.settings();
    let mut seeds = Vec::with_capacity(settings.seeds);
    node.buckets.visit_closest(&plan.target, settings.seeds, |entry| seeds.push(Lead::from(entry.clone())));
    let until = node.since(plan.deadline.instant());
    let mut lookup = Lookup::new(node.id, plan.target, plan.goal, plan.settings, seeds, until);
    let request = quest.request();
    let spent = Spent::new(plan.settings.requests_max);
    let mut out = Questions::new();
    let mut wanted = None;
    let began = now();
    let stop = node.stop();
    let mut stopped = pin!(stop.requested());
    // Set once for many waits: most end by an answer, and the next one would end later.
    let mut alarm = pin!(tokio::time::sleep_until(plan.deadline.instant()));
    loop {
        lookup.on_asked_again(spent.again());
        let wait = match lookup.poll(node.since(now())) {
            Step::Ask { contact, rtt, hedge } => {
                spent.ask();
                if contact.id.as_bytes() == plan.target.as_bytes() {
                    wanted = Some(contact.clone());
                }
                if hedge {
                    node.metrics.tally(HEDGE_SPAWNED, "").add(1);
                }
                let mut timeout = rtt.timeout(settings.rpc_timeout);
                if !node.network().is_linked(&contact.id) {
                    lookup.on_dial(&contact.id);
                    // What is known of its speed is of a link that was there.
                    timeout = settings.rpc_timeout;
                }
                let deadline = plan.deadline.within(timeout);
                node.ask(&mut out, contact, hedge, &request, deadline);
                continue;
            }
            Step::Cancel(peer) => {
                drop_question(node, &mut out, &peer);
                continue;
            }
            Step::Wait { until } => until,
            Step::Done(mut verdict) => {
                let start = node.since(began);
                verdict.trace.iter_mut().for_each(|asked| asked.at = asked.at.saturating_sub(start));
                for loser in &verdict.losers {
                    drop_question(node, &mut out, loser);
                }
                if let Some(wanted) = wanted.take().filter(|_| verdict.reason == Reason::Complete) {
                    insist(node, &plan, (&wanted, began), &request, &mut verdict).await;
                }
                node.on_verdict(&plan, &verdict, now() - began);
                learn_silence(node, &verdict);
                return verdict;
            }
        };
        let wake_at = node.epoch + wait;
        if wake_at < alarm.deadline() || alarm.is_elapsed() {
            alarm.as_mut().reset(wake_at);
        }
        let event = tokio::select! {
            biased;
            () = stopped.as_mut() => {
                lookup.cancel();
                continue;
            }
            event = out.next() => Some(event),
            () = alarm.as_mut() => None,
        };
        let Some((question, reply)) = event else { continue };
        let at = node.since(now());
        match reply {
            Ok(Reply { mut answer, observed, dialled }) => {
                let mut rtt = at.saturating_sub(question.asked);
                if question.is_again {
                    // With the pauses it is no round trip.
                    let known = node.buckets.look_at(&question.to.id, |entry| entry.rtt.mean());
                    rtt = known.flatten().unwrap_or(rtt);
                }
                if let Some(contact) = node.reached(&question.to, dialled) {
                    let heard = node.buckets.answered(&contact, observed, rtt, false);
                    // A bucket that is slow to hear of it takes none of what is left of the time.
                    let _ = plan.deadline.limit("route", heard).await;
                }
                let closer = closer_of(&mut answer);
                let found = quest.on_answer(observed, answer).await;
                let closer = closer.into_iter().filter_map(|contact| node.usable(contact, observed));
                lookup.on_answer(
                    &question.to.id,
                    closer.map(|contact| Stranger { contact, node }),
                    found,
                    at,
                );
            }
            Err(failure) => {
                if !failure.is_the_peers() && !question.is_again {
                    let Question { to, deadline, .. } = &question;
                    let again = (failure, &spent);
                    let again = node.patience.ask_again(node.network(), to, &request, *deadline, again);
                    if let Some(again) = again {
                        out.push_boxed(Question { is_again: true, ..question }, again);
                        continue;
                    }
                }
                if failure.is_the_peers() {
                    let _ = plan.deadline.limit("route", node.buckets.failed(question.to.id)).await;
                }
                lookup.on_failure(&question.to.id, failure, at);
            }
        }
    }
}

/// Who looks for a node by its name wants that one and not its neighbours. If it did not answer, it is asked again,
/// and this time waited for.
async fn insist(
    node: &Node,
    plan: &Plan,
    (wanted, start): (&Contact, Instant),
    request: &Arc<Request>,
    verdict: &mut Verdict,
) {
    let is_there = |verdict: &Verdict| verdict.closest.first().is_some_and(|first| first.id == wanted.id);
    let rpcs_max = usize::from(plan.settings.requests_max).min(verdict.rpcs + INSISTS);
    let hop = verdict.trace.iter().find(|asked| asked.peer == wanted.id).map_or(1, |asked| asked.hop);
    while !is_there(verdict) && verdict.rpcs < rpcs_max {
        let began = now();
        let deadline = plan.deadline.within(node.settings().rpc_timeout / 2);
        let reply = node.network().ask(wanted, Arc::clone(request), deadline).await;
        let took = now() - began;
        let outcome = match reply {
            Ok(reply) => {
                if let Some(contact) = node.reached(wanted, reply.dialled) {
                    node.buckets.answered(&contact, reply.observed, took, false).await;
                }
                verdict.closest.insert(0, wanted.clone());
                verdict.hops = verdict.hops.max(hop);
                Outcome::Answered { named: 0, found: 0 }
            }
            Err(failure) => Outcome::Failed(failure),
        };
        let at = began.saturating_duration_since(start);
        verdict.rpcs += 1;
        verdict.trace.push(Asked { peer: wanted.id, hop, at, took: Some(took), hedge: false, outcome });
    }
}

/// Peers that were set aside and never answered. They were slower than others, which is no failure: whoever would make
/// them leave the table need only keep us busy for a moment. They are asked whether they are there, and have all the
/// time that a question has.
fn learn_silence(node: &Node, verdict: &Verdict) {
    for asked in verdict.trace.iter().filter(|asked| asked.outcome == Outcome::Silent) {
        let known = |entry: &Entry| (!entry.is_silent()).then(|| entry.contact.clone());
        if let Some(to) = node.buckets.look_at(&asked.peer, known).flatten() {
            drop(node.pings.try_push(Errand { to, introduces: false }));
        }
    }
}

fn drop_question(node: &Node, out: &mut Questions, peer: &NodeId) {
    if out.drop_first(|question| question.to.id == *peer).is_some_and(|question| question.hedge) {
        node.metrics.tally(HEDGE_CANCELED, "").add(1);
    }
}

/// Takes the peers that an answer names.
fn closer_of(answer: &mut Answer) -> Vec<Contact> {
    match answer {
        Answer::Nodes { closer } | Answer::Found { closer, .. } => std::mem::take(closer),
        _ => Vec::new(),
    }
}

/// Somebody whom an answer names. Of most of them the search has heard.
struct Stranger<'a> {
    contact: Contact,
    node: &'a Node,
}

impl Named for Stranger<'_> {
    fn contact(&self) -> &Contact {
        &self.contact
    }

    fn into_lead(self) -> Lead {
        self.node.lead(self.contact)
    }
}

impl Node {
    fn ask(&self, out: &mut Questions, to: Contact, hedge: bool, request: &Arc<Request>, deadline: Deadline) {
        let reply = self.network().ask(&to, Arc::clone(request), deadline);
        let asked = self.since(now());
        out.push_boxed(Question { to, hedge, asked, deadline, is_again: false }, reply);
    }

    /// `contact`, which a peer at `observed` named, with the addresses that such a peer may name; nothing if it has none.
    fn usable(&self, contact: Contact, observed: IpAddr) -> Option<Contact> {
        if contact.addrs.iter().all(|addr| self.policy.allows(addr, observed)) {
            return Some(contact);
        }
        let addrs = self.policy.usable(&contact.addrs, observed);
        (!addrs.is_empty()).then(|| Contact { id: contact.id, addrs: addrs.into() })
    }

    /// `peer`, whom others named and who has answered, as far as it is known where it takes calls: where it was dialled,
    /// whatever was said. Over a link that it opened itself it answers under any address, so only one that is known already
    /// counts; others say themselves where they are.
    fn reached(&self, peer: &Contact, dialled: Option<SocketAddr>) -> Option<Contact> {
        let is_same = |addr: &SocketAddr, other: SocketAddr| {
            addr.port() == other.port() && addr.ip().to_canonical() == other.ip().to_canonical()
        };
        match dialled {
            Some(at) if peer.addrs.iter().any(|addr| is_same(addr, at)) => Some(peer.clone()),
            Some(at) => Some(Contact { id: peer.id, addrs: [at].into() }),
            None => self.buckets.look_at(&peer.id, |entry| entry.contact.clone()),
        }
    }

    /// Whom to ask when somebody names this peer. One that we know and that answers is where we know it to be: over a link
    /// that is open it would answer under any address, and the table would take a liar's word for where it is.
    pub(crate) fn lead(&self, contact: Contact) -> Lead {
        let known = |entry: &Entry| (!entry.is_silent()).then(|| Lead::from(entry.clone()));
        self.buckets.look_at(&contact.id, known).flatten().unwrap_or(Lead { contact, rtt: Rtt::UNKNOWN })
    }
}
