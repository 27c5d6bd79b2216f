//! Who is a neighbour and who is spare: a partial view of one topic, after HyParView.
//!
//! A neighbour is a link that both ends hold and that gossip runs over. There are few, and they are chosen by random
//! walks, so the graph stays connected when a third of it dies at once. Spares are known and not connected; they
//! replace neighbours that go. Nobody can make us hold more than the settings say, and strangers who push in displace at
//! most one neighbour in a while: otherwise whoever joins in a loop would end up with all our links.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use ron_core::NodeId;

pub use ron_core::net::Contact;

/// Contacts in one message.
pub const CONTACTS_MAX: usize = 8;

/// Addresses of one contact.
pub const ADDRS_MAX: usize = 8;

/// The longest walk that is passed on, whatever its sender says.
pub const WALK_MAX: u8 = 8;

/// Questions to spares that wait for an answer at once.
const ASKING_MAX: usize = 3;

/// The knobs of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewSettings {
    /// Neighbours that are looked for. Default 5.
    pub neighbours: usize,
    /// Neighbours that are held at most: those who ask are taken up to here. Default 8.
    pub neighbours_max: usize,
    /// Spares that are remembered. Default 32.
    pub spares: usize,
    /// Steps of a newcomer's walk to its neighbours. Default 6.
    pub walk: u8,
    /// Steps before the end of it at which it is remembered as a spare. Default 3.
    pub walk_spare: u8,
    /// How often a sample of the view is exchanged with somebody at the end of a walk. Default 20 s.
    pub shuffle_every: Duration,
    /// How long somebody may take to say whether it becomes a neighbour. Default 2 s.
    pub ask_timeout: Duration,
    /// A stranger displaces a neighbour at most this often. Default 1 s.
    pub displace_every: Duration,
}

impl Default for ViewSettings {
    fn default() -> Self {
        ViewSettings {
            neighbours: 5,
            neighbours_max: 8,
            spares: 32,
            walk: 6,
            walk_spare: 3,
            shuffle_every: Duration::from_secs(20),
            ask_timeout: Duration::from_secs(2),
            displace_every: Duration::from_secs(1),
        }
    }
}

/// What views tell each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewMessage {
    /// I am new here; spread the word.
    Join {
        /// The sender.
        me: Contact,
    },
    /// Somebody is new.
    Walk {
        /// Who.
        who: Contact,
        /// Steps left.
        steps: u8,
    },
    /// Shall we be neighbours?
    Ask {
        /// The sender.
        me: Contact,
        /// It has no other neighbour.
        is_urgent: bool,
    },
    /// The answer to `Ask` and `Join`.
    Answer {
        /// Whether we are neighbours now.
        is_accepted: bool,
    },
    /// We are no longer neighbours.
    Part {
        /// The sender leaves the topic, and is no spare either.
        is_leaving: bool,
        /// Neighbours of a leaver, for those who lose one by it.
        instead: Vec<Contact>,
    },
    /// A sample of a view on its walk.
    Shuffle {
        /// Whose view it is.
        origin: Contact,
        /// Steps left.
        steps: u8,
        /// The sample.
        sample: Vec<Contact>,
    },
    /// A sample in return.
    Shuffled {
        /// The sample.
        sample: Vec<Contact>,
    },
}

/// What a view wants to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewOutput {
    /// Send this.
    Send {
        /// To whom.
        to: Contact,
        /// What.
        message: ViewMessage,
    },
    /// There is a new neighbour.
    Up(NodeId),
    /// A neighbour is none any more.
    Down(NodeId),
}

/// The view of one node on one topic.
#[derive(Debug)]
pub struct View {
    me: Contact,
    settings: ViewSettings,
    rng: fastrand::Rng,
    neighbours: BTreeMap<NodeId, Contact>,
    spares: BTreeMap<NodeId, Contact>,
    asking: BTreeMap<NodeId, Asking>,
    /// Spares that have said no, and when they may be asked again.
    refused: BTreeMap<NodeId, Refused>,
    /// Those the host named. They are asked again when there is nobody else.
    named: Vec<Contact>,
    /// Peers that behaved badly. They are no neighbours until then.
    banned: BTreeMap<NodeId, Duration>,
    displaced_at: Option<Duration>,
    shuffle_at: Duration,
    retry_at: Option<Duration>,
    outputs: VecDeque<ViewOutput>,
    is_gone: bool,
}

#[derive(Debug)]
struct Asking {
    contact: Contact,
    until: Duration,
}

/// A spare that has said no.
#[derive(Debug, Default)]
struct Refused {
    times: u32,
    /// It is not asked before this; it may be now if there is none.
    until: Option<Duration>,
}

/// Who said no is asked again after the first of these, and each time after twice as long up to the second: who has no
/// room has none a round trip later either.
const REFUSED_FIRST: Duration = Duration::from_millis(250);
const REFUSED_LAST: Duration = Duration::from_secs(16);

/// Peers that are remembered as banned. More than that many at once, and the one whose ban ends first is free again.
const BANNED_MAX: usize = 256;

/// With nobody to ask, the named ones are asked again after this.
const RETRY_NAMED: Duration = Duration::from_secs(2);

impl View {
    /// A view that knows nobody.
    #[must_use]
    pub fn new(me: Contact, settings: ViewSettings, mut rng: fastrand::Rng) -> Self {
        let shuffle_at = settings.shuffle_every.mul_f64(rng.f64());
        View {
            me,
            settings,
            rng,
            neighbours: BTreeMap::new(),
            spares: BTreeMap::new(),
            asking: BTreeMap::new(),
            refused: BTreeMap::new(),
            named: Vec::new(),
            banned: BTreeMap::new(),
            displaced_at: None,
            shuffle_at,
            retry_at: None,
            outputs: VecDeque::new(),
            is_gone: false,
        }
    }

    /// Where others are told from now on that this node is. Neighbours have a session with it, and need not be told.
    pub fn set_addrs(&mut self, me: &Contact) {
        self.me.addrs.clone_from(&me.addrs);
    }

    /// Enters the topic through these, whom the host knows.
    pub fn join(&mut self, contacts: impl IntoIterator<Item = Contact>, now: Duration) {
        self.is_gone = false;
        for contact in contacts {
            if contact.id == self.me.id || self.neighbours.contains_key(&contact.id) {
                continue;
            }
            if !self.named.iter().any(|named| named.id == contact.id)
                && self.named.len() < self.settings.spares
            {
                self.named.push(contact.clone());
            }
            self.ask(contact, true, now);
        }
    }

    /// Leaves. Neighbours are told each other, so that the hole closes at once.
    pub fn leave(&mut self) {
        self.is_gone = true;
        let all: Vec<Contact> = self.neighbours.values().cloned().collect();
        for (place, to) in all.iter().enumerate() {
            // Each is told its successors: around the ring of a leaver's neighbours the graph stays connected.
            let others = all.iter().cycle().skip(place + 1).take(all.len() - 1);
            let instead = others.take(CONTACTS_MAX).cloned().collect();
            let message = ViewMessage::Part { is_leaving: true, instead };
            self.send(to.clone(), message);
            self.outputs.push_back(ViewOutput::Down(to.id));
        }
        self.neighbours.clear();
        self.asking.clear();
        self.refused.clear();
        self.spares.clear();
    }

    /// A message came from `from`, whom the link has proven.
    pub fn on_message(&mut self, from: NodeId, message: ViewMessage, now: Duration) {
        if self.is_gone || from == self.me.id {
            return;
        }
        match message {
            ViewMessage::Join { me } => {
                if me.id != from || !self.admit(me.clone(), true, now) {
                    return;
                }
                let others: Vec<Contact> = self.others(from).cloned().collect();
                for to in others {
                    let steps = self.settings.walk;
                    self.send(to, ViewMessage::Walk { who: me.clone(), steps });
                }
            }
            ViewMessage::Walk { who, steps } => self.on_walk(from, who, steps.min(WALK_MAX), now),
            ViewMessage::Ask { me, is_urgent } => {
                if me.id == from {
                    self.admit(me, is_urgent, now);
                }
            }
            ViewMessage::Answer { is_accepted } => {
                let Some(Asking { contact, .. }) = self.asking.remove(&from) else { return };
                if is_accepted && self.make_room(now, true) {
                    self.raise(contact);
                } else if is_accepted {
                    self.send(contact.clone(), ViewMessage::Part { is_leaving: false, instead: Vec::new() });
                    self.remember(contact, now);
                } else {
                    self.note_refused(from, now);
                    self.remember(contact, now);
                    self.fill(now);
                }
            }
            ViewMessage::Part { is_leaving, instead } => {
                let Some(contact) = self.lower(from) else { return };
                if !is_leaving {
                    self.remember(contact, now);
                }
                for contact in instead.into_iter().take(CONTACTS_MAX) {
                    self.remember(contact, now);
                }
                self.fill(now);
            }
            ViewMessage::Shuffle { origin, steps, sample } => {
                let steps = steps.min(WALK_MAX);
                let next = (steps > 0).then(|| self.pick_neighbour(&[from, origin.id])).flatten();
                if let Some(to) = next {
                    self.send(to, ViewMessage::Shuffle { origin, steps: steps - 1, sample });
                    return;
                }
                if origin.id == self.me.id {
                    return;
                }
                let reply = self.sample(sample.len());
                self.send(origin.clone(), ViewMessage::Shuffled { sample: reply });
                self.remember(origin, now);
                sample.into_iter().take(CONTACTS_MAX).for_each(|contact| self.remember(contact, now));
            }
            ViewMessage::Shuffled { sample } => {
                sample.into_iter().take(CONTACTS_MAX).for_each(|contact| self.remember(contact, now));
            }
        }
    }

    /// A peer cannot be reached, or its link has ended.
    pub fn on_unreachable(&mut self, peer: NodeId, now: Duration) {
        self.asking.remove(&peer);
        self.spares.remove(&peer);
        self.lower(peer);
        if !self.is_gone {
            self.fill(now);
        }
    }

    /// A peer behaves badly: it is no neighbour until `until`.
    pub fn ban(&mut self, peer: NodeId, until: Duration, now: Duration) {
        self.banned.insert(peer, until);
        if self.banned.len() > BANNED_MAX {
            let first = self.banned.iter().min_by_key(|(_, until)| **until).map(|(id, _)| *id);
            first.and_then(|id| self.banned.remove(&id));
        }
        if let Some(contact) = self.neighbours.get(&peer).cloned() {
            self.send(contact, ViewMessage::Part { is_leaving: false, instead: Vec::new() });
        }
        self.on_unreachable(peer, now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Duration) {
        if self.is_gone {
            return;
        }
        let late: Vec<NodeId> =
            self.asking.iter().filter(|(_, asking)| asking.until <= now).map(|(id, _)| *id).collect();
        for id in &late {
            self.asking.remove(id);
            self.spares.remove(id);
        }
        self.banned.retain(|_, until| *until > now);
        let due = self.refused.values_mut().filter(|refused| refused.until.is_some_and(|until| until <= now));
        let is_due = due.map(|refused| refused.until = None).count() > 0;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            // Alone: the named ones may be back.
            if self.neighbours.is_empty() && self.asking.is_empty() {
                let named = self.named.clone();
                named.into_iter().take(ASKING_MAX).for_each(|contact| self.ask(contact, true, now));
            }
        }
        if !late.is_empty() || is_due {
            self.fill(now);
        }
        if self.shuffle_at <= now {
            self.shuffle_at = now + self.settings.shuffle_every.mul_f64(0.75 + self.rng.f64() / 2.0);
            self.fill(now);
            if let Some(to) = self.pick_neighbour(&[]) {
                let sample = self.sample(CONTACTS_MAX - 1);
                let (origin, steps) = (self.me.clone(), self.settings.walk);
                self.send(to, ViewMessage::Shuffle { origin, steps, sample });
            }
        }
    }

    /// When the view next cares about the time.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let asking = self.asking.values().map(|asking| asking.until);
        let refused = self.refused.values().filter_map(|refused| refused.until);
        asking.chain(refused).chain(self.retry_at).chain([self.shuffle_at]).min().unwrap_or(self.shuffle_at)
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ViewOutput> {
        self.outputs.pop_front()
    }

    /// The neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = &Contact> {
        self.neighbours.values()
    }

    /// Whether this is one.
    #[must_use]
    pub fn is_neighbour(&self, peer: &NodeId) -> bool {
        self.neighbours.contains_key(peer)
    }

    /// Whether it was asked to become one and has not answered.
    #[must_use]
    pub fn is_asking(&self, peer: &NodeId) -> bool {
        self.asking.contains_key(peer)
    }

    /// The spares.
    pub fn spares(&self) -> impl Iterator<Item = &Contact> {
        self.spares.values()
    }

    /// Where a peer is, if the view knows it.
    #[must_use]
    pub fn contact(&self, peer: &NodeId) -> Option<&Contact> {
        let asking = self.asking.get(peer).map(|asking| &asking.contact);
        self.neighbours.get(peer).or_else(|| self.spares.get(peer)).or(asking)
    }

    fn on_walk(&mut self, from: NodeId, who: Contact, steps: u8, now: Duration) {
        if who.id == self.me.id {
            return;
        }
        let is_end = steps == 0 || self.neighbours.len() <= 1;
        let next = if is_end { None } else { self.pick_neighbour(&[from, who.id]) };
        match next {
            Some(to) => {
                if steps == self.settings.walk_spare {
                    self.remember(who.clone(), now);
                }
                self.send(to, ViewMessage::Walk { who, steps: steps - 1 });
            }
            // Whom a walk names may be made up: few are asked at once, and the others remembered.
            None if self.neighbours.len() < self.settings.neighbours_max
                && self.asking.len() < ASKING_MAX =>
            {
                self.ask(who, false, now);
            }
            None => self.remember(who, now),
        }
    }

    /// Takes a neighbour in if there is room, or room must be made. Tells it.
    fn admit(&mut self, who: Contact, is_urgent: bool, now: Duration) -> bool {
        if self.is_banned(&who.id, now) {
            self.send(who, ViewMessage::Answer { is_accepted: false });
            return false;
        }
        let is_known = self.neighbours.contains_key(&who.id);
        let is_accepted = is_known || self.make_room(now, is_urgent);
        self.send(who.clone(), ViewMessage::Answer { is_accepted });
        if is_accepted {
            self.raise(who);
        } else {
            self.remember(who, now);
        }
        is_accepted
    }

    /// Whether there is room for one more neighbour, if need be by parting with one.
    fn make_room(&mut self, now: Duration, is_urgent: bool) -> bool {
        if self.neighbours.len() < self.settings.neighbours_max {
            return true;
        }
        let is_early = self.displaced_at.is_some_and(|at| now < at + self.settings.displace_every);
        if !is_urgent || is_early {
            return false;
        }
        self.displaced_at = Some(now);
        if let Some(gone) = self.pick_neighbour(&[]) {
            self.send(gone.clone(), ViewMessage::Part { is_leaving: false, instead: Vec::new() });
            self.lower(gone.id);
            self.remember(gone, now);
        }
        true
    }

    /// Looks for neighbours among the spares until there are enough, or among those the host named.
    fn fill(&mut self, now: Duration) {
        loop {
            let wanted = self.settings.neighbours.saturating_sub(self.neighbours.len() + self.asking.len());
            if wanted == 0 || self.asking.len() >= ASKING_MAX {
                return;
            }
            let is_free = |id: &NodeId| {
                let is_refused = self.refused.get(id).is_some_and(|refused| refused.until.is_some());
                !is_refused && !self.asking.contains_key(id)
            };
            let free: Vec<Contact> =
                self.spares.values().filter(|spare| is_free(&spare.id)).cloned().collect();
            let pick = if free.is_empty() { None } else { Some(free[self.rng.usize(..free.len())].clone()) };
            let Some(contact) = pick else {
                if self.neighbours.is_empty() && self.asking.is_empty() && !self.named.is_empty() {
                    self.retry_at.get_or_insert(now + RETRY_NAMED);
                }
                return;
            };
            // One that has nobody must not be sent away.
            let is_urgent = self.neighbours.is_empty();
            self.spares.remove(&contact.id);
            self.ask(contact, is_urgent, now);
        }
    }

    fn ask(&mut self, contact: Contact, is_urgent: bool, now: Duration) {
        let is_taken = self.neighbours.contains_key(&contact.id) || self.asking.contains_key(&contact.id);
        if is_taken || self.is_banned(&contact.id, now) || contact.id == self.me.id {
            return;
        }
        let is_named = self.named.iter().any(|named| named.id == contact.id);
        // A newcomer wants the word spread; who only lost a neighbour does not.
        let me = self.me.clone();
        let message = if is_named && self.neighbours.is_empty() {
            ViewMessage::Join { me }
        } else {
            ViewMessage::Ask { me, is_urgent }
        };
        let until = now + self.settings.ask_timeout;
        self.asking.insert(contact.id, Asking { contact: contact.clone(), until });
        self.send(contact, message);
    }

    fn raise(&mut self, contact: Contact) {
        self.asking.remove(&contact.id);
        self.spares.remove(&contact.id);
        self.refused.remove(&contact.id);
        let id = contact.id;
        if self.neighbours.insert(id, contact).is_none() {
            self.outputs.push_back(ViewOutput::Up(id));
        }
    }

    fn lower(&mut self, peer: NodeId) -> Option<Contact> {
        let contact = self.neighbours.remove(&peer)?;
        self.outputs.push_back(ViewOutput::Down(peer));
        Some(contact)
    }

    fn remember(&mut self, contact: Contact, now: Duration) {
        let is_us = contact.id == self.me.id || self.neighbours.contains_key(&contact.id);
        // One that cannot be dialled is no spare; in a simulation nobody has addresses, and we have none either.
        let is_lost = contact.addrs.is_empty() && !self.me.addrs.is_empty();
        if is_us || is_lost || self.is_banned(&contact.id, now) || self.is_gone {
            return;
        }
        self.spares.insert(contact.id, contact);
        while self.spares.len() > self.settings.spares {
            let gone = self.rng.usize(..self.spares.len());
            let gone = self.spares.keys().nth(gone).copied();
            gone.and_then(|id| self.spares.remove(&id));
        }
        if self.neighbours.len() + self.asking.len() < self.settings.neighbours {
            self.fill(now);
        }
    }

    /// A peer that was asked said no.
    fn note_refused(&mut self, peer: NodeId, now: Duration) {
        let refused = self.refused.entry(peer).or_default();
        let pause = REFUSED_FIRST * 2_u32.pow(refused.times.min(6));
        *refused = Refused { times: refused.times + 1, until: Some(now + pause.min(REFUSED_LAST)) };
        // Of those that are spares no more, nothing is remembered either.
        let (spares, most) = (&self.spares, self.settings.spares + ASKING_MAX);
        if self.refused.len() > most {
            self.refused.retain(|known, _| *known == peer || spares.contains_key(known));
        }
    }

    fn is_banned(&self, peer: &NodeId, now: Duration) -> bool {
        self.banned.get(peer).is_some_and(|until| *until > now)
    }

    /// Some neighbours and some spares.
    fn sample(&mut self, most: usize) -> Vec<Contact> {
        let mut known: Vec<Contact> = self.neighbours.values().chain(self.spares.values()).cloned().collect();
        self.rng.shuffle(&mut known);
        known.truncate(most.min(CONTACTS_MAX));
        known
    }

    fn others(&self, except: NodeId) -> impl Iterator<Item = &Contact> {
        self.neighbours.values().filter(move |contact| contact.id != except)
    }

    fn pick_neighbour(&mut self, except: &[NodeId]) -> Option<Contact> {
        let except: BTreeSet<&NodeId> = except.iter().collect();
        let free: Vec<&Contact> =
            self.neighbours.values().filter(|contact| !except.contains(&contact.id)).collect();
        if free.is_empty() { None } else { Some(free[self.rng.usize(..free.len())].clone()) }
    }

    fn send(&mut self, to: Contact, message: ViewMessage) {
        self.outputs.push_back(ViewOutput::Send { to, message });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contact(number: u8) -> Contact {
        Contact { id: NodeId::from_bytes([number; 32]), addrs: [].into() }
    }

    fn view(settings: ViewSettings) -> View {
        View::new(contact(0), settings, fastrand::Rng::with_seed(7))
    }

    fn outputs(view: &mut View) -> Vec<ViewOutput> {
        std::iter::from_fn(|| view.poll()).collect()
    }

    #[test]
    fn strangers_displace_one_neighbour_in_a_while() {
        let mut view = view(ViewSettings { neighbours: 2, neighbours_max: 3, ..ViewSettings::default() });
        for number in 1..50 {
            view.on_message(
                contact(number).id,
                ViewMessage::Join { me: contact(number) },
                Duration::from_millis(10),
            );
        }
        let parted =
            outputs(&mut view).into_iter().filter(|output| matches!(output, ViewOutput::Down(_))).count();
        assert_eq!((view.neighbours().count(), parted), (3, 1));
    }

    #[test]
    fn nobody_speaks_for_another() {
        let mut view = view(ViewSettings::default());
        view.on_message(contact(1).id, ViewMessage::Join { me: contact(2) }, Duration::ZERO);
        view.on_message(contact(1).id, ViewMessage::Ask { me: contact(2), is_urgent: true }, Duration::ZERO);
        view.on_message(contact(1).id, ViewMessage::Answer { is_accepted: true }, Duration::ZERO);
        assert_eq!(view.neighbours().count(), 0);
        assert_eq!(outputs(&mut view), []);
    }

    #[test]
    fn a_leaver_tells_its_neighbours_of_each_other() {
        let mut view = view(ViewSettings::default());
        for number in 1..4 {
            view.on_message(contact(number).id, ViewMessage::Join { me: contact(number) }, Duration::ZERO);
        }
        outputs(&mut view);
        view.leave();
        let told: Vec<usize> = outputs(&mut view)
            .into_iter()
            .filter_map(|output| match output {
                ViewOutput::Send { message: ViewMessage::Part { is_leaving: true, instead }, .. } => {
                    Some(instead.len())
                }
                _ => None,
            })
            .collect();
        assert_eq!(told, [2, 2, 2]);
        assert_eq!(view.neighbours().count(), 0);
    }

    #[test]
    fn who_is_alone_asks_the_named_ones_again() {
        let mut view = view(ViewSettings::default());
        view.join([contact(1)], Duration::ZERO);
        outputs(&mut view);
        view.on_unreachable(contact(1).id, Duration::from_secs(1));
        assert_eq!(outputs(&mut view), []);
        let at = view.wake_at().min(Duration::from_secs(3));
        assert_eq!(at, Duration::from_secs(3));
        view.on_tick(at);
        let asks = outputs(&mut view);
        assert!(matches!(asks[..], [ViewOutput::Send { message: ViewMessage::Join { .. }, .. }]), "{asks:?}");
    }

    #[test]
    fn walks_of_nodes_that_are_made_up_are_not_followed_without_end() {
        let mut view = view(ViewSettings::default());
        for number in 2..200 {
            let walk = ViewMessage::Walk { who: contact(number), steps: 0 };
            view.on_message(contact(1).id, walk, Duration::ZERO);
        }
        assert_eq!(view.asking.len(), ASKING_MAX);
    }

    /// Who is full says no a round trip after it was asked, and would be asked again at once, for ever.
    #[test]
    fn who_said_no_is_not_asked_again_at_once() {
        let mut view = View::new(contact(0), ViewSettings::default(), fastrand::Rng::with_seed(1));
        view.join([contact(1)], Duration::ZERO);
        let (mut asked, mut now) = (Vec::new(), Duration::ZERO);
        while now < Duration::from_secs(60) {
            while let Some(output) = view.poll() {
                let ViewOutput::Send { message: ViewMessage::Join { .. } | ViewMessage::Ask { .. }, .. } =
                    output
                else {
                    continue;
                };
                asked.push(now.as_millis());
                view.on_message(contact(1).id, ViewMessage::Answer { is_accepted: false }, now);
            }
            now = view.wake_at().max(now + Duration::from_millis(1));
            view.on_tick(now);
        }
        assert_eq!(asked[..4], [0, 250, 750, 1750]);
        assert!(asked.len() < 50, "{asked:?}");
        view.on_message(contact(1).id, ViewMessage::Ask { me: contact(1), is_urgent: false }, now);
        assert!(view.is_neighbour(&contact(1).id) && view.refused.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_comes_the_view_is_bounded(steps: Vec<(u8, u8, u8, bool, u16)>) {
            let settings = ViewSettings { neighbours: 3, neighbours_max: 5, spares: 6, ..ViewSettings::default() };
            let mut view = view(settings);
            let mut now = Duration::ZERO;
            for (from, kind, other, flag, pause) in steps {
                now += Duration::from_millis(u64::from(pause));
                let sample = vec![contact(other), contact(other.wrapping_add(1))];
                let message = match kind % 7 {
                    0 => ViewMessage::Join { me: contact(from) },
                    1 => ViewMessage::Walk { who: contact(other), steps: other },
                    2 => ViewMessage::Ask { me: contact(from), is_urgent: flag },
                    3 => ViewMessage::Answer { is_accepted: flag },
                    4 => ViewMessage::Part { is_leaving: flag, instead: sample },
                    5 => ViewMessage::Shuffle { origin: contact(other), steps: other, sample },
                    _ => ViewMessage::Shuffled { sample },
                };
                view.on_message(contact(from).id, message, now);
                if flag {
                    view.on_tick(now);
                }
                prop_assert!(view.neighbours.len() <= 5 && view.spares.len() <= 6);
                prop_assert!(view.asking.len() <= 6);
                prop_assert!(!view.neighbours.contains_key(&contact(0).id));
                outputs(&mut view);
            }
        }
    }
}
