//! What commits durably, behind one small face: those who would be used in place of a registry, and the least that one
//! must do.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{Deadline, Supervisor, disk::RealDisk, net::Identity};
use ron_registry::{
    Action, Approval, Content, Name, Policy, Proposal, Registry, Signer,
    store::{JournalStore, JournalStoreSettings},
};

use crate::measure::Outcome;

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod floor;
#[cfg(feature = "sqlite")]
mod sqlite;

/// What each commit holds.
pub(crate) const PAYLOAD_BYTES: usize = 1024;

pub(crate) const ORIGIN: &str = "example.com/bench";

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

pub(crate) fn payload(number: u64) -> Bytes {
    let mut bytes = vec![0; PAYLOAD_BYTES];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

/// Those that are compared with ours.
pub(crate) enum Peer {
    Floor(floor::Floor),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Sqlite),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Etcd),
}

impl Peer {
    /// `clients` is how many will ask at once.
    #[cfg_attr(not(feature = "etcd"), allow(clippy::unused_async, reason = "etcd is connected to"))]
    pub(crate) async fn open(name: &str, dir: &Path, clients: usize) -> Outcome<Self> {
        let _ = clients;
        Ok(match name {
            "floor" => Peer::Floor(floor::Floor::open(dir)?),
            #[cfg(feature = "sqlite")]
            "SQLite" => Peer::Sqlite(sqlite::Sqlite::open(dir)?),
            #[cfg(feature = "etcd")]
            "etcd" => Peer::Etcd(etcd::Etcd::open(dir, clients).await?),
            other => return Err(format!("there is no {other}").into()),
        })
    }

    /// The process that does the work, if it is another one.
    pub(crate) fn server(&self) -> Option<u32> {
        match self {
            Peer::Floor(_) => None,
            #[cfg(feature = "sqlite")]
            Peer::Sqlite(_) => None,
            #[cfg(feature = "etcd")]
            Peer::Etcd(etcd) => Some(etcd.server()),
        }
    }

    pub(crate) async fn put(&self, number: u64) -> Outcome<()> {
        match self {
            Peer::Floor(floor) => floor.put(payload(number)).await,
            #[cfg(feature = "sqlite")]
            Peer::Sqlite(sqlite) => sqlite.put(number, payload(number)).await,
            #[cfg(feature = "etcd")]
            Peer::Etcd(etcd) => etcd.put(number, payload(number)).await,
        }
    }

    /// Reads the head, and replaces it if it is still the same: whether it was.
    pub(crate) async fn cas(&self, number: u64) -> Outcome<bool> {
        match self {
            Peer::Floor(floor) => floor.cas(payload(number)).await,
            #[cfg(feature = "sqlite")]
            Peer::Sqlite(sqlite) => sqlite.cas(payload(number)).await,
            #[cfg(feature = "etcd")]
            Peer::Etcd(etcd) => etcd.cas(payload(number)).await,
        }
    }
}

/// Who decides: three people, of whom `needed` must agree.
pub(crate) struct People {
    people: Vec<Identity>,
}

impl People {
    pub(crate) fn new(needed: usize) -> Self {
        People { people: (0..needed).map(|seed| Identity::from_seed(&[seed as u8 + 1; 32])).collect() }
    }

    pub(crate) fn policy(&self) -> Outcome<Policy> {
        let signer = |(at, person): (usize, &Identity)| Signer {
            name: format!("p{at}"),
            key: person.public_key(),
            expires: None,
        };
        let needed = u32::try_from(self.people.len())?;
        Ok(Policy::of(needed, self.people.iter().enumerate().map(signer).collect())?)
    }

    pub(crate) fn approve(&self, proposal: &Proposal) -> Vec<Approval> {
        self.people.iter().map(|person| proposal.approve(person, proposal.expires())).collect()
    }
}

/// A proposal that binds a new name, for the first policy of a log.
pub(crate) fn proposal(number: u64, expires: u64) -> Outcome<Proposal> {
    let name: Name = format!("n/{number}").parse()?;
    let action = Action::Bind { name, content: Content::Payload(payload(number)), prior: 0 };
    Ok(Proposal::new(ORIGIN, 1, expires, action, None)?)
}

/// Proposals with their approvals, made on both cores.
pub(crate) fn prepare<T: Send>(count: u64, make: impl Fn(u64) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    let half = count / 2;
    let range = |range: std::ops::Range<u64>| range.map(&make).collect::<Outcome<Vec<T>>>();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| range(0..half));
        let mut second = range(half..count)?;
        let mut all = first.join().map_err(|_| "it panicked")??;
        all.append(&mut second);
        Ok(all)
    })
}

/// When what is prepared expires: in an hour.
pub(crate) fn in_an_hour() -> Outcome<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_millis())? + 3_600_000)
}

/// A registry on a directory that has begun, with as many signers as must agree.
pub(crate) async fn registry(dir: &Path, people: &People, host: &Supervisor) -> Outcome<Registry> {
    let disk = Arc::new(RealDisk::open(dir)?);
    let store = JournalStore::open(host, disk, Path::new("log"), JournalStoreSettings::default()).await?;
    let registry = Registry::builder(ORIGIN, [7; 32]).start(Arc::new(store), host).await?;
    registry.found(people.policy()?, soon()).await?;
    Ok(registry)
}
