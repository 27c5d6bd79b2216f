//! What was seen while a load lasted.

use std::{fmt, time::Duration};

use crate::{mib, node::Usage};

/// What a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `storage.max_rps`.
    Storage,
    /// `index.max_rps`.
    Index,
    /// Neither.
    Other,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Storage, Kind::Index, Kind::Other];

impl Kind {
    /// How much of all that is asked for is of this kind.
    pub(crate) fn share(self) -> f64 {
        match self {
            Kind::Storage => 0.7,
            Kind::Index | Kind::Other => 0.15,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Storage => "objects",
            Kind::Index => "answers of the index",
            Kind::Other => "names, providers, messages",
        })
    }
}

/// How often something was asked for, and what came of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Came {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// With a code, and when to come again.
    pub(crate) refused: u64,
    /// Not answered by the deadline of the request.
    pub(crate) late: u64,
}

pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    /// How many a second should be asked for.
    pub(crate) due: f64,
    /// By kind.
    pub(crate) came: [Came; KINDS.len()],
    pub(crate) committed: u64,
    pub(crate) not_committed: u64,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Seconds since the phase began.
    pub(crate) at: f64,
    pub(crate) usage: Usage,
    /// Bytes of memory of the other node.
    pub(crate) beside: u64,
    /// A second.
    pub(crate) answered: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Phase {
    pub(crate) fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    pub(crate) fn of(&self, kind: Kind) -> Came {
        self.came[kind as usize]
    }

    pub(crate) fn sum(&self, count: impl Fn(&Came) -> u64) -> u64 {
        self.came.iter().map(count).sum()
    }

    /// How many a second.
    pub(crate) fn rate(&self, count: impl Fn(&Came) -> u64) -> f64 {
        self.sum(count) as f64 / self.seconds()
    }

    /// How many of a kind a second.
    pub(crate) fn rate_of(&self, kind: Kind, count: impl Fn(&Came) -> u64) -> f64 {
        count(&self.of(kind)) as f64 / self.seconds()
    }

    /// How fast some bytes grow, in MiB an hour: the slope of the straight line through the samples, without the first tenth.
    pub(crate) fn growth(&self, bytes: impl Fn(&Sample) -> u64) -> f64 {
        let samples = &self.samples[self.samples.len() / 10..];
        let mean = |figure: &dyn Fn(&Sample) -> f64| {
            samples.iter().map(figure).sum::<f64>() / samples.len().max(1) as f64
        };
        let (at, memory) = (mean(&|sample| sample.at), mean(&|sample| mib(bytes(sample))));
        let together = mean(&|sample| (sample.at - at) * (mib(bytes(sample)) - memory));
        3600.0 * together / mean(&|sample| (sample.at - at).powi(2)).max(1e-9)
    }

    /// The medians of its first quarter, without the first tenth of all, and of its last.
    pub(crate) fn ends(&self) -> (Sample, Sample) {
        let count = self.samples.len();
        let quarter = (count / 4).max(1);
        let warm = (count / 10).min(count - quarter);
        (middle(&self.samples[warm..warm + quarter]), middle(&self.samples[count - quarter..]))
    }
}

/// Of each figure the middle one.
fn middle(samples: &[Sample]) -> Sample {
    let of = |figure: &dyn Fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Sample {
        at: of(&|sample| sample.at),
        usage: Usage {
            memory: of(&|sample| sample.usage.memory as f64) as u64,
            descriptors: of(&|sample| sample.usage.descriptors as f64) as u64,
            tasks: of(&|sample| sample.usage.tasks as f64) as u64,
        },
        beside: of(&|sample| sample.beside as f64) as u64,
        answered: of(&|sample| sample.answered),
        p50_ms: of(&|sample| sample.p50_ms),
        p99_ms: of(&|sample| sample.p99_ms),
    }
}
