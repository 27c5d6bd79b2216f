//! Objects on many nodes: who the others are, found through the network, and what is plugged into what.

use std::{error::Error, num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Deadline, Metrics, NodeId, Snapshot, Supervisor,
    disk::RealDisk,
    net::{BoxFuture, Contact, Endpoint, Identity, rpc::PeersSettings},
    now,
};
use ron_dht::Dht;
use ron_storage::{
    Store,
    http::{Kept, Wishes},
    members::{Admission, Candidates, Members},
    peers,
    repair::Keeping,
};
use tokio::time::Instant;

use crate::{
    config::{Config, KeepingSection},
    providers::others,
};

/// Others that are enough to find: members name each other.
const ENOUGH: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// How often the DHT is asked. It is for those who know nobody; the others meet whom they know.
const SEARCH_EVERY: Duration = Duration::from_secs(60);

/// Nodes that keep objects together, this one among them. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Company {
    pub(crate) keeping: Keeping,
    pub(crate) kept: Kept,
    members: Members,
    wishes: Snapshot<Wishes>,
}

impl Company {
    /// Begins, if the settings name a secret or others. `own` is the key of this node.
    pub(crate) fn start(
        config: &Config,
        data: Option<&Path>,
        own: Identity,
        (endpoint, dht, store, blobs): (&Endpoint, &Dht, &Store, &peers::Links),
        metrics: Metrics,
        host: &Supervisor,
    ) -> Result<Option<Company>, Box<dyn Error>> {
        let section = &config.keeping;
        let Some(admission) = section.admission()? else { return Ok(None) };
        // Whoever knows the secret speaks for all that is kept under it, and what a lost node put is still theirs.
        let (owner, rendezvous) = match &admission {
            Admission::Secret(secret) => (secret.owner(), Some(secret.rendezvous())),
            Admission::Listed(_) => (own, None),
        };
        let candidates = ByDht {
            dht: dht.clone(),
            seeds: config.seeds()?,
            rendezvous,
            searched: Snapshot::new(None),
            is_told: Snapshot::new(false),
        };
        let members = Members::builder(admission).settings(section.of_members()).candidates(candidates);
        let members = members
            .external(config.net.external.iter().copied())
            .links(config.links(PeersSettings::default()));
        let members = match data.filter(|_| !config.storage.memory) {
            Some(data) => members.data(Arc::new(RealDisk::open(data)?), "members"),
            None => members,
        };
        let members = members.start(endpoint, host)?;
        let wishes = section.wishes()?;
        let nodes = Arc::new(members.clone());
        let keeping = Keeping::builder(store, endpoint.node_id(), Arc::new(blobs.clone()), nodes)
            .settings(section.settings())
            .answering(KeepingSection::answering(&wishes))
            .metrics(metrics)
            .start(host)?;
        let wishes = Snapshot::new(wishes);
        let kept = Kept::new(&keeping, Arc::new(owner), wishes.clone());
        Ok(Some(Company { keeping, kept, members, wishes }))
    }

    /// Who may push here, and what is said to that.
    pub(crate) fn rules(&self, rules: peers::Rules) -> peers::Rules {
        let members = self.members.clone();
        let trusts = Arc::new(move |node: &NodeId| members.contains(node));
        peers::Rules { trusts: Some(trusts), judge: self.keeping.judge(), ..rules }
    }

    /// Goes on with other settings.
    pub(crate) fn reload(&self, section: &KeepingSection) -> Result<(), Box<dyn Error>> {
        let wishes = section.wishes()?;
        self.members.reload(section.of_members(), section.contacts()?)?;
        self.keeping.reload(section.settings(), KeepingSection::answering(&wishes))?;
        self.wishes.replace(wishes);
        Ok(())
    }
}

/// Finds nodes with the same secret: those that this one begins with, and whoever the DHT says is at the rendezvous. There
/// anybody can say to be; whoever is met has to prove it.
struct ByDht {
    dht: Dht,
    seeds: Vec<Contact>,
    rendezvous: Option<ContentId>,
    searched: Snapshot<Option<Instant>>,
    is_told: Snapshot<bool>,
}

impl Candidates for ByDht {
    fn find(&self, deadline: Deadline) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(async move {
            let mut found = self.seeds.clone();
            let Some(rendezvous) = self.rendezvous else { return found };
            let is_due = self.searched.load().is_none_or(|at| at.elapsed() >= SEARCH_EVERY);
            if !is_due {
                return found;
            }
            // Said until somebody keeps it; from then on the DHT says it again by itself.
            if !*self.is_told.load() {
                let told = self.dht.provide(rendezvous, deadline).await;
                self.is_told.replace(told.is_ok_and(|told| told.kept > 0));
            }
            if let Some(others) = others(&self.dht, rendezvous, ENOUGH, deadline).await {
                found.extend(others);
                self.searched.replace(Some(now()));
            }
            found
        })
    }
}
