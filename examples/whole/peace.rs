//! What is asked once everything is well and as it should be: everything that is owed, and of every node something new of each kind.
//! Then everybody loses power at once, becomes as it should be again, has everything all the same, and stops as it should.

use std::time::Duration;

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, ErrorKind,
    sim::{CrashStyle, Sim},
};
use ron_index::Key;
use ron_registry::{Approval, Content, Outcome, Registry};
use ron_storage::{
    claims::{Policy, RETENTION_MIN},
    repair::Ack,
};

use crate::{
    faults::Troubles,
    node::{Host, OWNER, Role, identity, ip, policy, signer},
    options::CLIENTS,
    users::Checkers,
    verdict::Verdict,
    watch::{self, Ask, Place},
};

/// How long it may take until everything is as it should be, once everything is well.
const CONVERGENCE: Duration = Duration::from_secs(600);

/// Waits until everything is as it should be, and says how long that took. What is missing after too long is broken.
pub(crate) async fn converge(
    sim: &mut Sim,
    checkers: &Checkers,
    troubles: &mut Troubles,
    nodes: u8,
    since: &str,
) -> Option<Duration> {
    let verdict = &checkers.verdict;
    let began = verdict.elapsed();
    let mut said = Vec::new();
    loop {
        sim.run_for(Duration::from_secs(20)).await;
        troubles.end(sim).await;
        let missing = unsettled(checkers, nodes).await;
        let took = verdict.elapsed() - began;
        if missing.is_empty() {
            verdict.say(|| format!("nothing is missing, {} s after {since}", took.as_secs()));
            return Some(took);
        }
        if let Some((_, new)) = missing.iter().find(|what| !said.contains(*what)) {
            verdict.say(|| format!("{} things are missing, as {new}", missing.len()));
        } else if missing.len() < said.len() {
            verdict.say(|| format!("{} things are missing", missing.len()));
        }
        said.clone_from(&missing);
        if took >= CONVERGENCE {
            verdict.say(|| format!("{} things are still missing", missing.len()));
            for (checker, what) in missing.iter().take(10) {
                verdict.broken_by(checker, format!("{what}, {} s after {since}", CONVERGENCE.as_secs()));
            }
            return None;
        }
    }
}

/// What is not yet as it should be, and the checker that says so.
async fn unsettled(checkers: &Checkers, nodes: u8) -> Vec<(&'static str, String)> {
    let hosts = checkers.hosts.all();
    let away = (0..nodes + CLIENTS + 1).filter(|number| hosts.iter().all(|host| host.number != *number)).map(
        |number| match checkers.verdict.why_not_started(number) {
            Some(why) => format!("{number} is not there, and does not start: {why}"),
            None => format!("{number} is not there"),
        },
    );
    let mut missing: Vec<_> = away.map(|what| ("peace", what)).collect();
    missing.extend(hosts.iter().flat_map(watch::closed).map(|what| ("watch", what)));
    missing.extend(checkers.names.missing().into_iter().map(|what| ("names", what)));
    missing.extend(checkers.news.missing().into_iter().map(|what| ("news", what)));
    missing.extend(checkers.shared.missing().await.into_iter().map(|what| ("shared", what)));
    missing
}

/// Everything is asked for, and everything is answered.
pub(crate) async fn ask_all(
    sim: &mut Sim,
    checkers: &Checkers,
    troubles: &mut Troubles,
    rng: &mut fastrand::Rng,
) {
    // Everybody has had time to say what it provides.
    sim.run_for(Duration::from_secs(70)).await;
    checkers.shared.read_all(rng).await;
    checkers.names.compare_all().await;
    for host in checkers.hosts.all() {
        for ask in Ask::ALL {
            watch::probe(&host, ask, rng.u64(..), true, troubles.calm(), &checkers.verdict).await;
        }
        checkers.names.resolve(&host, &checkers.provided, rng, true).await;
    }
    for _ in 0..20 {
        let Some(host) = checkers.some(rng, |host| host.role == Role::Client) else { continue };
        checkers.names.locate(&host, &checkers.provided, rng, true).await;
        checkers.provided.look(&host, rng, true).await;
    }
    for host in checkers.hosts.all().iter().filter(|host| host.role != Role::Liar) {
        checkers.news.publish(host.number, true).await;
    }
    begin_anew(sim, checkers, rng).await;
    for what in checkers.news.missing() {
        checkers.verdict.broken_by("news", format!("in peace, {what}"));
    }
    checkers.news.count_told();
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// Something that a server put in peace.
struct Fresh {
    host: Host,
    id: ContentId,
    content: Bytes,
}

impl Fresh {
    fn name(&self) -> String {
        format!("peace/{}", self.host.number)
    }
}

/// On every server something is put, provided and named; others read it and resolve its name; then it is deleted, and gone.
async fn begin_anew(sim: &mut Sim, checkers: &Checkers, rng: &mut fastrand::Rng) {
    let (verdict, servers) = (&checkers.verdict, checkers.hosts.servers());
    let mut all = Vec::new();
    for host in &servers {
        all.extend(put(host, rng.u64(..), verdict).await);
    }
    let Some(log) = checkers.hosts.get(OWNER) else { return verdict.broken("there is no log in peace") };
    for fresh in &all {
        name(&log.registry, fresh, verdict).await;
    }
    sim.run_for(Duration::from_secs(30)).await;
    for (at, fresh) in all.iter().enumerate() {
        let other = &all[(at + 1) % all.len()].host;
        read(other, fresh, verdict).await;
    }
    for host in checkers.hosts.all().iter().filter(|host| host.role != Role::Liar) {
        if let Some(fresh) = all.get(rng.usize(..all.len().max(1))) {
            resolve(host, fresh, verdict).await;
        }
    }
    for fresh in &all {
        delete(fresh, verdict).await;
    }
    sim.run_for(Duration::from_secs(60)).await;
    for (at, fresh) in all.iter().enumerate() {
        let other = &all[(at + 1) % all.len()].host;
        for host in [&fresh.host, other] {
            gone(host, fresh, verdict).await;
        }
    }
}

async fn put(host: &Host, salt: u64, verdict: &Verdict) -> Option<Fresh> {
    let keeping = host.keeping.as_ref()?;
    let (number, owner) = (host.number, identity(host.number));
    let content = Bytes::from(format!("{number} in peace, {salt}"));
    let put = keeping.put(content.clone(), Policy::Copies(2), &owner, Ack::Copies(2), soon()).await;
    let id = match put {
        Ok(placed) => placed.id,
        Err(error) => {
            verdict.broken(format!("{number} takes nothing new in peace: {error}"));
            return None;
        }
    };
    verdict.count("new in peace: put");
    if let Err(error) = host.dht.provide(id, soon()).await {
        verdict.broken(format!("{number} provides nothing new in peace: {error}"));
    }
    Some(Fresh { host: host.clone(), id, content })
}

/// Two of those who decide now agree about a name.
async fn name(log: &Registry, fresh: &Fresh, verdict: &Verdict) {
    let text = fresh.name().parse().expect("letters and digits");
    let decides = log.policy().map(|(_, policy)| policy);
    let generation = (0..1000).find(|generation| decides.as_deref() == Some(&policy(*generation)));
    let Some(generation) = generation else {
        return verdict.broken("those decide in peace whom nobody has named");
    };
    let submitted = match log.draft_bind(text, Content::Artifact(fresh.id), Duration::from_secs(3600)) {
        Ok(proposal) => {
            let approve =
                |number| -> Approval { proposal.approve(&signer(generation, number), proposal.expires()) };
            let approvals = [0, 2].map(approve).to_vec();
            log.submit(proposal, approvals, soon()).await
        }
        Err(error) => Err(error),
    };
    match submitted {
        Ok(Outcome::Committed(_)) => verdict.count("new in peace: named"),
        other => verdict.broken(format!("{} is not decided in peace: {other:?}", fresh.name())),
    }
}

async fn read(host: &Host, fresh: &Fresh, verdict: &Verdict) {
    let Some(keeping) = &host.keeping else { return };
    match keeping.get(fresh.id, soon()).await {
        Ok(bytes) => {
            verdict.count("new in peace: read");
            verdict
                .promised(bytes == fresh.content, || format!("{} gives wrong bytes in peace", host.number));
        }
        Err(error) => {
            verdict.broken(format!(
                "{} does not give what {} just put: {error}",
                host.number, fresh.host.number
            ));
        }
    }
}

async fn resolve(host: &Host, fresh: &Fresh, verdict: &Verdict) {
    let key: Key = fresh.name().parse().expect("letters and digits");
    match host.index.reindex(&key, soon()).await {
        Ok(answer) => {
            let record = answer.resolution().name.clone();
            verdict.count("new in peace: resolved");
            verdict.promised(record.as_ref().is_some_and(|record| record.content == fresh.id), || {
                format!("{} says {record:?} of {}, just named {}", host.number, fresh.name(), fresh.id)
            });
        }
        Err(error) => {
            verdict.broken(format!("{} does not know {}, just named: {error}", host.number, fresh.name()));
        }
    }
}

async fn delete(fresh: &Fresh, verdict: &Verdict) {
    let Some(keeping) = &fresh.host.keeping else { return };
    let owner = identity(fresh.host.number);
    match keeping.delete(fresh.id, &owner, Duration::from_secs(RETENTION_MIN), soon()).await {
        Ok(_) => verdict.count("new in peace: deleted"),
        Err(error) => {
            verdict.broken(format!("{} deletes nothing in peace: {error}", fresh.host.number));
        }
    }
    if let Err(error) = fresh.host.dht.withdraw(fresh.id, soon()).await {
        verdict.broken(format!("{} withdraws nothing in peace: {error}", fresh.host.number));
    }
}

async fn gone(host: &Host, fresh: &Fresh, verdict: &Verdict) {
    let Some(keeping) = &host.keeping else { return };
    match keeping.get(fresh.id, soon()).await {
        Ok(_) => verdict.broken(format!("{} was deleted in peace, and {} gives it", fresh.id, host.number)),
        Err(error) => verdict.promised(error.kind() == ErrorKind::Caller, || {
            format!("{} was deleted in peace, and {} says: {error}", fresh.id, host.number)
        }),
    }
}

/// At last everybody loses power at once, and has everything all the same; and then stops as it should.
pub(crate) async fn power_cut(
    sim: &mut Sim,
    checkers: &Checkers,
    troubles: &mut Troubles,
    nodes: u8,
    rng: &mut fastrand::Rng,
) {
    checkers.verdict.say(|| "everybody loses power".to_owned());
    let all = 0..nodes + CLIENTS + 1;
    for number in all.clone() {
        troubles.calm().begins(Place::Node(number));
        troubles.forget(number);
    }
    // Before any of them is waited for, so that none notices that another is gone.
    for number in all.clone() {
        sim.net().crash(ip(number));
        if let Some(disk) = sim.disk(ip(number)) {
            disk.crash();
        }
        if let Some(supervisor) = sim.supervisor(ip(number)) {
            supervisor.abort();
        }
    }
    for number in all.clone() {
        let seed = rng.u64(..);
        troubles.crash(sim, number, CrashStyle::Scramble { seed }).await;
    }
    for number in all.clone() {
        sim.restart(ip(number));
        troubles.calm().ends(Place::Node(number));
    }
    sim.run_for(Duration::from_secs(60)).await;
    let back = checkers.hosts.all();
    for number in all.clone().filter(|number| back.iter().all(|host| host.number != *number)) {
        let why = checkers.verdict.why_not_started(number).unwrap_or_else(|| "it is still at it".to_owned());
        checkers
            .verdict
            .broken(format!("{number} does not start after a power cut, and has it no more: {why}"));
    }
    let took = converge(sim, checkers, troubles, nodes, "a power cut").await;
    let seconds = took.map_or(0, |took| usize::try_from(took.as_secs()).unwrap_or(usize::MAX));
    checkers.verdict.add("seconds until everybody was ready again", seconds);
    checkers.shared.read_all(rng).await;
    checkers.names.compare_all().await;
    // What everybody sees of the log is wrong now, and then one after the other is gone.
    troubles.calm().begins(Place::Lines);
    checkers.names.show_fork().await;
    for number in all.rev() {
        stop_last(sim, checkers, troubles, number).await;
    }
}

async fn stop_last(sim: &mut Sim, checkers: &Checkers, troubles: &Troubles, number: u8) {
    let verdict = &checkers.verdict;
    let Some(supervisor) = sim.supervisor(ip(number)).cloned() else { return };
    troubles.forget(number);
    let Some(stopped) = sim.stop(ip(number)).await else { return };
    verdict.add("tasks joined", stopped.drained);
    verdict.add("tasks cut off", stopped.aborted);
    watch::all_ended(number, &supervisor, false, verdict);
    verdict.promised(stopped.aborted == 0, || {
        format!("{number} had to cut off {} tasks at the end", stopped.aborted)
    });
}
