//! What goes wrong, when, to whom, and for how long: all of it drawn from the seed.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ron_core::{
    Deadline, ErrorKind, Ratio, Supervisor,
    disk::Disk as _,
    now,
    sim::{CrashStyle, Latency, Line, Sim},
};
use tokio::time::Instant;

use crate::{
    hostile::Lies,
    node::{OWNER, RESERVE, ip},
    options::{CLIENTS, Fault, Options},
    users::{Checkers, USER},
};

/// Callers of a crowd: ten times those that there usually are.
pub(crate) const USERS: usize = 8;
const CROWD: usize = 10 * USERS;

/// Puts that are under way when a node is asked to stop.
const UNDER_WAY: usize = 12;

/// How a fault ends.
enum End {
    Mend(Vec<(IpAddr, IpAddr)>),
    Restart(u8),
    /// The disk is as fast, or has as much room, as before.
    Disk(u8),
    Scrub(u8),
    Clock(u8, i64),
    Lines(Vec<(IpAddr, IpAddr)>),
    Honest,
}

struct Episode {
    fault: Fault,
    ends: Instant,
    end: End,
}

/// What is wrong now.
pub(crate) struct Troubles {
    nodes: u8,
    faults: Vec<Fault>,
    episodes: Vec<Episode>,
    checkers: Checkers,
    lies: Lies,
    users: Supervisor,
}

impl Troubles {
    pub(crate) fn new(options: &Options, checkers: &Checkers, lies: &Lies, users: &Supervisor) -> Self {
        Troubles {
            nodes: options.nodes,
            faults: options.faults.iter().copied().collect(),
            episodes: Vec::new(),
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

    /// A second passes: some things end, and perhaps something begins.
    pub(crate) async fn step(&mut self, sim: &mut Sim) {
        self.end_those(sim, |episode| episode.ends <= now()).await;
        // One in four seconds or so.
        if !self.faults.is_empty() && sim.rng().u8(..4) == 0 {
            let fault = self.faults[sim.rng().usize(..self.faults.len())];
            self.begin(sim, fault).await;
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
        for Episode { fault, end, .. } in over {
            self.checkers.verdict.say(|| format!("{} ends", fault.name()));
            match end {
                End::Mend(ways) => ways.iter().for_each(|(from, to)| sim.net().mend(*from, *to)),
                End::Restart(number) => sim.restart(ip(number)),
                End::Disk(number) => {
                    if let Some(disk) = sim.disk(ip(number)) {
                        disk.slow_down(Duration::ZERO);
                        disk.capacity(None);
                    }
                }
                End::Scrub(number) => {
                    let Some(host) = self.checkers.hosts.get(number) else {
                        // Off, or on its way: when it is back.
                        let again = Episode { fault, ends: now() + Duration::from_secs(5), end };
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
                            let again = Episode { fault, ends: now() + Duration::from_secs(5), end };
                            self.episodes.push(again);
                        }
                    }
                }
                End::Clock(number, by_ms) => sim.jump_clock(ip(number), -by_ms),
                End::Lines(ways) => ways.iter().for_each(|(from, to)| sim.net().reset_line(*from, *to)),
                End::Honest => self.lies.set(false),
            }
        }
    }

    /// A server that is up, and may be down: the first is whom all others begin with, so it stays.
    fn victim(&self, sim: &mut Sim) -> Option<u8> {
        let number = sim.rng().u8(1..self.nodes);
        self.checkers.hosts.get(number).map(|host| host.number)
    }

    fn down(&self, sim: &Sim) -> usize {
        (0..self.nodes).filter(|number| !sim.is_up(ip(*number))).count()
    }

    async fn begin(&mut self, sim: &mut Sim, fault: Fault) {
        let seconds = sim.rng().u64(5..40);
        let begun = match fault {
            Fault::Partition | Fault::OneWay => self.part(sim, fault),
            Fault::Kill | Fault::Tear | Fault::Wipe | Fault::Stop => self.fell(sim, fault).await,
            Fault::SlowDisk | Fault::FullDisk | Fault::Rot => self.hurt_disk(sim, fault).await,
            Fault::Clock => self.victim(sim).map(|number| {
                let by_ms = sim.rng().i64(-6 * 3_600_000..6 * 3_600_000);
                sim.jump_clock(ip(number), by_ms);
                (format!("{number} by {by_ms} ms"), End::Clock(number, by_ms))
            }),
            Fault::Lossy => Some(self.lose(sim)),
            Fault::Hostile => (!self.is_on(&[Fault::Hostile])).then(|| {
                self.lies.set(true);
                (String::new(), End::Honest)
            }),
            Fault::Overload => {
                self.victim(sim).filter(|_| !self.is_on(&[Fault::Overload])).and_then(|number| {
                    let host = self.checkers.hosts.get(number)?;
                    // A disk that has something to do.
                    sim.disk(ip(number))?.slow_down(Duration::from_millis(20));
                    self.checkers.crowd(&self.users, sim.rng(), &host, CROWD);
                    Some((number.to_string(), End::Disk(number)))
                })
            }
        };
        let Some((what, end)) = begun else {
            self.checkers.verdict.count(&format!("fault withheld: {}", fault.name()));
            return;
        };
        self.checkers.verdict.count(&format!("fault: {}", fault.name()));
        self.checkers.verdict.say(|| format!("{} {what} for {seconds} s", fault.name()));
        sim.net().note(fault.name());
        self.episodes.push(Episode { fault, ends: now() + Duration::from_secs(seconds), end });
    }

    fn part(&self, sim: &mut Sim, fault: Fault) -> Option<(String, End)> {
        if !self.can_talk() {
            return None;
        }
        let all = 0..self.nodes + CLIENTS + 1;
        // Half and half, or only one.
        let alone = sim.rng().bool().then(|| sim.rng().u8(all.clone()));
        let mut one = BTreeSet::new();
        for number in all.clone() {
            if alone.map_or_else(|| sim.rng().bool(), |alone| alone == number) {
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

    fn lose(&self, sim: &mut Sim) -> (String, End) {
        let latency = Latency::Tailed(Duration::from_millis(50), Duration::from_millis(900));
        let bad = Line {
            latency,
            loss: Ratio::percent(30),
            duplicated: Ratio::percent(5),
            reordered: Ratio::percent(10),
            bandwidth: Some(256 << 10),
        };
        let mut ways = Vec::new();
        for _ in 0..2 * self.nodes {
            let way = (ip(sim.rng().u8(..self.nodes)), ip(sim.rng().u8(..self.nodes)));
            sim.net().set_line(way.0, way.1, bad);
            ways.push(way);
        }
        (String::new(), End::Lines(ways))
    }

    /// A node goes, in one way or another.
    async fn fell(&self, sim: &mut Sim, fault: Fault) -> Option<(String, End)> {
        let number = self.victim(sim)?;
        let is_lost = fault == Fault::Wipe;
        // The log is on one disk: it is not what a copy of it replaces.
        if self.down(sim) >= usize::from(self.nodes / 5).max(1) || (is_lost && number == OWNER) {
            return None;
        }
        let Checkers { shared, kept, .. } = &self.checkers;
        if is_lost && !shared.may_lose(number).await {
            return None;
        }
        shared.leaving(number).await;
        if fault == Fault::Stop {
            self.stop(sim, number).await;
        } else {
            self.forget(number);
            let seed = sim.rng().u64(..);
            let style = match fault {
                Fault::Kill => CrashStyle::Killed,
                _ if sim.rng().bool() => CrashStyle::LoseUnsynced,
                _ => CrashStyle::Scramble { seed },
            };
            sim.crash_in(ip(number), style).await;
        }
        if is_lost {
            sim.disk(ip(number))?.wipe();
            kept.lost(number);
            shared.lost(number).await;
        }
        Some((number.to_string(), End::Restart(number)))
    }

    /// The node is about to be gone, and owes nothing that it alone had in memory.
    pub(crate) fn forget(&self, number: u8) {
        self.checkers.hosts.remove(number);
        self.checkers.provided.forget(number);
        self.checkers.news.forget(number);
    }

    /// A node is asked to stop while it has something to do: what it took in is done, and what runs is joined.
    async fn stop(&self, sim: &mut Sim, number: u8) {
        let Some(host) = self.checkers.hosts.get(number) else { return };
        let verdict = &self.checkers.verdict;
        let disk = sim.disk(ip(number)).cloned();
        let is_well = disk.as_ref().is_some_and(|disk| disk.pace().is_zero())
            && host.supervisor.ready().status().writes;
        let under_way = Arc::new(Mutex::new((0, Vec::new())));
        if let Some(disk) = disk.as_ref().filter(|_| is_well) {
            disk.slow_down(Duration::from_millis(10));
            for _ in 0..UNDER_WAY {
                let (store, under_way) = (host.store.clone(), Arc::clone(&under_way));
                let kept = self.checkers.kept.clone();
                self.users.spawn(USER, |_| async move {
                    let put = kept.put_last(number, &store).await;
                    let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
                    under_way.0 += 1;
                    under_way.1.extend(put.err());
                });
            }
            sim.run_for(Duration::from_millis(1)).await;
        }
        self.forget(number);
        let supervisor = host.supervisor.clone();
        drop(host);
        let Some(stopped) = sim.stop(ip(number)).await else { return };
        let running = supervisor.running();
        verdict.add("tasks joined", stopped.drained);
        verdict.add("tasks cut off", stopped.aborted);
        verdict.promised(running == 0, || format!("{number} stopped, and {running} tasks run"));
        if is_well {
            let (done, errors) = under_way.lock().unwrap_or_else(PoisonError::into_inner).clone();
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

    async fn hurt_disk(&self, sim: &mut Sim, fault: Fault) -> Option<(String, End)> {
        let number = self.victim(sim)?;
        let disk = sim.disk(ip(number))?.clone();
        match fault {
            Fault::SlowDisk => {
                let pace = Duration::from_millis(sim.rng().u64(5..300));
                disk.slow_down(pace);
                Some((format!("{number}: {pace:?}"), End::Disk(number)))
            }
            Fault::FullDisk => {
                let room = sim.rng().u64(..2 * RESERVE);
                disk.capacity(Some(disk.used() + room));
                Some((format!("{number}: {room} bytes left"), End::Disk(number)))
            }
            _ => {
                let mut files: Vec<(PathBuf, u64)> = Vec::new();
                for dir in ["store/large", "store/log"].map(PathBuf::from) {
                    let names = disk.list(&dir).unwrap_or_default();
                    files.extend(
                        names
                            .iter()
                            .filter(|entry| entry.is_file && entry.len > 0)
                            .map(|entry| (dir.join(&entry.name), entry.len)),
                    );
                }
                if files.is_empty() || !self.checkers.shared.may_rot(number).await {
                    return None;
                }
                self.checkers.kept.doubt(number);
                let (file, len) = &files[sim.rng().usize(..files.len())];
                let at = sim.rng().usize(..usize::try_from(*len).ok()?);
                // It may have been compacted away since.
                if disk.bytes(file).is_some_and(|bytes| at < bytes.len()) {
                    disk.flip_bit(file, at);
                }
                Some((format!("{number}: byte {at} of {}", file.display()), End::Scrub(number)))
            }
        }
    }
}
