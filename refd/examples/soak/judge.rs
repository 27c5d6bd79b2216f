//! What has to hold of what was seen.

use crate::{
    mib,
    node::Usage,
    phase::{Came, KINDS, Kind, Phase, Sample},
};

/// What may be between the beginning and the end of a phase: memory, descriptors and tasks as differences, the p99 as a ratio.
const MIB_MAX: f64 = 4.0;
const MORE_MAX: u64 = 8;
const LATENCY_MAX: f64 = 2.0;

/// What the crowd may cost in memory beyond what the node had before it came, while it is there and when it has gone: each of its
/// connections has buffers.
const CROWD_MIB_MAX: f64 = 64.0;

/// How fast memory may grow in a phase that is long enough to tell, in MiB an hour.
const GROWTH_MAX: f64 = 6.0;
const LONG: f64 = 20.0 * 60.0;

/// How much of what is due has to be asked for, and answered while it is not too much.
const DUE_MIN: f64 = 0.98;

/// What a node answers a second where more is asked than it may, as a ratio of what it may.
const LIMITED: std::ops::RangeInclusive<f64> = 0.95..=1.05;

pub(crate) struct Seen<'a> {
    pub(crate) steady: &'a Phase,
    pub(crate) beyond: &'a Phase,
    /// Requests a second that it was told to answer in the second.
    pub(crate) allowed: f64,
    /// What it used when whoever asked had gone.
    pub(crate) rest: Usage,
}

/// A table in Markdown.
pub(crate) fn print(seen: &Seen<'_>) {
    let phases = [seen.steady, seen.beyond];
    let row = |what: &str, of: &dyn Fn(&Phase) -> String| {
        println!("| {what} | {} |", phases.map(of).join(" | "));
    };
    println!();
    row("", &|phase| format!("{}, {:.0} min", phase.name, phase.seconds() / 60.0));
    println!("|---|--:|--:|");
    row("due and asked a second", &|phase| format!("{:.0}, {:.0}", phase.due, phase.rate(|came| came.asked)));
    for kind in KINDS {
        row(&format!("{kind}: asked, answered, refused a second"), &|phase| {
            let of = |count: fn(&Came) -> u64| phase.rate_of(kind, count);
            format!(
                "{:.0}, {:.0}, {:.0}",
                of(|came| came.asked),
                of(|came| came.answered),
                of(|came| came.refused)
            )
        });
    }
    row("too late by their own deadline", &|phase| phase.sum(|came| came.late).to_string());
    let ends = |of: &dyn Fn(&Sample) -> String| {
        let of = |phase: &Phase| {
            let (first, last) = phase.ends();
            format!("{}, {}", of(&first), of(&last))
        };
        phases.map(of).join(" | ")
    };
    println!(
        "| MiB, first and last quarter | {} |",
        ends(&|sample| format!("{:.1}", mib(sample.usage.memory)))
    );
    row("its slope, MiB an hour", &|phase| format!("{:+.1}", phase.growth(|sample| sample.usage.memory)));
    println!("| MiB of the other node | {} |", ends(&|sample| format!("{:.1}", mib(sample.beside))));
    row("its slope, MiB an hour", &|phase| format!("{:+.1}", phase.growth(|sample| sample.beside)));
    println!("| descriptors | {} |", ends(&|sample| sample.usage.descriptors.to_string()));
    println!("| tasks | {} |", ends(&|sample| sample.usage.tasks.to_string()));
    println!("| p50 ms | {} |", ends(&|sample| format!("{:.2}", sample.p50_ms)));
    println!("| p99 ms | {} |", ends(&|sample| format!("{:.2}", sample.p99_ms)));
    row("entries committed, and not", &|phase| format!("{}, {}", phase.committed, phase.not_committed));
    println!(
        "\nafter the crowd: {:.1} MiB, {} descriptors, {} tasks",
        mib(seen.rest.memory),
        seen.rest.descriptors,
        seen.rest.tasks
    );
}

/// What does not hold, in words.
pub(crate) fn wrongs(seen: &Seen<'_>) -> Vec<String> {
    let mut wrongs = Vec::new();
    let mut holds = |is_so: bool, what: String| {
        if !is_so {
            wrongs.push(what);
        }
    };
    for phase in [seen.steady, seen.beyond] {
        let ((first, last), name) = (phase.ends(), phase.name);
        let grows = |first: u64, last: u64, slope: f64| {
            mib(last) > mib(first) + MIB_MAX || (phase.seconds() >= LONG && slope > GROWTH_MAX)
        };
        let slope = phase.growth(|sample| sample.usage.memory);
        holds(!grows(first.usage.memory, last.usage.memory, slope), format!("{name}: memory grew"));
        let slope = phase.growth(|sample| sample.beside);
        holds(!grows(first.beside, last.beside, slope), format!("{name}: memory of the other node grew"));
        holds(
            last.usage.descriptors <= first.usage.descriptors + MORE_MAX,
            format!("{name}: descriptors grew"),
        );
        holds(last.usage.tasks <= first.usage.tasks + MORE_MAX, format!("{name}: tasks grew"));
        holds(last.p99_ms <= first.p99_ms * LATENCY_MAX + 1.0, format!("{name}: the p99 grew"));
        holds(
            phase.rate(|came| came.asked) >= phase.due * DUE_MIN,
            format!("{name}: not all of what was due was asked for"),
        );
    }
    let steady = seen.steady;
    holds(
        steady.rate(|came| came.answered) >= steady.due * DUE_MIN
            && steady.sum(|came| came.refused + came.late) == 0,
        "it did not answer all of what it can do".into(),
    );
    holds(steady.not_committed == 0, "an entry was not committed while the node could keep up".into());
    for kind in [Kind::Storage, Kind::Index] {
        let answered = seen.beyond.rate_of(kind, |came| came.answered) / (seen.allowed * kind.share());
        holds(LIMITED.contains(&answered), format!("{kind}: it answered {answered:.2} of what it may"));
    }
    holds(
        seen.beyond.of(Kind::Other).refused == 0,
        "it refused what no limit of this second half is about".into(),
    );
    holds(steady.committed > 0, "no entry was committed while the node could keep up".into());
    let before = steady.ends().1.usage;
    let (first, last) = seen.beyond.ends();
    let most = first.usage.memory.max(last.usage.memory).max(seen.rest.memory);
    holds(mib(most) <= mib(before.memory) + CROWD_MIB_MAX, "the crowd costs too much memory".into());
    holds(
        seen.rest.descriptors <= before.descriptors + MORE_MAX && seen.rest.tasks <= before.tasks + MORE_MAX,
        "what the crowd opened is not closed".into(),
    );
    wrongs
}
