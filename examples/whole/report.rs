//! What a run prints about itself, for whoever sees it for the first time: in groups, each under a line that says what it is.
//!
//! A line of a group is how often, and what. A run is judged by its last line, by its exit code, and by the lines that begin with
//! `BROKEN` and the checker, one for each kind of promise that was broken, printed when the first of its kind is.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    process,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    Report,
    options::CLIENTS,
    verdict::{Broken, CHECKERS, NAME_LETTERS, Seen},
    watch,
};

/// Queues that are told about, the fullest first.
const QUEUES: usize = 8;

/// How many words are said again of what was broken.
const WORDS: usize = 16;

/// A heading, and how the names of its counts begin. What fits nowhere is in the first group.
struct Group(&'static str, &'static [&'static str]);

const GROUPS: &[Group] = &[
    Group("users: what they asked of the nodes, and were given", &[]),
    Group(
        "nodes: what each did besides: its own store, the news that it heard, starts and ends",
        &[
            "damage found",
            "deleted on one node",
            "news before",
            "news ended",
            "news heard",
            "news missed",
            "news of a clock",
            "program ended",
            "provided",
            "put on one node",
            "put while",
            "queues seen",
            "read where",
            "not all read where",
            "refused where",
            "asked, and owed",
            "asked while its disk",
            "left hardly",
            "refused because its disk",
            "stopped while",
            "seen ",
            "start refused",
            "store opened",
            "tasks ",
        ],
    ),
    Group(
        "looked for: what checkers found there, or gone, as it was owed",
        &[
            "deleted and gone",
            "copy of the log compared",
            "entry compared",
            "fork shown",
            "in doubt",
            "kept through",
            "looked at all",
            "never acknowledged",
            "new in peace",
            "owed",
            "readable",
            "receipts",
            "seconds until",
            "unreadable",
        ],
    ),
    Group("faults: what was done to nodes, disks and lines", &["fault: "]),
    Group(
        "withheld: faults after which more would have been lost than is promised to survive, or that make no sense then",
        &["fault withheld: "],
    ),
    Group("lies: what the lying peer said; what is unheard met nobody who listened", &["lie"]),
];

/// What the program ends with when whoever reads what it says has gone: as a shell tells of one whom the signal for that ended.
const UNREAD: i32 = 128 + 13;

/// Prints a line. When nobody reads any more the program ends, without a word and without having kept or broken a promise: what would
/// come of the run is for nobody.
pub(crate) fn tell(what: fmt::Arguments<'_>) {
    progress_ends();
    match writeln!(io::stdout(), "{what}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(UNREAD),
        written => written.expect("standard output takes what is printed"),
    }
}

/// Whether the last line of the terminal tells how far a run is.
static HAS_PROGRESS: AtomicBool = AtomicBool::new(false);

/// Says how far a run is, for whoever sits before a terminal: it takes the better part of a minute, and says nothing meanwhile.
pub(crate) fn progress(elapsed: Duration) {
    let terminal = io::stderr();
    if terminal.is_terminal() {
        HAS_PROGRESS.store(true, Ordering::Relaxed);
        let (minutes, seconds) = (elapsed.as_secs() / 60, elapsed.as_secs() % 60);
        // A terminal that is gone is told nothing.
        let _ = write!(&terminal, "\r{minutes} min {seconds:02} s of virtual time done ");
    }
}

/// Whatever comes next begins a line.
pub(crate) fn progress_ends() {
    if HAS_PROGRESS.swap(false, Ordering::Relaxed) {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// Everything about a run that is the same whenever it is repeated, but the promises that were broken.
pub(crate) fn print(report: &Report) {
    let Seen { counts, refusals, .. } = &report.seen;
    let mut groups: Vec<Vec<(&String, &u64)>> = vec![Vec::new(); GROUPS.len()];
    for (what, times) in counts {
        let at = GROUPS.iter().position(|Group(_, names)| names.iter().any(|name| what.starts_with(name)));
        groups[at.unwrap_or(0)].push((what, times));
    }
    for (Group(heading, _), counts) in GROUPS.iter().zip(&groups) {
        if !counts.is_empty() {
            tell!("{heading}");
        }
        counts.iter().for_each(|(what, times)| tell!("  {times:>9}  {what}"));
    }
    tell!(
        "refused: calls that were answered with a reason and not done, by what the caller is told about it"
    );
    for ((what, kind), times) in refusals {
        tell!("  {times:>9}  refused: {what}, {kind}");
    }
    print_levels(&report.seen);
    tell!("promises: how often each checker held what it saw against what was promised, and found it kept");
    for (checker, what) in CHECKERS {
        tell!("  {:>9}  {checker}: {what}", report.seen.kept.get(*checker).unwrap_or(&0));
    }
    match report.converged {
        Some(time) => {
            tell!("everything was as it should be {} s after {}", time.as_secs(), report.seen.before_peace());
        }
        None => tell!("not everything became as it should be"),
    }
}

/// What is bounded, and how near it came to that.
fn print_levels(seen: &Seen) {
    let mut queues: Vec<_> = seen.queues.iter().filter(|(_, level)| level.used > 0).collect();
    queues.sort_by(|(_, one), (_, other)| other.share().total_cmp(&one.share()));
    tell!(
        "queues: the fullest of {}; the most that waited at once on any node, of how much may",
        seen.queues.len()
    );
    for (name, level) in queues.iter().take(QUEUES) {
        tell!("  {:>9}  of {}: {name}", level.used, level.max);
    }
    tell!("bounded: what a node may hold at most; the most that any held, of how much it may");
    for (name, level) in &seen.levels {
        tell!("  {:>9}  of {}: {name}", level.used, level.max);
    }
}

/// What the process took, which is not the same every time. Counted from where the run began: what runs before it left behind is not
/// its own. Says whether that is no more than so many nodes may take, and whether what runs leave behind stays as it is.
pub(crate) fn print_memory(memory: &mut Memory, nodes: u8) -> bool {
    let Some((after, peak)) = watch::process_memory() else {
        tell!("memory: not measured, as the system does not tell");
        return true;
    };
    let most = watch::memory_max(nodes + CLIENTS + 1);
    let took = memory.before.map(|before| peak.saturating_sub(before));
    match took {
        Some(took) => {
            tell!("memory: the run took {} MB at most, of {} that are allowed", took >> 20, most >> 20)
        }
        None => tell!("memory: not measured, as the system does not forget what was taken before"),
    }
    // The first leaves what is kept for the next.
    match memory.left {
        None => tell!("memory: {} MB are left after it, which later runs are compared with", after >> 20),
        Some(first) => tell!(
            "memory: {} MB are left after it, {} more than after the first run, of {} that are allowed",
            after >> 20,
            after.saturating_sub(first) >> 20,
            (most / 2) >> 20
        ),
    }
    let grown = after.saturating_sub(*memory.left.get_or_insert(after));
    took.is_none_or(|took| took <= most) && grown <= most / 2
}

/// What the process took before a run, if the system can be asked to count from there, and what was left after the first.
#[derive(Default)]
pub(crate) struct Memory {
    before: Option<u64>,
    left: Option<u64>,
}

impl Memory {
    /// A run begins.
    pub(crate) fn begin(&mut self) {
        self.before = watch::forget_peak().then(watch::process_memory).flatten().map(|(now, _)| now);
    }
}

/// As much of it as reminds of the line that has all; names of content and nodes say nothing there.
fn first_words(what: &str) -> String {
    let short = |word: &str| match word.char_indices().nth(NAME_LETTERS) {
        Some((end, _)) => format!("{}...", &word[..end]),
        None => word.to_owned(),
    };
    let words: Vec<String> = what.split(' ').take(WORDS).map(short).collect();
    words.join(" ")
}

/// How many promises were broken, and those that were so more than once: the first of each kind stands above.
pub(crate) fn print_broken(seen: &Seen) {
    let mut by: BTreeMap<&str, u64> = BTreeMap::new();
    for Broken { by: checker, what, times, first, last, .. } in &seen.broken {
        *by.entry(checker).or_default() += times;
        if *times > 1 {
            let (first, last) = (first.as_secs_f64(), last.as_secs_f64());
            let words = first_words(what);
            tell!("broken {times} times, {checker}: first at {first:.2} s and last at {last:.2} s, {words}");
        }
    }
    let by: Vec<String> = by.iter().map(|(checker, times)| format!("{checker} {times}")).collect();
    tell!(
        "promises broken: {} ({}); kinds: {}, and the first of each stands above as BROKEN",
        seen.broken_count,
        by.join(", "),
        seen.broken.len()
    );
}
