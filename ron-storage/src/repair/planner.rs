//! The task that owns the plan.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, Event as FeedEvent, Inbox, Lane, NodeId, ReadyGate, Stop, Subscriber, now,
};

use super::{
    Class, Health, Heard, KeepingEvent, KeepingStatus, Shared, YIELD_EVERY, claimed, looking::myself,
    plan_settings, yielding,
};
use crate::{
    Cursor, Event, StorageError,
    claims::{Standing, unix_now},
    logic::{
        plan::{Holding, News, Node, Outcome, Plan, Presence, Step},
        yielding::Yielding,
    },
};

/// Objects that one page of a list has.
const PAGE: usize = 1000;

/// How often what is known is summed up, and what is over is forgotten.
const SUM_EVERY: Duration = Duration::from_secs(1);

/// How often deletes are looked at that may be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

pub(super) struct Planner {
    shared: Arc<Shared>,
    repairs: Lane<Step>,
    gate: Arc<ReadyGate>,
    plan: Plan,
    nodes: BTreeMap<NodeId, Node>,
    /// What is here, and since when: what came after another node was asked is not what it was compared with.
    mine: BTreeMap<ContentId, Duration>,
    /// An urgent step that found no room.
    held_back: Option<Step>,
    has_looked: bool,
}

impl Planner {
    pub(super) fn new(shared: Arc<Shared>, repairs: Lane<Step>, gate: Arc<ReadyGate>) -> Self {
        let plan = Plan::new(shared.me, plan_settings(&shared.settings));
        Planner {
            shared,
            repairs,
            gate,
            plan,
            nodes: BTreeMap::new(),
            mine: BTreeMap::new(),
            held_back: None,
            has_looked: false,
        }
    }

    pub(super) async fn run(mut self, inbox: Inbox<Heard>, stop: Stop) {
        let mut events = self.shared.store.events();
        if let Err(error) = self.list().await {
            tracing::warn!(%error, "what is here could not be listed");
        }
        self.on_claims(None);
        let mut rate = yielding(&self.shared.settings);
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
                        self.hear(heard);
                        // What is there already, before anything is planned on half of it.
                        while let Some(heard) = inbox.try_recv() {
                            self.hear(heard);
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
                        let of = |bytes| NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN);
                        self.shared.pacer.set_rate(of(after), of(after / 8));
                    }
                }
                () = tokio::time::sleep_until(sum_at) => {
                    sum_at = now() + SUM_EVERY;
                    self.sum_up();
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
        loop {
            let step = match self.held_back.take() {
                Some(step) => step,
                None => match self.plan.poll(now) {
                    Some(step) => step,
                    None => break,
                },
            };
            self.shared.under_way.fetch_add(1, Ordering::Relaxed);
            let Err((_, step)) = self.repairs.try_push_or_return(step) else { continue };
            self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
            if step.class == Class::Urgent {
                // Never shed: it goes before everything else, as soon as there is room.
                self.held_back = Some(step);
            } else {
                self.shared.counts.skipped.add(1);
                self.plan.on_done(step.object, Outcome::Skipped, now);
            }
            break;
        }
        for news in self.plan.news() {
            self.shared.events.publish(match news {
                News::Lost(id) => KeepingEvent::Lost(id),
                News::Found(id) => KeepingEvent::Found(id),
            });
        }
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.shared.now();
        match heard {
            Heard::Members => self.on_members(now),
            Heard::Looked(node) => {
                self.nodes.insert(node.id, node);
                self.tell_nodes(now);
            }
            Heard::Inventory { node, began, ours, theirs } => self.on_inventory(node, began, &ours, &theirs),
            Heard::Round => {
                if !self.has_looked {
                    self.has_looked = true;
                    self.gate.open();
                }
            }
            Heard::Claims => self.on_claims(Some(())),
            Heard::Held { node, piece, holding } => self.plan.on_held(node, piece, holding),
            Heard::Done { object, outcome } => self.plan.on_done(object, outcome, now),
        }
    }

    fn on_members(&mut self, now: Duration) {
        let members = self.shared.members.load();
        self.nodes.retain(|id, _| members.contains_key(id));
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
        let lacks: std::collections::BTreeSet<&ContentId> = ours.iter().collect();
        let mut before: std::collections::BTreeSet<ContentId> = self.plan.held_by(&node).copied().collect();
        let now = unix_now();
        for (piece, since) in &self.mine {
            if lacks.contains(piece) {
                continue;
            }
            // What came here since was not compared; what is known of it stays.
            if *since < began {
                self.plan.on_held(node, *piece, Holding::Good);
            }
            before.remove(piece);
        }
        for piece in theirs {
            self.plan.on_held(node, *piece, Holding::Good);
            before.remove(piece);
            // Somebody still has it: its delete is remembered for longer.
            if self.shared.store.standing(piece) == Standing::Deleted {
                self.shared.store.book().on_copy(piece, now);
            }
        }
        for piece in before {
            self.plan.on_held(node, piece, Holding::Absent);
        }
    }

    /// Takes in what changed about claims, or everything.
    fn on_claims(&mut self, changed: Option<()>) {
        let book = self.shared.store.book();
        let objects = match changed {
            Some(()) => book.take_changed(),
            None => {
                book.take_changed();
                book.objects(None, usize::MAX)
            }
        };
        for object in objects {
            self.plan.on_claims(object, claimed(&self.shared.store, &object));
        }
    }

    async fn on_event(&mut self, event: FeedEvent<Event>) {
        let (piece, holding) = match event {
            FeedEvent::Item(Event::Stored { id, .. }) => (id, Holding::Good),
            FeedEvent::Item(Event::Deleted { id }) => (id, Holding::Absent),
            FeedEvent::Item(Event::Quarantined { id }) => (id, Holding::Bad),
            FeedEvent::Item(_) => return,
            FeedEvent::Missed(_) => {
                if let Err(error) = self.list().await {
                    tracing::warn!(%error, "what is here could not be listed");
                }
                return;
            }
        };
        self.on_mine(piece, holding);
    }

    async fn catch_up(&mut self, events: &mut Subscriber<Event>) {
        while let Some(event) = events.try_recv() {
            self.on_event(event).await;
        }
    }

    fn on_mine(&mut self, piece: ContentId, holding: Holding) {
        match holding {
            Holding::Good => {
                self.mine.entry(piece).or_insert(self.shared.now());
            }
            Holding::Bad | Holding::Absent => {
                self.mine.remove(&piece);
            }
        }
        self.plan.on_held(self.shared.me, piece, holding);
    }

    /// Lists what is here.
    async fn list(&mut self) -> Result<(), StorageError> {
        let mut gone: std::collections::BTreeSet<ContentId> = self.mine.keys().copied().collect();
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

    fn sum_up(&mut self) {
        // Callers who found the lane full left no word.
        self.on_claims(Some(()));
        let objects: BTreeMap<Health, usize> =
            Health::ALL.into_iter().map(|health| (health, self.plan.count(health))).collect();
        for (gauge, count) in self.shared.counts.health.iter().zip(objects.values()) {
            gauge.set(*count as f64);
        }
        if let Some(fewest) = self.plan.fewest_copies() {
            self.shared.counts.rf.set(fewest as f64);
        }
        let is_away = |node: &&Node| node.presence == Presence::Away;
        let away = self.nodes.values().filter(is_away).count();
        let book = self.shared.store.book();
        let misplaced = if self.shared.is_draining.load(Ordering::Acquire) {
            self.mine.keys().filter(|piece| book.wants(piece)).count()
        } else {
            0
        };
        self.shared.status.replace(KeepingStatus {
            objects,
            up: self.nodes.len() - away,
            away,
            has_looked: self.has_looked,
            repairs: usize::try_from(self.shared.under_way.load(Ordering::Relaxed)).unwrap_or(usize::MAX),
            claims: book.count(),
            misplaced,
        });
    }

    fn forget(&mut self) {
        let plan = &self.plan;
        let forgotten = self.shared.store.book().forget(unix_now(), |object| plan.has_copy(object));
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
