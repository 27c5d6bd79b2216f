//! How many workers a machine needs: what a key is that nobody set and that depends on the cores.
//!
//! Workers of a pool should be busy seven tenths of the time: with `λ` jobs a second that take `E` each, `M ≥ ⌈λ·E / 0.7⌉` of
//! them ([`ron_index::workers_for`]). How many jobs come is not known before they do, but how many can be done is: the cores,
//! seven tenths busy, do `0.7 · cores / work` a second. So a pool whose jobs also wait needs `cores · (work + wait) / work`.
//! More would only queue for the processor; fewer would leave it idle while all of them wait. Below what the libraries have as
//! their default no pool goes, because latencies were measured with those.

use std::{num::NonZeroUsize, sync::OnceLock, thread, time::Duration};

use super::Config;

/// What a lookup works and waits: five milliseconds, and forty for peers.
const LOOKUP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(40));

/// A mebibyte is hashed in one millisecond, and comes from a disk in three or is written to its cache in one.
const READ: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(3));
const WRITE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(1));

/// Cores that this process may use, as they were when it began: settings that are read again are sized as before.
pub(super) fn cores() -> NonZeroUsize {
    static CORES: OnceLock<NonZeroUsize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// Workers that keep `cores` seven tenths busy, and no fewer than `least`.
fn workers(cores: NonZeroUsize, (work, wait): (Duration, Duration), least: NonZeroUsize) -> NonZeroUsize {
    let per_second = 0.7 * cores.get() as f64 / work.as_secs_f64();
    let needed = ron_index::workers_for(per_second, work, wait, 0.0);
    NonZeroUsize::new(needed).map_or(least, |needed| needed.max(least))
}

/// For work that only computes: half of the cores, and the other half is for everything else.
fn computing(cores: NonZeroUsize, least: NonZeroUsize) -> NonZeroUsize {
    NonZeroUsize::new(cores.get() / 2).map_or(least, |half| half.max(least))
}

/// The keys that are sized, and their values on a machine with so many cores.
pub(super) fn table(cores: NonZeroUsize) -> toml::Table {
    let least = Config::default();
    let sized = [
        ("node", "threads", cores),
        ("dht", "workers", workers(cores, LOOKUP, least.dht.workers)),
        ("overlay", "engines", computing(cores, least.overlay.engines)),
        ("overlay", "checkers", computing(cores, least.overlay.checkers)),
        ("storage", "get_workers", workers(cores, READ, least.storage.get_workers)),
        ("storage", "put_workers", workers(cores, WRITE, least.storage.put_workers)),
        ("index", "workers", workers(cores, LOOKUP, least.index.workers)),
    ];
    let mut table = toml::Table::new();
    for (section, key, value) in sized {
        let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.insert(key.to_owned(), i64::try_from(value.get()).unwrap_or(i64::MAX).into());
        }
    }
    table
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;

    fn sized(cores: usize) -> Vec<i64> {
        let table = table(NonZeroUsize::new(cores).unwrap());
        let keys = [
            ("node", "threads"),
            ("dht", "workers"),
            ("overlay", "engines"),
            ("overlay", "checkers"),
            ("storage", "get_workers"),
            ("storage", "put_workers"),
            ("index", "workers"),
        ];
        keys.map(|(section, key)| table[section][key].as_integer().unwrap()).to_vec()
    }

    #[test]
    fn workers_follow_the_cores() {
        // Small machines have what the libraries have.
        assert_eq!(sized(1), [1, 32, 2, 2, 8, 4, 128]);
        assert_eq!(sized(2), [2, 32, 2, 2, 8, 4, 128]);
        // 45 ms / 5 ms = 9 lookups, 4 ms / 1 ms = 4 reads and 2 ms / 1 ms = 2 writes for each core.
        assert_eq!(sized(8), [8, 72, 4, 4, 32, 16, 128]);
        assert_eq!(sized(64), [64, 576, 32, 32, 256, 128, 576]);
    }

    /// The rule is that of the load which the cores can bear.
    #[test]
    fn cores_that_are_busy_keep_the_workers_busy() {
        for cores in [1, 3, 8, 100] {
            let cores = NonZeroUsize::new(cores).unwrap();
            let (work, wait) = LOOKUP;
            let found = workers(cores, LOOKUP, NonZeroUsize::MIN).get() as f64;
            let per_second = 0.7 * cores.get() as f64 / work.as_secs_f64();
            let busy = per_second * (work + wait).as_secs_f64() / found;
            assert!((0.6..=0.7 + 1e-9).contains(&busy), "{cores} cores, {found} workers, {busy} busy");
        }
    }
}
