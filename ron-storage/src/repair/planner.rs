//! The task that owns the plan.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, Event as FeedEvent, Inbox, Lane, NodeId, ReadyGate, Stop, Subscriber, now,
};

use super::{
    Class, Health, Heard, KeepingEvent, KeepingStatus, Member, NodeStatus, Shared, YIELD_EVERY, claimed,
    looking::myself, plan_settings, rate_and_burst, seen::Seen, yielding,
};
use crate::{
    Cursor, Event, StorageError,
    claims::Standing,
    logic::{
        plan::{Holding, News, Node, Outcome, Plan, Presence, Step},
        yielding::Yielding,
    },
};

/// Objects that one page of a list has.
const PAGE: usize = 1000;

/// How often what is known is summed up, and what is over is forgotten.
const SUM_EVERY: Duration = Duration::from_secs(1);

/// How soon it is summed up again if somebody asks.
const SUM_AGAIN: Duration = Duration::from_millis(50);

/// How often it is listed what is here. Whoever gives up a put or a delete in its last moment may leave it done, and nobody is told.
const LIST_EVERY: Duration = Duration::from_secs(300);

/// How often deletes are looked at that may be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

pub(super) struct Planner {
    shared: Arc<Shared>,
    urgent: Lane<Step>,
    repairs: Lane<Step>,
    gate: Arc<ReadyGate>,
    plan: Plan,
    nodes: BTreeMap<NodeId, Node>,
    /// When each last answered.
    answered: BTreeMap<NodeId, Duration>,
    /// What is here, and since when: what came after another node was asked is not what it was compared with.
    mine: BTreeMap<ContentId, Duration>,
    seen: Seen,
    /// The changes of claims that were taken in.
    taken: u64,
    /// Whether somebody wants to know how everything is doing now.
    is_asked: bool,
    /// An urgent step that found no room.
    held_back: Option<Step>,
    /// Whether another step found none. Until a worker is done, only urgent ones are handed out: all the others would be weighed and
    /// skipped again and again.
    is_full: bool,
    has_looked: bool,
    /// What seems to be lost, since when, and whether that was told. A claim may be heard of before its object is: who has it
    /// is known when everybody was compared with.
    lost: BTreeMap<ContentId, (Duration, bool)>,
}

impl Planner {
    pub(super) fn new(
        shared: Arc<Shared>,
        (urgent, repairs): (Lane<Step>, Lane<Step>),
        gate: Arc<ReadyGate>,
    ) -> Self {
        let plan = Plan::new(shared.me, plan_settings(&shared.settings.load()));
        Planner {
            shared,
            urgent,
            repairs,
            gate,
            plan,
            nodes: BTreeMap::new(),
            answered: BTreeMap::new(),
            mine: BTreeMap::new(),
            seen: Seen::default(),
            taken: 0,
            is_asked: false,
            held_back: None,
            is_full: false,
            has_looked: false,
            lost: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self, inbox: Inbox<Heard>, stop: Stop) {
        let mut events = self.shared.store.events();
        self.list_again().await;
        self.on_all_claims();
        let mut list_at = now() + LIST_EVERY;
        let mut settings = self.shared.settings.load();
        let mut rate = yielding(&settings);
        let (mut sum_at, mut forget_at, mut yield_at) = (now(), now() + FORGET_EVERY, now() + YIELD_EVERY);
        loop {
            // Before everybody was looked at there is nothing to be planned, and nothing more while an urgent step waits for
            // room: that comes with a word from a worker.
            let plans = self.has_looked && self.held_back.is_none();
            let wake = self.plan.wake_at().filter(|_| plans);
            let wake = wake.map(|at| (self.shared.born + at).max(now()));
            // While there is news to weigh, one turn at a time: others have theirs in between.
            let weighing = plans && self.plan.weighing() > 0;
            tokio::select! {
                biased;
                () = stop.requested() => return,
                heard = inbox.recv() => match heard {
                    Some(heard) => {
                        // What came and went here first: a comparison is with what was here, and not with what is known here.
                        self.catch_up(&mut events).await;
                        self.hear(heard);
                        // What is there already, before anything is planned on half of it.
                        while let Some(heard) = inbox.try_recv() {
                            self.hear(heard);
                        }
                        if std::mem::take(&mut self.is_asked) {
                            sum_at = sum_at.min(now() + SUM_AGAIN);
                        }
                    }
                    None => return,
                },
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.on_event(event).await;
                    self.catch_up(&mut events).await;
                }
                () = tokio::task::yield_now(), if weighing => {}
                () = tokio::time::sleep_until(yield_at), if self.is_pacing(&rate) => {
                    yield_at = now() + YIELD_EVERY;
                    let (waiting, workers) = self.shared.store.readers();
                    let (before, after) = (rate.rate(), rate.on_sample(waiting, workers));
                    if before != after {
                        let (rate, burst) = rate_and_burst(after);
                        self.shared.pace.pacer.set_rate(rate, burst);
                    }
                }
                () = tokio::time::sleep_until(sum_at) => {
                    sum_at = now() + SUM_EVERY;
                    let new = self.shared.settings.load();
                    if settings.bytes_per_second != new.bytes_per_second {
                        rate = yielding(&new);
                        let (rate, burst) = rate_and_burst(rate.rate());
                        self.shared.pace.pacer.set_rate(rate, burst);
                    }
                    if settings != new {
                        self.plan.set_settings(plan_settings(&new));
                        settings = new;
                    }
                    // There is room when a worker has begun something, of which nobody hears.
                    self.is_full = false;
                    // What came, and what callers claimed who found the lane full and left no word.
                    self.catch_up(&mut events).await;
                    self.on_claims();
                    self.hand_out();
                    self.sum_up(rate.rate());
                }
                () = tokio::time::sleep_until(list_at) => {
                    list_at = now() + LIST_EVERY;
                    self.list_again().await;
                }
                () = tokio::time::sleep_until(forget_at) => {
                    forget_at = now() + FORGET_EVERY;
                    self.forget();
                }
                () = sleep_until(wake), if wake.is_some() && !weighing => {}
            }
            self.hand_out();
        }
    }

    /// Whether the rate matters: something is under way, or it has yet to come back.
    fn is_pacing(&self, rate: &Yielding) -> bool {
        self.shared.under_way.load(Ordering::Relaxed) > 0 || !rate.is_full()
    }

    /// Gives workers what is to be done, while there is room.
    fn hand_out(&mut self) {
        let now = self.shared.now();
        // Before anybody was looked at, everything seems to be missing.
        if !self.has_looked {
            return;
        }
        let least = if self.is_full { Class::Urgent } else { Class::Trim };
        loop {
            let step = match self.held_back.take() {
                Some(step) => step,
                None => match self.plan.poll_down_to(least, now) {
                    Some(step) => step,
                    None => break,
                },
            };
            self.shared.under_way.fetch_add(1, Ordering::Relaxed);
            let lane = if step.class == Class::Urgent { &self.urgent } else { &self.repairs };
            let Err((_, step)) = lane.try_push_or_return(step) else { continue };
            self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
            if step.class == Class::Urgent {
                // Never shed: it goes before everything else, as soon as there is room.
                self.held_back = Some(step);
            } else {
                self.is_full = true;
                self.shared.counts.skipped.add(1);
                self.plan.on_done(step.object, Outcome::Skipped, now);
            }
            break;
        }
        for news in self.plan.news() {
            match news {
                News::Lost(id) => {
                    self.lost.insert(id, (now, false));
                }
                News::Found(id) => {
                    if self.lost.remove(&id).is_some_and(|(_, is_told)| is_told) {
                        self.shared.tell(KeepingEvent::Found(id));
                    }
                }
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.shared.now();
        match heard {
            Heard::Members => self.on_members(now),
            // It may have been looked at while the host said that it is none of them any more.
            Heard::Looked(node) if !self.shared.members.load().contains_key(&node.id) => {}
            Heard::Looked(node) => {
                if node.presence != Presence::Away {
                    self.answered.insert(node.id, now);
                }
                self.nodes.insert(node.id, node);
                self.tell_nodes(now);
            }
            Heard::Inventory { node, began, ours, theirs } => self.on_inventory(node, began, &ours, &theirs),
            Heard::Round => {
                if !self.has_looked {
                    self.has_looked = true;
                    self.judge_readiness();
                }
            }
            Heard::Claims => self.on_claims(),
            Heard::Asked => self.is_asked = true,
            Heard::Held { node, piece, holding } => {
                self.seen.touch(piece);
                self.plan.on_held(node, piece, holding);
            }
            Heard::Done { object, outcome } => {
                self.is_full = false;
                self.plan.on_done(object, outcome, now);
            }
        }
    }

    fn on_members(&mut self, now: Duration) {
        let members = self.shared.members.load();
        self.nodes.retain(|id, _| members.contains_key(id));
        self.answered.retain(|id, _| members.contains_key(id));
        for (id, member) in members.iter() {
            if let Some(node) = self.nodes.get_mut(id) {
                (node.zone, node.weight) = (member.zone, member.weight);
            }
        }
        // Who was not looked at yet is not given anything, and nothing counts on it.
        if let Some(me) = myself(&self.shared) {
            self.nodes.insert(me.id, me);
        }
        self.tell_nodes(now);
        self.seen.clear();
        for piece in self.mine.keys() {
            self.plan.on_held(self.shared.me, *piece, Holding::Good);
        }
    }

    fn tell_nodes(&mut self, now: Duration) {
        let nodes: Vec<Node> = self.nodes.values().copied().collect();
        self.plan.on_nodes(&nodes, now);
    }

    /// What another node has: everything that is here but what it lacks, and what it has besides.
    fn on_inventory(&mut self, node: NodeId, began: Duration, ours: &[ContentId], theirs: &[ContentId]) {
        self.plan.on_compared(&node);
        let lacks: BTreeSet<ContentId> = ours.iter().copied().collect();
        let has: BTreeSet<ContentId> = theirs.iter().copied().collect();
        let all = || self.mine.keys().chain(self.plan.held_by(&node)).chain(&has).copied().collect();
        let news: BTreeSet<ContentId> = self.seen.compare(node, &lacks, &has).unwrap_or_else(all);
        let now = self.shared.store.book().unix_now();
        for piece in news {
            let holding = match self.mine.get(&piece) {
                _ if has.contains(&piece) => Holding::Good,
                Some(_) if lacks.contains(&piece) => Holding::Absent,
                Some(since) if *since < began => Holding::Good,
                // What came here since was not compared: what is known of it stays, until the next time.
                Some(_) => {
                    self.seen.touch(piece);
                    continue;
                }
                None => Holding::Absent,
            };
            self.plan.on_held(node, piece, holding);
            // Somebody still has it: its delete is remembered for longer.
            if holding == Holding::Good && self.shared.store.standing(&piece) == Standing::Deleted {
                self.shared.store.book().on_copy(&piece, now);
            }
        }
    }

    /// Takes in what changed about claims.
    fn on_claims(&mut self) {
        let (changed, taken) = self.shared.store.book().take_changed();
        self.taken = taken;
        self.take_in(changed);
    }

    /// Takes in all claims.
    fn on_all_claims(&mut self) {
        let book = self.shared.store.book();
        (_, self.taken) = book.take_changed();
        let all = book.objects(None, usize::MAX);
        self.take_in(all);
    }

    /// Takes in what the claims on some objects say.
    fn take_in(&mut self, objects: Vec<ContentId>) {
        let book = self.shared.store.book();
        for object in objects {
            let claimed = claimed(&self.shared.store, &object);
            let mut left = book.left_of(&object);
            left.retain(|piece| self.mine.contains_key(piece));
            let pieces: BTreeSet<ContentId> =
                claimed.shards.iter().flatten().chain([&object]).chain(&left).copied().collect();
            self.plan.on_claims(object, claimed);
            self.plan.on_left(&object, &left);
            for piece in pieces {
                // Who else has it is not known before something is said about it.
                self.seen.touch(piece);
                if self.mine.contains_key(&piece) {
                    self.plan.on_held(self.shared.me, piece, Holding::Good);
                }
            }
        }
    }

    async fn on_event(&mut self, event: FeedEvent<Event>) {
        let (piece, holding) = match event {
            FeedEvent::Item(Event::Stored { id, .. }) => (id, Holding::Good),
            FeedEvent::Item(Event::Deleted { id }) => (id, Holding::Absent),
            FeedEvent::Item(Event::Quarantined { id }) => (id, Holding::Bad),
            FeedEvent::Item(_) => return,
            FeedEvent::Missed(_) => return self.list_again().await,
        };
        self.on_mine(piece, holding);
        if holding == Holding::Good {
            self.shared.store.book().on_piece(&piece);
            self.plan.on_put(&piece, self.shared.now());
        }
    }

    async fn catch_up(&mut self, events: &mut Subscriber<Event>) {
        while let Some(event) = events.try_recv() {
            self.on_event(event).await;
        }
    }

    fn on_mine(&mut self, piece: ContentId, holding: Holding) {
        match holding {
            Holding::Good => {
                if let Entry::Vacant(vacant) = self.mine.entry(piece) {
                    vacant.insert(self.shared.now());
                    self.seen.touch(piece);
                }
            }
            Holding::Bad | Holding::Absent => {
                if self.mine.remove(&piece).is_some() {
                    self.seen.touch(piece);
                }
            }
        }
        self.plan.on_held(self.shared.me, piece, holding);
    }

    /// Takes in what is here, whatever was heard of it. What happens meanwhile is heard afterwards.
    async fn list_again(&mut self) {
        if let Err(error) = self.list().await {
            tracing::warn!(%error, "what is here could not be listed");
        }
    }

    /// Lists what is here.
    async fn list(&mut self) -> Result<(), StorageError> {
        let mut gone: BTreeSet<ContentId> = self.mine.keys().copied().collect();
        let mut after: Option<Cursor> = None;
        loop {
            let page = self.shared.store.list(after, PAGE, Deadline::after(Duration::from_secs(60))).await?;
            for stat in &page.objects {
                gone.remove(&stat.id);
                let holding = if stat.is_quarantined { Holding::Bad } else { Holding::Good };
                self.on_mine(stat.id, holding);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for piece in gone {
            self.on_mine(piece, Holding::Absent);
        }
        Ok(())
    }

    /// Whether as many nodes answer as have to for a write to be acknowledged.
    fn judge_readiness(&self) {
        let is_up = |node: &&Node| node.presence == Presence::Up && node.is_durable;
        let (up, wanted) = (self.nodes.values().filter(is_up).count(), *self.shared.answering.load());
        match self.has_looked {
            false => {}
            true if up >= wanted || wanted <= 1 => self.gate.open(),
            true => self.gate.close(format!("{wanted} nodes acknowledge a write, and {up} answer")),
        }
    }

    fn sum_up(&mut self, bytes_per_second: u64) {
        let is_draining = self.shared.is_draining();
        let known = self.nodes.get(&self.shared.me).map(|me| me.presence);
        if known.is_some_and(|known| (known == Presence::Draining) != is_draining) {
            // Before this is weighed, everything here would seem to be needed no longer.
            self.on_members(self.shared.now());
        }
        let objects: BTreeMap<Health, usize> =
            Health::ALL.into_iter().map(|health| (health, self.plan.count(health))).collect();
        for (gauge, count) in self.shared.counts.health.iter().zip(objects.values()) {
            gauge.set(*count as f64);
        }
        let fewest_copies = self.plan.fewest_copies();
        if let Some(fewest) = fewest_copies {
            self.shared.counts.rf.set(fewest as f64);
        }
        let (now, patience) = (self.shared.now(), 2 * self.shared.settings.load().tick);
        for (id, (since, is_told)) in self.lost.iter_mut().filter(|(_, (_, is_told))| !is_told) {
            if now.saturating_sub(*since) >= patience {
                *is_told = true;
                self.shared.tell(KeepingEvent::Lost(*id));
            }
        }
        self.shared.counts.pace.set(bytes_per_second as f64);
        self.judge_readiness();
        let is_away = |node: &&Node| node.presence == Presence::Away;
        let away = self.nodes.values().filter(is_away).count();
        let book = self.shared.store.book();
        // A manifest is beside its claim on every node.
        let is_misplaced = |piece: &&ContentId| book.wants(piece) && !book.is_manifest(piece);
        let misplaced = if is_draining { self.mine.keys().filter(is_misplaced).count() } else { 0 };
        let needed =
            if is_draining { self.mine.keys().filter(|piece| self.plan.is_needed(piece)).count() } else { 0 };
        self.shared.nodes.on_leaving(is_draining && needed == 0 && self.has_looked);
        let answers = |id: &&NodeId| self.nodes.get(*id).is_some_and(|node| node.presence != Presence::Away);
        let untold = self.shared.nodes.untold().iter().filter(answers).count();
        let up = self.nodes.len() - away;
        let members = self.shared.members.load();
        for (gauge, count) in self.shared.counts.nodes.iter().zip([up, away]) {
            gauge.set(count as f64);
        }
        self.shared.status.replace(KeepingStatus {
            objects,
            unweighed: self.plan.weighing(),
            up,
            away,
            has_looked: self.has_looked && members.keys().all(|id| self.nodes.contains_key(id)),
            repairs: usize::try_from(self.shared.under_way.load(Ordering::Relaxed)).unwrap_or(usize::MAX),
            claims: book.count(),
            misplaced,
            needed,
            untold,
            fewest_copies,
            bytes_per_second,
            is_draining,
            nodes: self.node_statuses(),
        });
        if self.plan.weighing() == 0 {
            self.shared.counted.store(self.taken, Ordering::Release);
        }
    }

    fn node_statuses(&self) -> Vec<NodeStatus> {
        let (now, me) = (self.shared.now(), self.shared.me);
        let members = self.shared.members.load();
        let of = |(id, member): (&NodeId, &Member)| {
            let node = self.nodes.get(id);
            let seen = if *id == me {
                Some(Duration::ZERO)
            } else {
                self.answered.get(id).map(|at| now.saturating_sub(*at))
            };
            NodeStatus {
                contact: member.peer.contact.clone(),
                zone: member.zone,
                weight: member.weight,
                presence: node.map(|node| node.presence),
                is_durable: node.is_some_and(|node| node.is_durable),
                seen,
                pieces: self.plan.held_count(id),
            }
        };
        members.iter().map(of).collect()
    }

    fn forget(&mut self) {
        let plan = &self.plan;
        self.shared.store.book().forget_past(|piece| self.mine.contains_key(piece));
        // Who was not seen since this node was started may come back with anything.
        if plan.has_unseen() {
            return;
        }
        let book = self.shared.store.book();
        let forgotten = book.forget(book.unix_now(), |object| plan.has_copy(object));
        if forgotten > 0 {
            tracing::debug!(forgotten, "deletes of which no copy is left were forgotten");
        }
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
