//! The checker of the log and of the index: what the log gave receipts for is in it to the end, those who follow it have the
//! same one or less of it, and whatever an index says of a name was decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ContentId, Deadline, Supervisor, now};
use ron_index::Key;
use ron_registry::{
    Action, Approval, Content, EvidenceKind, Head, Outcome, Proposal, ProposalId, Receipt, Refused, Registry,
    RegistryError,
};
use ron_storage::claims::Standing;

use crate::{
    node::{BUDGET, Host, Hosts, OWNER, Role, fork, identity, policy, signer},
    provided::Provided,
    verdict::Verdict,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// How long a proposal waits for approvals: longer than a clock jumps.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// How long one waits that nobody will ever approve.
const USURPED: Duration = Duration::from_secs(60);

/// How much later than its budget an answer of an index may come.
const GRACE: Duration = Duration::from_millis(50);

/// Names that there are.
const NAMES: u64 = 17;

#[derive(Default)]
struct State {
    receipts: BTreeMap<u64, ProposalId>,
    /// What receipts say that each name stands for, by version.
    bound: BTreeMap<u64, BTreeMap<u64, ContentId>>,
    /// What was ever proposed for each.
    proposed: BTreeMap<u64, BTreeSet<ContentId>>,
    /// What those tried who may not decide.
    usurped: BTreeSet<ProposalId>,
    /// Which signers decide, as far as is known.
    generation: u64,
}

/// Cloning shares it.
#[derive(Clone)]
pub(crate) struct Names {
    hosts: Hosts,
    verdict: Verdict,
    state: Arc<Mutex<State>>,
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Whether trouble may be all there is to a refusal.
fn is_excused(error: &RegistryError) -> bool {
    error.is_retryable() || error.kind() == ron_core::ErrorKind::Canceled
}

impl Names {
    pub(crate) fn new(hosts: &Hosts, verdict: &Verdict) -> Self {
        Names { hosts: hosts.clone(), verdict: verdict.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log, if it is up, and who decides in it.
    fn log(&self) -> Option<(Registry, u64)> {
        let log = self.hosts.get(OWNER)?.registry;
        let mut state = self.state();
        // A rotation that nobody was told of may have happened all the same.
        let decides = log.policy().map(|(_, policy)| policy);
        let next = state.generation + 1;
        if decides.is_some_and(|decides| *decides == policy(next)) {
            state.generation = next;
        }
        Some((log, state.generation))
    }

    /// Two of three agree, at once or one after the other.
    async fn decide(
        &self,
        log: &Registry,
        generations: &[u64],
        proposal: Proposal,
        at_once: bool,
    ) -> Result<Option<Receipt>, RegistryError> {
        let approval = |(generation, number): (u64, u8)| -> Approval {
            proposal.approve(&signer(generation, number), proposal.expires())
        };
        let who = generations.iter().flat_map(|generation| [(*generation, 0), (*generation, 2)]);
        let approvals: Vec<Approval> = who.map(approval).collect();
        let mut outcome = if at_once {
            log.submit(proposal, approvals, soon()).await?
        } else {
            let mut outcome = log.propose(proposal, soon()).await?;
            for approval in approvals {
                outcome = log.approve(approval, soon()).await?;
            }
            outcome
        };
        let receipt = match &mut outcome {
            Outcome::Committed(receipt) => receipt.clone(),
            _ => return Ok(None),
        };
        let first = *self.state().receipts.entry(receipt.version).or_insert(receipt.proposal);
        self.verdict.promised(first == receipt.proposal, || {
            format!("there are receipts of {first:?} and {:?} as entry {}", receipt.proposal, receipt.version)
        });
        Ok(Some(receipt))
    }

    /// Somebody tries to bind a name who may not: one signer alone, one who signs twice, those who decided before, or
    /// strangers. The log says why not, and nothing of it is ever in it.
    async fn usurp(&self, log: &Registry, generation: u64, name: u64, rng: &mut fastrand::Rng) {
        let content = ContentId::of(&rng.u64(..).to_be_bytes());
        let text = format!("names/{name}").parse().expect("letters and digits");
        let proposal = match log.draft_bind(text, Content::Artifact(content), USURPED) {
            Ok(proposal) => proposal,
            Err(error) => return self.verdict.refused("usurp", &error),
        };
        let (what, who) = match rng.u8(..4) {
            0 => ("one signer alone", vec![(generation, 1)]),
            1 => ("one signer twice", vec![(generation, 1), (generation, 1)]),
            2 if generation > 0 => ("signers of before", vec![(generation - 1, 0), (generation - 1, 2)]),
            _ => ("strangers", vec![(u64::MAX, 0), (u64::MAX, 2)]),
        };
        let approve =
            |(generation, number)| proposal.approve(&signer(generation, number), proposal.expires());
        let approvals: Vec<Approval> = who.into_iter().map(approve).collect();
        let id = proposal.id();
        self.state().usurped.insert(id);
        let at_once = rng.bool();
        let outcome = if at_once {
            log.submit(proposal, approvals, soon()).await
        } else {
            let mut outcome = log.propose(proposal, soon()).await;
            for approval in approvals {
                if outcome.is_ok() {
                    outcome = log.approve(approval, soon()).await;
                }
            }
            outcome
        };
        let is_listened_to = what.starts_with("one");
        match outcome {
            // Who is no signer takes nothing from others who approve at the same time, and adds nothing.
            Ok(Outcome::Pending { missing, .. }) if is_listened_to || at_once => {
                let left: &[&str] = if is_listened_to { &["p0", "p2"] } else { &["p0", "p1", "p2"] };
                self.verdict.count("usurped: waits for others");
                self.verdict.promised(missing == left, || format!("after {what}, {missing:?} are missing"));
            }
            Err(RegistryError::Refused(Refused::NotASigner { .. })) if !is_listened_to => {
                self.verdict.count("usurped: not a signer");
            }
            // Others have decided meanwhile, or the clock has jumped.
            Err(RegistryError::Refused(
                Refused::WrongEpoch { .. }
                | Refused::NameMoved { .. }
                | Refused::UnknownProposal
                | Refused::Expired { .. },
            )) => self.verdict.count("usurped: too late"),
            // Who rotated meanwhile has made strangers of those who were signers.
            Err(RegistryError::Refused(Refused::NotASigner { .. })) => {
                self.verdict.count("usurped: too late")
            }
            Err(error) if is_excused(&error) => self.verdict.refused("usurp", &error),
            other => self.verdict.broken(format!("{what} approved names/{name}, and: {other:?}")),
        }
    }

    /// A user gives a name to something.
    pub(crate) async fn bind(&self, id: ContentId, rng: &mut fastrand::Rng) {
        let (name, at_once) = (rng.u64(..NAMES), rng.u8(..4) > 0);
        let Some((log, generation)) = self.log() else { return };
        if rng.u8(..4) == 0 {
            return self.usurp(&log, generation, name, rng).await;
        }
        let text = format!("names/{name}").parse().expect("letters and digits");
        let drafted = log.draft_bind(text, Content::Artifact(id), LIFETIME);
        self.state().proposed.entry(name).or_default().insert(id);
        let decided = match drafted {
            Ok(proposal) => self.decide(&log, &[generation], proposal, at_once).await,
            Err(error) => Err(error),
        };
        match decided {
            Ok(Some(receipt)) => {
                self.verdict.count("named");
                let mut state = self.state();
                let first = *state.bound.entry(name).or_default().entry(receipt.version).or_insert(id);
                self.verdict.promised(first == id, || {
                    format!("entry {} binds names/{name} to {first} and to {id}", receipt.version)
                });
            }
            Ok(None) => self.verdict.count("undecided"),
            Err(error) => self.verdict.refused("name", &error),
        }
    }

    /// Others decide from now on.
    pub(crate) async fn rotate(&self) {
        let Some((log, generation)) = self.log() else { return };
        let action = Action::Rotate { policy: policy(generation + 1).into() };
        let decided = match log.draft(action, LIFETIME) {
            // Those who decide until now and those who will both agree.
            Ok(proposal) => self.decide(&log, &[generation, generation + 1], proposal, true).await,
            Err(error) => Err(error),
        };
        match decided {
            Ok(Some(_)) => self.verdict.count("rotated"),
            Ok(None) => self.verdict.count("undecided"),
            Err(error) => self.verdict.refused("rotate", &error),
        }
    }

    /// A user asks what a name stands for. In peace every third is asked for, so that each is by some: it is what was decided
    /// last, and whoever has it is named, if there is anybody whom this node can know of.
    pub(crate) async fn resolve(
        &self,
        host: &Host,
        provided: &Provided,
        rng: &mut fastrand::Rng,
        in_peace: bool,
    ) {
        if !in_peace {
            return self.resolve_one(host, provided, rng.u64(..NAMES), false).await;
        }
        for name in (0..NAMES).filter(|name| (name + u64::from(host.number)) % 3 == 0) {
            self.resolve_one(host, provided, name, true).await;
        }
    }

    async fn resolve_one(&self, host: &Host, provided: &Provided, name: u64, in_peace: bool) {
        let key: Key = format!("names/{name}").parse().expect("letters and digits");
        let began = now();
        let deadline = Deadline::after(2 * BUDGET);
        let answer = match in_peace {
            true => host.index.reindex(&key, deadline).await,
            false => host.index.resolve(&key, deadline).await,
        };
        let took = now() - began;
        self.verdict.promised(took <= BUDGET + GRACE, || format!("{} took {took:?} for a name", host.number));
        let (bound, proposed) = {
            let state = self.state();
            (state.bound.get(&name).cloned().unwrap_or_default(), state.proposed.get(&name).cloned())
        };
        let last = bound.last_key_value();
        let is_owed = match last.filter(|_| in_peace) {
            Some((_, content)) => provided.is_provided(content) || self.is_kept(host, *content).await,
            None => false,
        };
        if is_owed {
            self.verdict.count("owed by name");
        }
        match answer {
            Ok(answer) => {
                let Some(record) = &answer.resolution().name else {
                    return self.verdict.broken(format!("{} answered without a name", host.number));
                };
                let decided = bound.get(&record.version);
                let is_true = match decided {
                    Some(content) => *content == record.content,
                    // Nobody has the receipt.
                    None => proposed.is_some_and(|all| all.contains(&record.content)),
                };
                self.verdict.count("resolved");
                self.verdict.promised(is_true, || {
                    format!("{} says that names/{name} is {record:?}, which was not decided", host.number)
                });
                let is_latest = last.is_none_or(|(version, _)| record.version >= *version);
                self.verdict.promised(is_latest || !in_peace, || {
                    format!("{} says {record:?} of names/{name}, and {last:?} is the last", host.number)
                });
                // A later one, of which nobody has the receipt, need not be owed.
                let is_last = last.is_some_and(|(version, _)| record.version == *version);
                let has_none = answer.resolution().providers.is_empty();
                self.verdict.promised(!(is_owed && is_last && has_none), || {
                    format!("{} knows nobody who has {last:?} of names/{name} in peace", host.number)
                });
            }
            Err(error) => {
                self.verdict.refused("resolve", &error);
                self.verdict.promised(!is_owed, || {
                    format!("{} does not know names/{name} ({last:?}) in peace: {error}", host.number)
                });
            }
        }
    }

    /// Whether there is a whole copy that this node can know of: on a server of its company, and not to be deleted.
    async fn is_kept(&self, host: &Host, content: ContentId) -> bool {
        if host.role != Role::Server {
            return false;
        }
        for server in self.hosts.servers() {
            let is_live = matches!(server.store.standing(&content), Standing::Live(_));
            if !is_live {
                continue;
            }
            match server.store.get_bytes(content, u64::MAX, soon()).await {
                Ok(_) => return true,
                Err(error) => self.verdict.refused("read of what is named", &error),
            }
        }
        false
    }

    /// A user asks who provides something. In peace the one who does is found.
    pub(crate) async fn locate(
        &self,
        host: &Host,
        provided: &Provided,
        rng: &mut fastrand::Rng,
        in_peace: bool,
    ) {
        let Some((provider, content)) = provided.pick(rng) else { return };
        let (key, began, deadline) = (Key::Content(content), now(), Deadline::after(2 * BUDGET));
        let answer = match in_peace {
            true => host.index.reindex(&key, deadline).await,
            false => host.index.resolve(&key, deadline).await,
        };
        let took = now() - began;
        self.verdict
            .promised(took <= BUDGET + GRACE, || format!("{} took {took:?} for content", host.number));
        match answer {
            Ok(answer) => {
                let is_true = |id| id == identity(provider).node_id();
                let all = &answer.resolution().providers;
                self.verdict.count("located");
                self.verdict.promised(!(in_peace && all.is_empty()), || {
                    format!("{} finds nobody who provides what {provider} does in peace", host.number)
                });
                self.verdict.promised(all.iter().all(|ranked| is_true(ranked.provider.id)), || {
                    format!("{} names {all:?} for what {provider} provides", host.number)
                });
            }
            Err(error) => {
                self.verdict.refused("locate", &error);
                self.verdict.promised(!in_peace, || {
                    format!("{} does not find what {provider} provides in peace: {error}", host.number)
                });
            }
        }
    }

    /// Compares some of what is in the log, and in the copies of some others, with what was promised.
    pub(crate) async fn sample(&self, rng: &mut fastrand::Rng) {
        let Some((log, _)) = self.log() else { return };
        let receipts: Vec<(u64, ProposalId)> =
            self.state().receipts.iter().map(|(version, proposal)| (*version, *proposal)).collect();
        for _ in 0..receipts.len().min(4) {
            self.compare(&log, receipts[rng.usize(..receipts.len())], false).await;
        }
        let hosts = self.hosts.all();
        for _ in 0..3 {
            let host = &hosts[rng.usize(..hosts.len())];
            self.compare_follower(&log, host, false).await;
        }
    }

    async fn compare(&self, log: &Registry, (version, proposal): (u64, ProposalId), in_peace: bool) {
        match log.entry(version, soon()).await {
            Ok(entry) => {
                self.verdict.count("entry compared");
                self.verdict.promised(entry.proposal().id() == proposal, || {
                    format!("entry {version} of the log is not what its receipt says")
                });
            }
            Err(error) if !in_peace && is_excused(&error) => self.verdict.refused("entry", &error),
            Err(error) => self.verdict.broken(format!("entry {version} has a receipt, and is gone: {error}")),
        }
    }

    async fn compare_follower(&self, log: &Registry, host: &Host, in_peace: bool) {
        if !host.registry.follows() {
            return;
        }
        let evidence = host.registry.evidence();
        self.verdict.promised(evidence.is_empty(), || format!("{} saw a fork: {evidence:?}", host.number));
        let head = host.registry.head();
        if head.version == 0 {
            return;
        }
        match log.entry(head.version, soon()).await {
            Ok(entry) => {
                let before = Head { version: entry.version() - 1, hash: entry.previous() };
                let is_same = before.next(entry.encoded()) == head;
                self.verdict.count("copy of the log compared");
                self.verdict.promised(is_same, || format!("{} has another log than there is", host.number));
            }
            Err(error) if !in_peace && is_excused(&error) => self.verdict.refused("entry", &error),
            Err(error) => {
                self.verdict
                    .broken(format!("{} has entry {}, and the log: {error}", host.number, head.version));
            }
        }
    }

    /// Whether everybody has all of it. If not, who.
    pub(crate) fn missing(&self) -> Vec<String> {
        let Some((log, _)) = self.log() else { return vec!["the log is not there".to_owned()] };
        let (head, last) = (log.head(), log.checkpoint());
        let is_behind =
            |host: &&Host| host.registry.head() != head || host.registry.checkpoint().text() != last.text();
        let behind = self.hosts.all();
        let behind = behind.iter().filter(is_behind);
        behind.map(|host| format!("{} is at {} of {head}", host.number, host.registry.head())).collect()
    }

    /// Compares all of it.
    pub(crate) async fn compare_all(&self) {
        let Some((log, _)) = self.log() else { return };
        let receipts = self.state().receipts.clone();
        self.verdict.add("receipts", receipts.len());
        for receipt in receipts {
            self.compare(&log, receipt, true).await;
        }
        for version in 1..=log.head().version {
            let entry = match log.entry(version, soon()).await {
                Ok(entry) => entry,
                Err(error) => {
                    self.verdict.broken(format!("entry {version} is not given in peace: {error}"));
                    continue;
                }
            };
            let is_usurped = self.state().usurped.contains(&entry.proposal().id());
            self.verdict.promised(!is_usurped, || format!("nobody who may has decided entry {version}"));
        }
        for host in self.hosts.all() {
            self.compare_follower(&log, &host, true).await;
        }
    }

    /// At the very end the log shows everybody another face, signed with its key. Nobody follows it, and everybody has both.
    pub(crate) async fn show_fork(&self) {
        let Some(owner) = self.hosts.get(OWNER) else { return };
        let mut followers = self.hosts.all();
        followers.retain(|host| host.registry.follows() && host.registry.head().version > 0);
        let before: Vec<Head> = followers.iter().map(|host| host.registry.head()).collect();
        let supervisor = Supervisor::builder("fork").inline_blocking(true).seed(1).start();
        match fork(&supervisor, owner.registry.head().version + 3).await {
            Ok(fork) => owner.links.serve(&fork, None),
            Err(error) => return self.verdict.broken(format!("there is no other face: {error}")),
        }
        // Who waits for news of the log asks again within half a minute.
        tokio::time::sleep(Duration::from_secs(90)).await;
        for (host, before) in followers.iter().zip(before) {
            let (evidence, head) = (host.registry.evidence(), host.registry.head());
            self.verdict.count("fork shown");
            self.verdict.promised(head == before, || format!("{} followed a fork to {head}", host.number));
            let has_both = evidence.iter().any(|found| found.kind == EvidenceKind::Fork);
            self.verdict.promised(has_both, || {
                format!("{} was shown a fork, and its evidence is {evidence:?}", host.number)
            });
        }
        owner.links.serve(&owner.registry, None);
        supervisor.shutdown().await;
    }
}
