//! What goes wrong, when, to whom, and for how long: all of it drawn from the seed.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, ErrorKind, Ratio, Supervisor,
    disk::Disk as _,
    now,
    sim::{CrashStyle, Latency, Line, Sim, SimDisk},
};
use ron_storage::StorageError;
use tokio::time::Instant;

use crate::{
    hostile::{self, Lies},
    node::{OWNER, RESERVE, ip},
    options::{CLIENTS, Fault, Options},
    users::{Checkers, USER},
    verdict::ALL_FAULTS,
    watch::{self, Calm, Place},
};

/// Callers of a crowd: ten times those that there usually are.
pub(crate) const USERS: usize = 8;
const CROWD: usize = 10 * USERS;

/// Puts that are under way when a node is asked to stop.
const UNDER_WAY: usize = 12;

/// Faults that make nobody else wait.
const HARMLESS: &[Fault] = &[Fault::Clock, Fault::FullDisk, Fault::Rot];

/// How a fault ends.
enum End {
    Mend(Vec<(IpAddr, IpAddr)>),
    Restart(u8),
    /// The disk is as fast as others make it that are not over.
    Slow(u8, Duration),
    /// The disk has as much room as others leave it that are not over.
    Full(u8, u64),
    Scrub(u8),
    Clock(u8, i64),
    Lines(Vec<(IpAddr, IpAddr)>),
    Honest,
}

impl End {
    /// Where something is wrong until then.
    fn place(&self) -> Option<Place> {
        match self {
            End::Mend(_) | End::Lines(_) => Some(Place::Lines),
            End::Restart(number)
            | End::Slow(number, _)
            | End::Full(number, _)
            | End::Scrub(number)
            | End::Clock(number, _) => Some(Place::Node(*number)),
            End::Honest => None,
        }
    }
}

struct Episode {
    fault: Fault,
    /// The fault and whom it befell, as it is told.
    told: String,
    ends: Instant,
    end: End,
}

/// How it went with those who had asked a node for something when it was stopped.
#[derive(Default)]
struct UnderWay {
    done: usize,
    errors: Vec<StorageError>,
}

/// What is wrong now.
pub(crate) struct Troubles {
    nodes: u8,
    faults: BTreeSet<Fault>,
    episodes: Vec<Episode>,
    /// All that is drawn about faults. It is nobody else's, so that what else happens does not change which faults come when.
    rng: fastrand::Rng,
    /// Those that have not happened yet come first from then on, if the run is long enough to promise all of them.
    overdue: Option<Instant>,
    happened: BTreeSet<Fault>,
    calm: Calm,
    checkers: Checkers,
    lies: Lies,
    users: Supervisor,
}

impl Troubles {
    pub(crate) fn new(
        options: &Options,
        rng: fastrand::Rng,
        checkers: &Checkers,
        lies: &Lies,
        users: &Supervisor,
    ) -> Self {
        // A run that is cut short to find what broke in it has the faults of the whole run, as far as it goes.
        let trouble = options.all_trouble();
        Troubles {
            nodes: options.nodes,
            faults: options.faults.clone(),
            episodes: Vec::new(),
            rng,
            overdue: (trouble >= ALL_FAULTS).then(|| now() + trouble / 2),
            happened: BTreeSet::new(),
            calm: Calm::default(),
            checkers: checkers.clone(),
            lies: lies.clone(),
            users: users.clone(),
        }
    }

    fn is_on(&self, faults: &[Fault]) -> bool {
        self.episodes.iter().any(|episode| faults.contains(&episode.fault))
    }

    /// Whether everybody can talk to everybody who is up.
    pub(crate) fn can_talk(&self) -> bool {
        !self.is_on(&[Fault::Partition, Fault::OneWay])
    }

    /// Where nothing is wrong.
    pub(crate) fn calm(&self) -> &Calm {
        &self.calm
    }

    /// A second passes: some things end, and perhaps something begins.
    pub(crate) async fn step(&mut self, sim: &mut Sim) {
        self.end_those(sim, |episode| episode.ends <= now()).await;
        // Every step has chances of its own, and the fault is drawn out of all: with some of them switched off, the others come
        // when they came before, and to the same nodes.
        let mut rng = self.rng.fork();
        // One in four seconds or so.
        if rng.u8(..4) == 0 {
            let drawn = Fault::ALL[rng.usize(..Fault::ALL.len())];
            let is_late = self.overdue.is_some_and(|overdue| now() >= overdue);
            let late = self.faults.difference(&self.happened).next().copied().filter(|_| is_late);
            let fault = late.unwrap_or(drawn);
            if self.faults.contains(&fault) {
                self.begin(sim, fault, &mut rng).await;
            }
        }
    }

    /// Everything ends.
    pub(crate) async fn end(&mut self, sim: &mut Sim) {
        self.end_those(sim, |_| true).await;
        sim.net().heal();
    }

    async fn end_those(&mut self, sim: &mut Sim, ends: impl Fn(&Episode) -> bool) {
        let (over, on) = std::mem::take(&mut self.episodes).into_iter().partition(|episode| ends(episode));
        self.episodes = on;
        let over: Vec<Episode> = over;
        for Episode { fault, told, end, .. } in over {
            self.checkers.verdict.say(|| format!("{told} ends"));
            let place = end.place();
            match end {
                End::Mend(ways) => ways.iter().for_each(|(from, to)| sim.net().mend(*from, *to)),
                End::Restart(number) => sim.restart(ip(number)),
                End::Slow(number, _) | End::Full(number, _) => self.set_disk(sim, number),
                End::Scrub(number) => {
                    let Some(host) = self.checkers.hosts.get(number) else {
                        // Off, or on its way: when it is back.
                        let again = Episode { fault, told, ends: now() + Duration::from_secs(5), end };
                        self.episodes.push(again);
                        continue;
                    };
                    match host.store.scrub(Deadline::after(Duration::from_secs(120))).await {
                        Ok(scrubbed) => {
                            self.checkers.verdict.add("damage found by scrubbing", scrubbed.damaged.len());
                            self.checkers.shared.scrubbed(number, &scrubbed.damaged);
                            self.checkers.kept.scrubbed(number);
                        }
                        Err(error) => {
                            self.checkers.verdict.refused("scrub", &error);
                            let again = Episode { fault, told, ends: now() + Duration::from_secs(5), end };
                            self.episodes.push(again);
                            continue;
                        }
                    }
                }
                End::Clock(number, by_ms) => sim.jump_clock(ip(number), -by_ms),
                End::Lines(ways) => {
                    for (from, to) in ways.iter().filter(|way| !self.is_lossy(way)) {
                        sim.net().reset_line(*from, *to);
                    }
                }
                End::Honest => {
                    self.lies.set(false);
                    self.checkers.shared.mislead(None);
                }
            }
            if let Some(place) = place {
                self.calm.ends(place);
            }
        }
    }

    /// Whether a line is still bad after another that was bad is over.
    fn is_lossy(&self, way: &(IpAddr, IpAddr)) -> bool {
        let held = |episode: &Episode| matches!(&episode.end, End::Lines(ways) if ways.contains(way));
        self.episodes.iter().any(held)
    }

    /// A disk is as bad as the worst of what is wrong with it.
    fn set_disk(&self, sim: &Sim, number: u8) {
        let Some(disk) = sim.disk(ip(number)) else { return };
        let (mut pace, mut capacity) = (Duration::ZERO, None::<u64>);
        for Episode { end, .. } in &self.episodes {
            match end {
                End::Slow(of, slow) if *of == number => pace = pace.max(*slow),
                End::Full(of, full) if *of == number => {
                    capacity = Some(capacity.map_or(*full, |capacity| capacity.min(*full)));
                }
                _ => {}
            }
        }
        disk.slow_down(pace);
        disk.capacity(capacity);
    }

    /// A server or a client that is up.
    fn victim(&self, rng: &mut fastrand::Rng) -> Option<u8> {
        let number = rng.u8(..self.nodes + CLIENTS);
        self.checkers.hosts.get(number).map(|host| host.number)
    }

    /// Whether one more may go: a fifth of the servers may be down, a client at a time, and of the two whom all others begin with one
    /// stays.
    fn may_fall(&self, sim: &Sim, number: u8) -> bool {
        let is_up = |number: u8| sim.is_up(ip(number));
        match number {
            0 | 1 if !is_up(1 - number) => false,
            _ if number < self.nodes => self.down(sim) < usize::from(self.nodes / 5).max(1),
            _ => (self.nodes..self.nodes + CLIENTS).all(is_up),
        }
    }

    fn down(&self, sim: &Sim) -> usize {
        (0..self.nodes).filter(|number| !sim.is_up(ip(*number))).count()
    }

    async fn begin(&mut self, sim: &mut Sim, fault: Fault, rng: &mut fastrand::Rng) {
        let seconds = rng.u64(5..40);
        let begun = match fault {
            Fault::Partition | Fault::OneWay => self.part(sim, fault, rng),
            Fault::Kill | Fault::Tear | Fault::Wipe | Fault::Stop => self.fell(sim, fault, rng).await,
            Fault::SlowDisk | Fault::FullDisk => self.hurt_disk(sim, fault, rng),
            Fault::Rot => self.rot(sim, rng).await,
            Fault::Clock => self.victim(rng).map(|number| {
                let by_ms = rng.i64(-6 * 3_600_000..6 * 3_600_000);
                sim.jump_clock(ip(number), by_ms);
                (format!("{number} by {by_ms} ms"), End::Clock(number, by_ms))
            }),
            Fault::Lossy => Some(self.lose(sim, rng)),
            Fault::Hostile => (!self.is_on(&[Fault::Hostile])).then(|| {
                self.lies.set(true);
                self.checkers.shared.mislead(Some(hostile::mask(self.nodes)));
                (String::new(), End::Honest)
            }),
            Fault::Overload => {
                self.victim(rng).filter(|_| !self.is_on(&[Fault::Overload])).and_then(|number| {
                    let host = self.checkers.hosts.get(number)?;
                    self.checkers.crowd(&self.users, rng, &host, CROWD);
                    // A disk that has something to do.
                    Some((number.to_string(), End::Slow(number, Duration::from_millis(20))))
                })
            }
        };
        let Some((what, end)) = begun else {
            self.checkers.verdict.count(&format!("fault withheld: {}", fault.name()));
            return;
        };
        self.happened.insert(fault);
        self.checkers.verdict.count(&format!("fault: {}", fault.name()));
        let told = format!("{} {what}", fault.name());
        self.checkers.verdict.say(|| format!("{} for {seconds} s", told.trim_end()));
        let told = told.split(':').next().unwrap_or_default().trim_end().to_owned();
        sim.net().note(fault.name());
        if let Some(place) = end.place() {
            self.calm.begins(place);
        }
        let disk = match end {
            End::Slow(number, _) | End::Full(number, _) => Some(number),
            _ => None,
        };
        self.episodes.push(Episode { fault, told, ends: now() + Duration::from_secs(seconds), end });
        if let Some(number) = disk {
            self.set_disk(sim, number);
        }
    }

    fn part(&self, sim: &Sim, fault: Fault, rng: &mut fastrand::Rng) -> Option<(String, End)> {
        if !self.can_talk() {
            return None;
        }
        let all = 0..self.nodes + CLIENTS + 1;
        // Half and half, or only one.
        let alone = rng.bool().then(|| rng.u8(all.clone()));
        let mut one = BTreeSet::new();
        for number in all.clone() {
            if alone.map_or_else(|| rng.bool(), |alone| alone == number) {
                one.insert(number);
            }
        }
        let mut ways = Vec::new();
        for left in &one {
            for right in all.clone().filter(|number| !one.contains(number)) {
                ways.push((ip(*left), ip(right)));
                if fault == Fault::Partition {
                    ways.push((ip(right), ip(*left)));
                }
            }
        }
        ways.iter().for_each(|(from, to)| sim.net().cut(*from, *to));
        Some((format!("{one:?}"), End::Mend(ways)))
    }

    fn lose(&self, sim: &Sim, rng: &mut fastrand::Rng) -> (String, End) {
        let latency = Latency::Tailed(Duration::from_millis(50), Duration::from_millis(900));
        let bad = Line {
            latency,
            loss: Ratio::percent(30),
            duplicated: Ratio::percent(5),
            reordered: Ratio::percent(10),
            bandwidth: Some(256 << 10),
        };
        let mut ways = Vec::new();
        for _ in 0..2 * u32::from(self.nodes) {
            let way = (ip(rng.u8(..self.nodes + CLIENTS)), ip(rng.u8(..self.nodes + CLIENTS)));
            sim.net().set_line(way.0, way.1, bad);
            ways.push(way);
        }
        (String::new(), End::Lines(ways))
    }

    /// A node goes, in one way or another.
    async fn fell(&mut self, sim: &mut Sim, fault: Fault, rng: &mut fastrand::Rng) -> Option<(String, End)> {
        let number = self.victim(rng)?;
        let (is_lost, is_server) = (fault == Fault::Wipe, number < self.nodes);
        // The log is on one disk: it is not what a copy of it replaces.
        if !self.may_fall(sim, number) || (is_lost && number == OWNER) {
            return None;
        }
        let Checkers { shared, kept, .. } = self.checkers.clone();
        if is_lost && is_server && !shared.may_lose(number).await {
            return None;
        }
        if is_server {
            shared.leaving(number).await;
        }
        if fault == Fault::Stop {
            self.stop(sim, number).await;
        } else {
            let style = match fault {
                Fault::Kill => CrashStyle::Killed,
                _ if rng.bool() => CrashStyle::LoseUnsynced,
                _ => CrashStyle::Scramble { seed: rng.u64(..) },
            };
            self.crash(sim, number, style).await;
        }
        if is_lost {
            sim.disk(ip(number))?.wipe();
            kept.lost(number);
            if is_server {
                shared.lost(number).await;
            }
        }
        Some((number.to_string(), End::Restart(number)))
    }

    /// A machine loses power, or only its program. All of its tasks have ended then.
    pub(crate) async fn crash(&self, sim: &mut Sim, number: u8, style: CrashStyle) {
        self.forget(number);
        let supervisor = sim.supervisor(ip(number)).cloned();
        sim.crash_in(ip(number), style).await;
        if let Some(supervisor) = supervisor {
            watch::all_ended(number, &supervisor, true, &self.checkers.verdict);
        }
    }

    /// The node is about to be gone, and owes nothing that it alone had in memory.
    pub(crate) fn forget(&self, number: u8) {
        self.checkers.hosts.remove(number);
        self.checkers.provided.forget(number);
        self.checkers.news.forget(number);
    }

    /// A node is asked to stop while it has something to do: what it took in is done, and what runs is joined.
    async fn stop(&mut self, sim: &mut Sim, number: u8) {
        let Some(host) = self.checkers.hosts.get(number) else { return };
        let verdict = self.checkers.verdict.clone();
        let disk = sim.disk(ip(number)).cloned();
        let is_well = disk.as_ref().is_some_and(|disk| disk.pace().is_zero())
            && host.supervisor.ready().status().writes;
        // What waits for others may have to be cut off while they are silent, or late.
        let is_heard = self.episodes.iter().all(|Episode { fault, .. }| HARMLESS.contains(fault));
        let under_way = Arc::new(Mutex::new(UnderWay::default()));
        if let Some(disk) = disk.as_ref().filter(|_| is_well) {
            disk.slow_down(Duration::from_millis(10));
            for _ in 0..UNDER_WAY {
                let (store, under_way) = (host.store.clone(), Arc::clone(&under_way));
                let kept = self.checkers.kept.clone();
                self.users.spawn(USER, |_| async move {
                    let put = kept.put_last(number, &store).await;
                    let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
                    under_way.done += 1;
                    under_way.errors.extend(put.err());
                });
            }
            sim.run_for(Duration::from_millis(1)).await;
        }
        self.forget(number);
        let supervisor = host.supervisor.clone();
        drop(host);
        let Some(stopped) = sim.stop(ip(number)).await else { return };
        verdict.add("tasks joined", stopped.drained);
        verdict.add("tasks cut off", stopped.aborted);
        watch::all_ended(number, &supervisor, false, &verdict);
        if is_well {
            verdict.count("stopped while it was well");
        }
        if is_well && is_heard {
            verdict.promised(stopped.aborted == 0, || {
                format!("{number} was well, and had to cut off {} tasks", stopped.aborted)
            });
        }
        if is_well {
            let UnderWay { done, errors } =
                std::mem::take(&mut *under_way.lock().unwrap_or_else(PoisonError::into_inner));
            verdict.promised(done == UNDER_WAY, || {
                format!("{number} stopped, and {done} of {UNDER_WAY} puts ended")
            });
            for error in errors {
                verdict.promised(error.kind() != ErrorKind::Canceled, || {
                    format!(
                        "{number} dropped a put that it had taken in before it was asked to stop: {error}"
                    )
                });
                verdict.refused("put before a stop", &error);
            }
        }
        if let Some(disk) = disk.filter(|_| is_well) {
            disk.slow_down(Duration::ZERO);
        }
    }

    fn hurt_disk(&self, sim: &Sim, fault: Fault, rng: &mut fastrand::Rng) -> Option<(String, End)> {
        let number = self.victim(rng)?;
        let disk = sim.disk(ip(number))?;
        Some(if fault == Fault::SlowDisk {
            let pace = Duration::from_millis(rng.u64(5..300));
            (format!("{number}: {pace:?}"), End::Slow(number, pace))
        } else {
            // Half of them are full at once, whatever is deleted meanwhile, and are asked whether they say so.
            let hardly_any = rng.bool();
            self.checkers.verdict.add("left hardly any room", usize::from(hardly_any));
            let room = rng.u64(..if hardly_any { RESERVE / 8 } else { 2 * RESERVE });
            self.ask_full(number, disk, rng.u64(..));
            (format!("{number}: {room} bytes left"), End::Full(number, disk.used() + room))
        })
    }

    /// Asks a node for this and that once its disk is full.
    fn ask_full(&self, number: u8, disk: &SimDisk, salt: u64) {
        let Some(host) = self.checkers.hosts.get(number) else { return };
        let (disk, verdict) = (disk.clone(), self.checkers.verdict.clone());
        self.users.spawn(USER, |_| async move {
            for salt in [salt, !salt] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                watch::ask_full(&host, &disk, salt, &verdict).await;
            }
        });
    }

    /// A bit of an object flips, if the others survive that.
    async fn rot(&mut self, sim: &Sim, rng: &mut fastrand::Rng) -> Option<(String, End)> {
        let number = self.victim(rng)?;
        let disk = sim.disk(ip(number))?;
        if objects(disk).is_empty() || !self.checkers.shared.may_rot(number).await {
            return None;
        }
        self.checkers.kept.doubt(number);
        // Listed again: others may have been compacted away since.
        let files = objects(disk);
        let flipped =
            (!files.is_empty()).then(|| &files[rng.usize(..files.len())]).and_then(|(file, len)| {
                let at = rng.usize(..usize::try_from(*len).ok()?);
                let is_there = disk.bytes(file).is_some_and(|bytes| at < bytes.len());
                is_there.then(|| disk.flip_bit(file, at))?;
                Some(format!("{number}: byte {at} of {}", file.display()))
            });
        if flipped.is_none() {
            // Nothing happened, and yet everything there is doubted until somebody has looked.
            self.calm.begins(Place::Node(number));
            let (told, end) = (format!("{} {number}", Fault::Rot.name()), End::Scrub(number));
            self.episodes.push(Episode { fault: Fault::Rot, told, ends: now(), end });
        }
        let flipped = flipped?;
        self.read_rotten(number).await;
        Some((flipped, End::Scrub(number)))
    }

    /// Whatever a node gives after a bit flipped on its disk is right, or refused.
    async fn read_rotten(&self, number: u8) {
        let Some(host) = self.checkers.hosts.get(number) else { return };
        let soon = || Deadline::after(Duration::from_secs(5));
        let mut after = None;
        loop {
            let page = match host.store.list(after, 1000, soon()).await {
                Ok(page) => page,
                Err(error) => {
                    self.checkers.verdict.refused("list", &error);
                    return self.checkers.verdict.count("not all read where a bit flipped");
                }
            };
            for object in &page.objects {
                match host.store.get_bytes(object.id, u64::MAX, soon()).await {
                    Ok(bytes) => {
                        self.checkers.verdict.count("read where a bit flipped");
                        self.checkers.verdict.promised(ContentId::of(&bytes) == object.id, || {
                            format!("wrong bytes of {} from {number}, where a bit flipped", object.id)
                        });
                    }
                    Err(error) if error.is_retryable() || error.kind() == ErrorKind::Canceled => {
                        return self.checkers.verdict.count("not all read where a bit flipped");
                    }
                    Err(error) => {
                        self.checkers.verdict.count("refused where a bit flipped");
                        self.checkers.verdict.refused("read where a bit flipped", &error);
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return;
            }
        }
    }
}

/// Files that hold objects, and how long they are.
fn objects(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for dir in ["store/large", "store/log"].map(PathBuf::from) {
        let names = disk.list(&dir).unwrap_or_default();
        let held = names.iter().filter(|entry| entry.is_file && entry.len > 0);
        files.extend(held.map(|entry| (dir.join(&entry.name), entry.len)));
    }
    files
}
