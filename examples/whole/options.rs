//! What a run is made of: how large, how long, out of which seed, and what goes wrong in it.

use std::{collections::BTreeSet, error::Error, fmt, str::FromStr, time::Duration};

/// Nodes that keep nothing for others and look for what others have. They come after the servers.
pub(crate) const CLIENTS: u8 = 2;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Two groups of nodes do not hear each other.
    Partition,
    /// One group hears the other, and not the other way round.
    OneWay,
    /// A program dies; what it wrote is there.
    Kill,
    /// A machine loses power: what was not synced is kept, lost or torn.
    Tear,
    /// A machine loses power and its disk.
    Wipe,
    /// A node is asked to stop, in the middle of its work.
    Stop,
    /// A disk takes its time.
    SlowDisk,
    /// A disk is full.
    FullDisk,
    /// A bit of an object flips on a disk.
    Rot,
    /// A clock jumps, by hours.
    Clock,
    /// A line loses a third of what is sent.
    Lossy,
    /// A node lies: wrong bytes, forged records, junk.
    Hostile,
    /// Ten times the usual callers ask one node.
    Overload,
}

impl Fault {
    pub(crate) const ALL: [Fault; 13] = [
        Fault::Partition,
        Fault::OneWay,
        Fault::Kill,
        Fault::Tear,
        Fault::Wipe,
        Fault::Stop,
        Fault::SlowDisk,
        Fault::FullDisk,
        Fault::Rot,
        Fault::Clock,
        Fault::Lossy,
        Fault::Hostile,
        Fault::Overload,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Partition => "partition",
            Fault::OneWay => "oneway",
            Fault::Kill => "kill",
            Fault::Tear => "tear",
            Fault::Wipe => "wipe",
            Fault::Stop => "stop",
            Fault::SlowDisk => "slowdisk",
            Fault::FullDisk => "fulldisk",
            Fault::Rot => "rot",
            Fault::Clock => "clock",
            Fault::Lossy => "lossy",
            Fault::Hostile => "hostile",
            Fault::Overload => "overload",
        }
    }

    /// `crash` is every way of losing a node, `disk` every way in which a disk is bad.
    fn named(name: &str) -> Result<Vec<Fault>, String> {
        match name {
            "crash" => return Ok(vec![Fault::Kill, Fault::Tear, Fault::Wipe]),
            "disk" => return Ok(vec![Fault::SlowDisk, Fault::FullDisk, Fault::Rot]),
            _ => {}
        }
        let known = || Fault::ALL.map(Fault::name).join(", ");
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        found.map(|fault| vec![fault]).ok_or_else(|| {
            format!("{name:?} is no fault; there are {}, crash and disk for several, and none", known())
        })
    }
}

/// A rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// What is acknowledged is not synced.
    SkipFsync,
    /// What a disk or a peer gives is not verified.
    SkipVerify,
    /// What was queued when a node was asked to stop is forgotten.
    DropOnDrain,
    /// Lanes take whatever comes.
    UnboundedLane,
    /// A delete is not remembered.
    ForgetTombstone,
}

impl Plant {
    pub(crate) const ALL: [Plant; 5] = [
        Plant::SkipFsync,
        Plant::SkipVerify,
        Plant::DropOnDrain,
        Plant::UnboundedLane,
        Plant::ForgetTombstone,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Plant::SkipFsync => "skip-fsync",
            Plant::SkipVerify => "skip-verify",
            Plant::DropOnDrain => "drop-on-drain",
            Plant::UnboundedLane => "unbounded-lane",
            Plant::ForgetTombstone => "forget-tombstone",
        }
    }

    fn named(name: &str) -> Result<Plant, String> {
        let found = Plant::ALL.into_iter().find(|plant| plant.name() == name);
        found.ok_or_else(|| {
            format!("{name:?} is no planted bug; there are {}", Plant::ALL.map(Plant::name).join(", "))
        })
    }

    /// Words of the checkers of that rule, of which one must notice it.
    pub(crate) fn noticed_by(self) -> &'static [&'static str] {
        match self {
            Plant::SkipFsync => &[
                "and has it no more",
                "is owed, and",
                "has a receipt, and is gone",
                "has another log than there is",
                "and the log:",
            ],
            Plant::SkipVerify => &["wrong bytes"],
            Plant::DropOnDrain => &["dropped a put that it had taken in"],
            Plant::UnboundedLane => &["and takes"],
            Plant::ForgetTombstone => &["was deleted"],
        }
    }

    /// Plants it until what is returned is dropped.
    pub(crate) fn plant(self) -> Vec<ron_core::planted::Planted> {
        use ron_core::planted as core;
        use ron_storage::planted as storage;
        match self {
            Plant::SkipFsync => {
                vec![core::plant(core::Bug::MissingSync), storage::plant(storage::Bug::NoSync)]
            }
            Plant::SkipVerify => vec![storage::plant(storage::Bug::NoVerify)],
            Plant::DropOnDrain => vec![core::plant(core::Bug::DrainDrops)],
            Plant::UnboundedLane => vec![core::plant(core::Bug::UnboundedLane)],
            Plant::ForgetTombstone => vec![storage::plant(storage::Bug::NoTombstone)],
        }
    }
}

/// What is said of a run while it goes on, besides promises that are broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Log {
    #[default]
    Nothing,
    /// Faults when they begin and end, and what is missing in peace.
    Faults,
    /// Every refusal, every delete and every promise that is broken once more, too.
    All,
}

/// What one run is. The same options are the same run, to the last byte on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    /// Servers; two clients and a liar come besides.
    pub(crate) nodes: u8,
    pub(crate) minutes: u32,
    /// Nothing goes wrong after this many seconds.
    pub(crate) until: Option<u64>,
    pub(crate) faults: BTreeSet<Fault>,
    pub(crate) plant: Option<Plant>,
    pub(crate) log: Log,
}

impl Options {
    /// How long things would go wrong if nothing ended them before.
    pub(crate) fn all_trouble(&self) -> Duration {
        Duration::from_secs(60) * self.minutes
    }

    /// How long things go wrong.
    pub(crate) fn trouble(&self) -> Duration {
        let all = self.all_trouble();
        self.until.map_or(all, |until| all.min(Duration::from_secs(until)))
    }

    /// Whether something must go wrong for a run to say anything. Of one that is cut short that is not asked: it is to show what broke
    /// in it.
    pub(crate) fn wants_faults(&self) -> bool {
        !self.faults.is_empty() && self.until.is_none()
    }
}

impl fmt::Display for Options {
    /// As arguments that ask for the same again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { seed, nodes, minutes, until, faults, plant, .. } = self;
        write!(f, "--seed {seed} --nodes {nodes} --minutes {minutes}")?;
        if let Some(until) = until {
            write!(f, " --until {until}")?;
        }
        if faults.len() < Fault::ALL.len() {
            let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
            write!(f, " --only {}", if names.is_empty() { "none".to_owned() } else { names.join(",") })?;
        }
        plant.map_or(Ok(()), |plant| write!(f, " --plant {}", plant.name()))
    }
}

/// What is asked of the program.
pub(crate) struct Asked {
    pub(crate) options: Options,
    /// How many seeds, one after the other.
    pub(crate) seeds: Option<u64>,
    /// Each of them twice, and compared.
    pub(crate) twice: bool,
    /// Every planted bug, until it is found.
    pub(crate) plants: bool,
    /// Every seed that once failed.
    pub(crate) regressions: bool,
    /// Those of them that take long, too.
    pub(crate) long: bool,
}

/// Runs that once failed, see `seeds.md`.
const REGRESSIONS: &[&str] = &[
    "--seed 1 --nodes 10 --minutes 1 --only none",
    "--seed 1 --nodes 10 --minutes 2",
    "--seed 7 --nodes 10 --minutes 1",
    "--seed 12 --nodes 10 --minutes 1",
    "--seed 23 --nodes 10 --minutes 2",
    "--seed 35 --nodes 10 --minutes 2",
];

/// Those that take longer, most of them half a minute and more each: of ten nodes and two minutes, and of twenty and ten.
const LONG_REGRESSIONS: &[&str] = &[
    "--seed 29 --nodes 10 --minutes 2",
    "--seed 36 --nodes 10 --minutes 2",
    "--seed 37 --nodes 10 --minutes 2",
    "--seed 39 --nodes 10 --minutes 2",
    "--seed 40 --nodes 10 --minutes 2",
    "--seed 1002 --nodes 20 --minutes 10",
    "--seed 5000 --nodes 20 --minutes 10",
    "--seed 5006 --nodes 20 --minutes 10",
    "--seed 5010 --nodes 20 --minutes 10",
    "--seed 5019 --nodes 20 --minutes 10",
    "--seed 5023 --nodes 20 --minutes 10",
    "--seed 5025 --nodes 20 --minutes 10",
    "--seed 5035 --nodes 20 --minutes 10",
    "--seed 5036 --nodes 20 --minutes 10",
    "--seed 5043 --nodes 20 --minutes 10",
    "--seed 5057 --nodes 20 --minutes 10",
    "--seed 5083 --nodes 20 --minutes 10",
    "--seed 5088 --nodes 20 --minutes 10",
    "--seed 5094 --nodes 20 --minutes 10",
    "--seed 7030 --nodes 20 --minutes 10",
    "--seed 8009 --nodes 20 --minutes 10",
    "--seed 8017 --nodes 20 --minutes 10",
    "--seed 9004 --nodes 20 --minutes 10",
    "--seed 9008 --nodes 20 --minutes 10",
    "--seed 9081 --nodes 20 --minutes 10",
    "--seed 9111 --nodes 20 --minutes 10",
];

/// What may be said besides `--regressions`.
const OF_REGRESSIONS: &[&str] = &["--regressions", "--long", "--twice", "--log", "--log-all"];

impl Asked {
    /// The runs that are asked for, one after the other.
    pub(crate) fn runs(&self) -> Result<Vec<Options>, Box<dyn Error>> {
        if !self.regressions {
            let seeds = self.options.seed..self.options.seed + self.seeds.unwrap_or(1);
            return Ok(seeds.map(|seed| Options { seed, ..self.options.clone() }).collect());
        }
        let long = if self.long { LONG_REGRESSIONS } else { &[] };
        let all = REGRESSIONS.iter().chain(long).map(|words| {
            let asked = parse(words.split(' ').map(str::to_owned))?;
            Ok(Options { log: self.options.log, ..asked.options })
        });
        all.collect()
    }
}

pub(crate) const USAGE: &str = "\
Runs whole nodes in one process, on a simulated network, disk and clock, out of one seed; lets things go wrong; and holds what the
nodes do against what they promise. The same options are the same run.

  whole --seed 1 --minutes 10          twenty nodes, ten virtual minutes; about a minute of a core
  whole --quick                        ten nodes, two minutes, twice
  whole --seed 1 --seeds 100           a hundred runs, and which of them failed
  whole --seed 7 --until 30 --log      what led to a failure that shows within 30 s of trouble

WHICH RUN
  --seed N         what everything in it is drawn from (1)
  --seeds COUNT    so many seeds from there on, one after the other (1)
  --nodes K        servers, 5 to 200 (20); two clients and a liar besides
  --minutes M      virtual minutes in which things go wrong (10)
  --quick          short for --nodes 10 --minutes 2 --twice, but for what is said besides
  --twice          every seed twice, and compared: the same seed must be the same run
  --regressions    every run that once failed, see seeds.md
  --long           with --regressions: those that take half a minute and more each, too

WHAT GOES WRONG
  --only A,B       only these faults, or none; more than one --only adds up
  --without A,B    but not these, also of what --only says
  --until SECONDS  nothing any more so many seconds after trouble began, which is at 40 s by the times that are printed

  partition   two groups do not hear each other        slowdisk  a disk takes its time
  oneway      one group is heard and does not hear     fulldisk  a disk is full
  kill        a program dies; its files are there      rot       a bit on a disk flips
  tear        power fails: what was not synced is      clock     a clock on the wall jumps by hours
              kept, lost or torn                       lossy     lines lose a third of what is sent
  wipe        power fails, and the disk is lost        hostile   a peer lies in every protocol
  stop        a node is asked to stop                  overload  ten times the usual callers ask one node
  crash       kill,tear,wipe                           disk      slowdisk,fulldisk,rot

WHETHER THE CHECKERS NOTICE
  --plant BUG      breaks a rule on purpose: skip-fsync, skip-verify, drop-on-drain, unbounded-lane or forget-tombstone
  --plants         each of them in turn, and within how many seeds the checker of that rule noticed (--seeds at most, 100 without);
                   each seed must be without a broken promise when nothing is planted

WHAT IS SAID
  --log            faults when they begin and end, and what is missing in peace
  --log-all        every refusal, every delete and every broken promise besides
  --help           this

A run: 40 s in which all find each other, M minutes of trouble, peace until everything is as it should be (600 s at most), new work for
everybody, a power cut of all, and everything again. Servers have the numbers from 0 to K-1, the two clients K and K+1, the liar K+2.

A promise that is broken is printed as BROKEN, with the checker that noticed and the virtual time, once for each kind of it. To find what led
there: halve --until while it still breaks, take faults away with --without, and read what is left with --log.

Exit codes: 0 every promise was kept; 1 one was broken, or no fault happened although some were asked for (with --only none, or with --until,
which is for narrowing, none needs to); 2 the options make no sense; 141 whoever read what is said has gone before the end.";

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Asked, Box<dyn Error>> {
    let options = Options {
        seed: 1,
        nodes: 20,
        minutes: 10,
        until: None,
        faults: Fault::ALL.into(),
        plant: None,
        log: Log::Nothing,
    };
    let mut asked =
        Asked { options, seeds: None, twice: false, plants: false, regressions: false, long: false };
    let mut arguments = arguments;
    let (mut given, mut only, mut without) = (BTreeSet::new(), None, BTreeSet::new());
    let (mut nodes, mut minutes, mut quick) = (None, None, false);
    while let Some(argument) = arguments.next() {
        let is_again = !given.insert(argument.clone());
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        let options = &mut asked.options;
        match &*argument {
            "--quick" => quick = true,
            "--twice" => asked.twice = true,
            "--plants" => asked.plants = true,
            "--regressions" => asked.regressions = true,
            "--long" => asked.long = true,
            "--log" => options.log = Log::Faults,
            "--log-all" => options.log = Log::All,
            // Each adds to the ones before.
            "--only" => only.get_or_insert_with(Vec::new).push(value()?),
            "--without" => without.extend(faults(&value()?)?),
            // Of two values one would have to be forgotten.
            _ if is_again => return Err(format!("{argument} is said twice").into()),
            "--seed" => options.seed = number(&argument, &value()?)?,
            "--seeds" => asked.seeds = Some(number(&argument, &value()?)?),
            "--nodes" => nodes = Some(number(&argument, &value()?)?),
            "--minutes" => minutes = Some(number(&argument, &value()?)?),
            "--until" => options.until = Some(number(&argument, &value()?)?),
            "--plant" => options.plant = Some(Plant::named(&value()?)?),
            _ => return Err(format!("{argument} is not known").into()),
        }
    }
    asked.twice |= quick;
    asked.options.nodes = nodes.unwrap_or(if quick { 10 } else { 20 });
    asked.options.minutes = minutes.unwrap_or(if quick { 2 } else { 10 });
    if let Some(only) = only {
        asked.options.faults = faults(&only.join(","))?;
    }
    asked.options.faults.retain(|fault| !without.contains(fault));
    if asked.long && !asked.regressions {
        return Err("--long goes with --regressions".into());
    }
    let others = given.iter().find(|given| !OF_REGRESSIONS.contains(&given.as_str()));
    if let Some(other) = others.filter(|_| asked.regressions) {
        return Err(
            format!("--regressions are the runs that they are, and {other} says what a run is").into()
        );
    }
    // A run of nothing would pass.
    if asked.seeds == Some(0) {
        return Err("--seeds 0: at least one is possible".into());
    }
    if asked.options.minutes == 0 {
        return Err("--minutes 0: at least one is possible; --until cuts it short".into());
    }
    if asked.seeds.is_some_and(|seeds| asked.options.seed.checked_add(seeds).is_none()) {
        return Err("--seeds: there are not so many from --seed on".into());
    }
    if !(5..=200).contains(&asked.options.nodes) {
        return Err(format!("--nodes {}: 5 to 200 are possible", asked.options.nodes).into());
    }
    Ok(asked)
}

fn number<N: FromStr>(option: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{option} {text:?} is no number that makes sense here"))
}

fn faults(names: &str) -> Result<BTreeSet<Fault>, String> {
    if names == "none" {
        return Ok(BTreeSet::new());
    }
    if names.split(',').any(|name| name == "none") {
        return Err(format!("{names:?}: none stands alone"));
    }
    let named: Result<Vec<Vec<Fault>>, String> = names.split(',').map(Fault::named).collect();
    Ok(named?.into_iter().flatten().collect())
}
