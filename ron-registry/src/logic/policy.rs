//! Who may approve what: signers, groups of them with a threshold, and rules that say which group decides.
//!
//! A group counts distinct members, and no signer can be reached through two members of one group, so "two of three"
//! always takes two different keys. Groups name only signers and groups before them, so there are no circles. A policy
//! that nobody could ever replace is refused: there is always a rule for rotation.

use std::collections::HashMap;

use bytes::Bytes;
use ed25519_dalek::VerifyingKey;
use minicbor::{Decoder, data::Type};
use ron_core::net::{
    PublicKey,
    cbor::{self, CborFault, read_array, read_list, read_only_map, required},
};

/// Most signers of one policy: a set of them is a number of 64 bits.
pub const SIGNERS_MAX: usize = 64;
/// Most groups of one policy.
pub const GROUPS_MAX: usize = 64;
/// Most rules of one policy.
pub const RULES_MAX: usize = 64;
/// Bytes of the longest name of a signer or a group.
pub const LABEL_BYTES_MAX: usize = 64;
/// Bytes of the longest prefix of a rule.
pub const PREFIX_BYTES_MAX: usize = 255;
/// Bytes of the longest policy, so that it fits an entry beside its approvals.
pub const POLICY_BYTES_MAX: usize = 40 << 10;

const SIGNERS: u64 = 0;
const GROUPS: u64 = 1;
const RULES: u64 = 2;

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Saying what a name stands for.
    Bind,
    /// Saying that a name stands for nothing any more.
    Retire,
    /// Replacing the policy.
    Rotate,
}

impl Right {
    const ALL: [Right; 3] = [Right::Bind, Right::Retire, Right::Rotate];

    fn number(self) -> u8 {
        match self {
            Right::Bind => 0,
            Right::Retire => 1,
            Right::Rotate => 2,
        }
    }
}

/// Somebody who may approve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// What people call it.
    pub name: String,
    /// What proves it.
    pub key: PublicKey,
    /// From when on its approvals no longer count, in milliseconds of the Unix epoch.
    pub expires: Option<u64>,
}

impl Signer {
    /// Whether the policy listens to it at this time.
    pub(crate) fn lasts(&self, time: u64) -> bool {
        self.expires.is_none_or(|expires| expires > time)
    }
}

/// Some of which must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What rules and other groups call it.
    pub name: String,
    /// How many of its members must agree.
    pub needed: u32,
    /// Signers, and groups that are listed before this one.
    pub members: Vec<String>,
}

/// Which group decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What about.
    pub right: Right,
    /// For names that begin with this: nothing, or something that ends with a slash. The longest that fits decides.
    pub prefix: String,
    /// The group.
    pub quorum: String,
}

/// Why a policy is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// More of something than a policy may have.
    #[error("too many {what}: at most {}", most(what))]
    TooMany {
        /// Of what.
        what: &'static str,
    },
    /// A name with anything but letters, digits, `.`, `_` and `-` in it, or none, or one that is too long.
    #[error(
        "{name:?} is no name of a signer or a group: 1 to {LABEL_BYTES_MAX} letters, digits, '.', '_' or '-'"
    )]
    BadLabel {
        /// The name.
        name: String,
    },
    /// Two signers or groups with one name, or two signers with one key, or two rules for the same.
    #[error("{what} is there twice")]
    Twice {
        /// What is.
        what: String,
    },
    /// A key that anybody can sign for, or that nobody can.
    #[error("the key of {name} is no key")]
    BadKey {
        /// Whose.
        name: String,
    },
    /// It names a signer or a group that is not there, or not yet.
    #[error("{by} names {name}, which is not there before it")]
    Unknown {
        /// Who names it.
        by: String,
        /// What is named.
        name: String,
    },
    /// A group that needs nobody, or more members than it has.
    #[error("{group} needs {needed} of {members}")]
    BadThreshold {
        /// The group.
        group: String,
        /// How many it needs.
        needed: u32,
        /// How many it has.
        members: usize,
    },
    /// A signer could count twice in a group.
    #[error("{signer} would count twice in {group}")]
    Overlap {
        /// The group.
        group: String,
        /// The signer.
        signer: String,
    },
    /// A prefix that does not end with a slash, or one for rotation, which is about no name.
    #[error(
        "{prefix:?} is no prefix for a rule: empty, or at most {PREFIX_BYTES_MAX} characters with a slash at the end, \
         and empty for rotate"
    )]
    BadPrefix {
        /// The prefix.
        prefix: String,
    },
    /// Nobody could ever replace it.
    #[error("no rule says who may rotate")]
    NoRotation,
    /// Not the bytes of a policy.
    #[error("not a policy")]
    Malformed,
}

/// How many a policy may have.
fn most(what: &str) -> usize {
    match what {
        "signers" => SIGNERS_MAX,
        "groups" => GROUPS_MAX,
        "rules" => RULES_MAX,
        "members" => SIGNERS_MAX + GROUPS_MAX,
        _ => POLICY_BYTES_MAX,
    }
}

impl From<CborFault> for PolicyError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::TooMany { what } => PolicyError::TooMany { what },
            _ => PolicyError::Malformed,
        }
    }
}

impl From<minicbor::decode::Error> for PolicyError {
    fn from(_: minicbor::decode::Error) -> Self {
        PolicyError::Malformed
    }
}

/// Some signers of one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignerSet(u64);

impl SignerSet {
    /// Adds one, by its place in the policy.
    pub(crate) fn add(&mut self, signer: usize) {
        self.0 |= 1 << signer;
    }

    fn has(self, signer: usize) -> bool {
        self.0 >> signer & 1 == 1
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Signer(usize),
    Group(usize),
}

/// A policy that has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    signers: Vec<Signer>,
    groups: Vec<Group>,
    rules: Vec<Rule>,
    by_key: HashMap<PublicKey, usize>,
    /// The members of each group, by place.
    members: Vec<Vec<Member>>,
    /// The signers that each group could ever hear.
    reach: Vec<SignerSet>,
    /// The group of each rule.
    quorums: Vec<usize>,
    encoded: Bytes,
}

impl Policy {
    /// Checks a policy.
    ///
    /// # Errors
    /// A [`PolicyError`].
    pub fn new(signers: Vec<Signer>, groups: Vec<Group>, rules: Vec<Rule>) -> Result<Self, PolicyError> {
        for (what, count, max) in [
            ("signers", signers.len(), SIGNERS_MAX),
            ("groups", groups.len(), GROUPS_MAX),
            ("rules", rules.len(), RULES_MAX),
        ] {
            if count > max {
                return Err(PolicyError::TooMany { what });
            }
        }
        let (mut places, by_key) = place_signers(&signers)?;
        let (members, reach) = place_groups(&mut places, &signers, &groups)?;
        let quorums = place_rules(&places, &rules)?;
        let encoded = Bytes::from(encode(&signers, &groups, &rules));
        if encoded.len() > POLICY_BYTES_MAX {
            return Err(PolicyError::TooMany { what: "bytes" });
        }
        Ok(Policy { signers, groups, rules, by_key, members, reach, quorums, encoded })
    }

    /// The plain one: `needed` of these signers for everything.
    ///
    /// # Errors
    /// A [`PolicyError`].
    pub fn of(needed: u32, signers: Vec<Signer>) -> Result<Self, PolicyError> {
        let members = signers.iter().map(|signer| signer.name.clone()).collect();
        let quorum = "all".to_owned();
        let rule = |right| Rule { right, prefix: String::new(), quorum: quorum.clone() };
        let rules = Right::ALL.map(rule).to_vec();
        Policy::new(signers, vec![Group { name: quorum.clone(), needed, members }], rules)
    }

    /// Who may approve.
    #[must_use]
    pub fn signers(&self) -> &[Signer] {
        &self.signers
    }

    /// Who decides together, and how many of them it takes.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Which group has which right, and over which names.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Its bytes: deterministic CBOR.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// The place of the signer with this key.
    pub(crate) fn signer(&self, key: &PublicKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The rule that decides: that with the longest prefix that fits.
    pub(crate) fn rule(&self, right: Right, name: &str) -> Option<usize> {
        let fits = |rule: &Rule| rule.right == right && name.starts_with(&rule.prefix);
        let fitting = self.rules.iter().enumerate().filter(|(_, rule)| fits(rule));
        fitting.max_by_key(|(_, rule)| rule.prefix.len()).map(|(at, _)| at)
    }

    /// Whether these are enough for that rule.
    pub(crate) fn is_enough(&self, rule: usize, signed: SignerSet) -> bool {
        let quorum = self.quorums[rule];
        let mut agrees = [false; GROUPS_MAX];
        // A group names only earlier ones.
        for (at, members) in self.members[..=quorum].iter().enumerate() {
            let has = |member: &&Member| match member {
                Member::Signer(signer) => signed.has(*signer),
                Member::Group(group) => agrees[*group],
            };
            agrees[at] = members.iter().filter(has).count() >= self.groups[at].needed as usize;
        }
        agrees[quorum]
    }

    /// Who could still help that rule: those it listens to who have not signed.
    pub(crate) fn missing(&self, rule: usize, signed: SignerSet) -> Vec<String> {
        let reach = self.reach[self.quorums[rule]];
        let could = |(at, _): &(usize, &Signer)| reach.has(*at) && !signed.has(*at);
        self.signers.iter().enumerate().filter(could).map(|(_, signer)| signer.name.clone()).collect()
    }

    /// Reads what [`encoded`](Self::encoded) gives, and nothing else.
    ///
    /// # Errors
    /// A [`PolicyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, PolicyError> {
        if bytes.len() > POLICY_BYTES_MAX {
            return Err(PolicyError::TooMany { what: "bytes" });
        }
        let (mut signers, mut groups, mut rules) = (None, None, None);
        read_only_map(bytes, |key, cbor| {
            match key {
                SIGNERS => signers = Some(read_list(cbor, ("signers", SIGNERS_MAX), read_signer)?),
                GROUPS => groups = Some(read_list(cbor, ("groups", GROUPS_MAX), read_group)?),
                RULES => rules = Some(read_list(cbor, ("rules", RULES_MAX), read_rule)?),
                _ => return Ok::<_, PolicyError>(false),
            }
            Ok(true)
        })?;
        let policy =
            Policy::new(required(signers, SIGNERS)?, required(groups, GROUPS)?, required(rules, RULES)?)?;
        if policy.encoded == bytes { Ok(policy) } else { Err(PolicyError::Malformed) }
    }
}

type Places = HashMap<String, Member>;

fn place_signers(signers: &[Signer]) -> Result<(Places, HashMap<PublicKey, usize>), PolicyError> {
    let (mut places, mut by_key) = (Places::new(), HashMap::new());
    for (at, signer) in signers.iter().enumerate() {
        take_label(&mut places, &signer.name, Member::Signer(at))?;
        let key = VerifyingKey::from_bytes(signer.key.as_bytes());
        if !key.is_ok_and(|key| !key.is_weak()) {
            return Err(PolicyError::BadKey { name: signer.name.clone() });
        }
        if by_key.insert(signer.key, at).is_some() {
            return Err(PolicyError::Twice { what: format!("the key of {}", signer.name) });
        }
    }
    Ok((places, by_key))
}

fn place_groups(
    places: &mut Places,
    signers: &[Signer],
    groups: &[Group],
) -> Result<(Vec<Vec<Member>>, Vec<SignerSet>), PolicyError> {
    let (mut all_members, mut reach) = (Vec::new(), Vec::<SignerSet>::new());
    for (at, group) in groups.iter().enumerate() {
        let (mut members, mut heard) = (Vec::new(), SignerSet::default());
        for name in &group.members {
            let unknown = || PolicyError::Unknown { by: group.name.clone(), name: name.clone() };
            let member = *places.get(name).ok_or_else(unknown)?;
            let more = match member {
                Member::Signer(signer) => 1 << signer,
                Member::Group(group) => reach[group].0,
            };
            if heard.0 & more != 0 {
                let signer = signers[(heard.0 & more).trailing_zeros() as usize].name.clone();
                return Err(PolicyError::Overlap { group: group.name.clone(), signer });
            }
            heard.0 |= more;
            members.push(member);
        }
        if group.needed == 0 || group.needed as usize > members.len() {
            let (group, needed, members) = (group.name.clone(), group.needed, members.len());
            return Err(PolicyError::BadThreshold { group, needed, members });
        }
        // Only now, so that it cannot name itself.
        take_label(places, &group.name, Member::Group(at))?;
        all_members.push(members);
        reach.push(heard);
    }
    Ok((all_members, reach))
}

fn place_rules(places: &Places, rules: &[Rule]) -> Result<Vec<usize>, PolicyError> {
    let mut quorums = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let is_path = rule.prefix.ends_with('/') && rule.prefix.bytes().all(|byte| byte.is_ascii_graphic());
        let is_prefix = rule.prefix.is_empty() || is_path && rule.right != Right::Rotate;
        if !is_prefix || rule.prefix.len() > PREFIX_BYTES_MAX {
            return Err(PolicyError::BadPrefix { prefix: rule.prefix.clone() });
        }
        if rules[..at].iter().any(|other| (other.right, &other.prefix) == (rule.right, &rule.prefix)) {
            return Err(PolicyError::Twice { what: format!("the rule {:?} {:?}", rule.right, rule.prefix) });
        }
        match places.get(&rule.quorum) {
            Some(Member::Group(group)) => quorums.push(*group),
            _ => {
                let by = format!("the rule {:?} {:?}", rule.right, rule.prefix);
                return Err(PolicyError::Unknown { by, name: rule.quorum.clone() });
            }
        }
    }
    if rules.iter().any(|rule| rule.right == Right::Rotate) {
        Ok(quorums)
    } else {
        Err(PolicyError::NoRotation)
    }
}

fn take_label(places: &mut Places, name: &str, member: Member) -> Result<(), PolicyError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > LABEL_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(PolicyError::BadLabel { name: name.to_owned() });
    }
    match places.insert(name.to_owned(), member) {
        None => Ok(()),
        Some(_) => Err(PolicyError::Twice { what: name.to_owned() }),
    }
}

fn encode(signers: &[Signer], groups: &[Group], rules: &[Rule]) -> Vec<u8> {
    cbor::encode(1024, |cbor| {
        cbor.map(3)?.u64(SIGNERS)?.array(signers.len() as u64)?;
        for signer in signers {
            cbor.array(3)?.str(&signer.name)?.bytes(signer.key.as_bytes())?;
            match signer.expires {
                Some(expires) => cbor.u64(expires)?,
                None => cbor.null()?,
            };
        }
        cbor.u64(GROUPS)?.array(groups.len() as u64)?;
        for group in groups {
            cbor.array(3)?.str(&group.name)?.u32(group.needed)?.array(group.members.len() as u64)?;
            for member in &group.members {
                cbor.str(member)?;
            }
        }
        cbor.u64(RULES)?.array(rules.len() as u64)?;
        for rule in rules {
            cbor.array(3)?.u8(rule.right.number())?.str(&rule.prefix)?.str(&rule.quorum)?;
        }
        Ok(())
    })
}

fn read_triple(cbor: &mut Decoder<'_>) -> Result<(), PolicyError> {
    if cbor.array()? == Some(3) { Ok(()) } else { Err(PolicyError::Malformed) }
}

fn read_signer(cbor: &mut Decoder<'_>) -> Result<Signer, PolicyError> {
    read_triple(cbor)?;
    let name = cbor.str()?.to_owned();
    let key = PublicKey::from_bytes(read_array(cbor, "key")?);
    let expires = match cbor.datatype()? {
        Type::Null => cbor.null().map(|()| None)?,
        _ => Some(cbor.u64()?),
    };
    Ok(Signer { name, key, expires })
}

fn read_group(cbor: &mut Decoder<'_>) -> Result<Group, PolicyError> {
    read_triple(cbor)?;
    let (name, needed) = (cbor.str()?.to_owned(), cbor.u32()?);
    let member = |cbor: &mut Decoder<'_>| Ok::<_, PolicyError>(cbor.str()?.to_owned());
    let members = read_list(cbor, ("members", SIGNERS_MAX + GROUPS_MAX), member)?;
    Ok(Group { name, needed, members })
}

fn read_rule(cbor: &mut Decoder<'_>) -> Result<Rule, PolicyError> {
    read_triple(cbor)?;
    let number = cbor.u8()?;
    let right =
        Right::ALL.into_iter().find(|right| right.number() == number).ok_or(PolicyError::Malformed)?;
    Ok(Rule { right, prefix: cbor.str()?.to_owned(), quorum: cbor.str()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::fixture::{key, signer};

    fn group(name: &str, needed: u32, members: &[&str]) -> Group {
        Group { name: name.into(), needed, members: members.iter().map(|name| (*name).into()).collect() }
    }

    fn rule(right: Right, prefix: &str, quorum: &str) -> Rule {
        Rule { right, prefix: prefix.into(), quorum: quorum.into() }
    }

    fn set(signers: &[usize]) -> SignerSet {
        let mut set = SignerSet::default();
        signers.iter().for_each(|signer| set.add(*signer));
        set
    }

    fn check(groups: Vec<Group>, rules: Vec<Rule>, error: &str) {
        let signers = (0..4).map(signer).collect();
        assert_eq!(Policy::new(signers, groups, rules).unwrap_err().to_string(), error);
    }

    #[test]
    fn two_of_three_are_two_of_three() {
        let policy = Policy::of(2, (0..3).map(signer).collect()).unwrap();
        let rule = policy.rule(Right::Bind, "any/name").unwrap();
        for signed in 0..8u64 {
            assert_eq!(policy.is_enough(rule, SignerSet(signed)), signed.count_ones() >= 2, "{signed:b}");
        }
        assert_eq!(policy.missing(rule, set(&[1])), ["s0", "s2"]);
        assert_eq!(policy.signer(&key(2)), Some(2));
        assert_eq!(policy.signer(&key(9)), None);
    }

    #[test]
    fn groups_of_groups_and_the_longest_prefix() {
        let groups = vec![
            group("dev", 1, &["s0", "s1"]),
            group("ops", 2, &["s2", "s3"]),
            group("both", 2, &["dev", "ops"]),
        ];
        let rules = vec![
            rule(Right::Rotate, "", "both"),
            rule(Right::Bind, "", "both"),
            rule(Right::Bind, "tools/", "dev"),
            rule(Right::Bind, "tools/db/", "ops"),
        ];
        let policy = Policy::new((0..4).map(signer).collect(), groups, rules).unwrap();
        let enough =
            |name, signers: &[usize]| policy.is_enough(policy.rule(Right::Bind, name).unwrap(), set(signers));
        assert!(enough("x", &[0, 2, 3]) && !enough("x", &[0, 1, 2]) && !enough("x", &[2, 3]));
        assert!(enough("tools/x", &[1]) && !enough("tools/x", &[2, 3]));
        assert!(enough("tools/db/x", &[2, 3]) && !enough("tools/db/x", &[0, 1, 2]));
        assert!(!enough("toolsmith", &[0]), "a prefix ends where a part of a name does");
        assert_eq!(policy.rule(Right::Retire, "x"), None);
        assert_eq!(policy.missing(policy.rule(Right::Bind, "tools/x").unwrap(), set(&[])), ["s0", "s1"]);
        assert_eq!(Policy::decode(policy.encoded()), Ok(policy));
    }

    #[test]
    fn a_policy_that_cannot_work_is_told_why() {
        let rotate = || vec![rule(Right::Rotate, "", "g")];
        let g = |needed, members: &[&str]| vec![group("g", needed, members)];
        check(g(0, &["s0"]), rotate(), "g needs 0 of 1");
        check(g(2, &["s0"]), rotate(), "g needs 2 of 1");
        check(g(1, &["s9"]), rotate(), "g names s9, which is not there before it");
        check(g(1, &["g"]), rotate(), "g names g, which is not there before it");
        check(g(1, &["s0", "s0"]), rotate(), "s0 would count twice in g");
        check(
            vec![group("a", 1, &["s0", "s1"]), group("b", 1, &["s1", "s2"]), group("g", 2, &["a", "b"])],
            rotate(),
            "s1 would count twice in g",
        );
        check(vec![group("s0", 1, &["s1"])], rotate(), "s0 is there twice");
        check(
            vec![group("g h", 1, &["s1"])],
            rotate(),
            "\"g h\" is no name of a signer or a group: 1 to 64 letters, digits, '.', '_' or '-'",
        );
        check(g(1, &["s0"]), vec![], "no rule says who may rotate");
        check(
            g(1, &["s0"]),
            vec![rule(Right::Rotate, "", "s0")],
            "the rule Rotate \"\" names s0, which is not there before it",
        );
        let prefix = "is no prefix for a rule: empty, or at most 255 characters with a slash at the end, and empty for \
                      rotate";
        check(g(1, &["s0"]), vec![rule(Right::Rotate, "x/", "g")], &format!("\"x/\" {prefix}"));
        check(g(1, &["s0"]), vec![rule(Right::Bind, "x", "g")], &format!("\"x\" {prefix}"));
        check(g(1, &["s0"]), [rotate(), rotate()].concat(), "the rule Rotate \"\" is there twice");
        let many = (0..65).map(|at| group(&format!("g{at}"), 1, &["s0"])).collect();
        check(many, rotate(), "too many groups: at most 64");

        let twice = Policy::of(1, vec![signer(0), Signer { name: "other".into(), ..signer(0) }]);
        assert_eq!(twice.unwrap_err().to_string(), "the key of other is there twice");
        let weak = Signer { key: PublicKey::from_bytes([0; 32]), ..signer(0) };
        assert_eq!(Policy::of(1, vec![weak]), Err(PolicyError::BadKey { name: "s0".into() }));
        assert_eq!(
            Policy::of(1, (0..65).map(signer).collect()),
            Err(PolicyError::TooMany { what: "signers" })
        );
    }

    #[test]
    fn a_policy_has_one_spelling() {
        let mut signers: Vec<_> = (0..3).map(signer).collect();
        signers[1].expires = Some(1_000_000);
        let policy = Policy::of(2, signers).unwrap();
        let bytes = policy.encoded().clone();
        assert_eq!(Policy::decode(&bytes), Ok(policy));
        for cut in 0..bytes.len() {
            assert!(Policy::decode(&bytes[..cut]).is_err());
        }
        assert!(Policy::decode(&[&bytes[..], &[0]].concat()).is_err());
        // The same with a number that is longer than it need be, and with a key that nobody knows.
        let long = [&[0xb8, 3], &bytes[1..]].concat();
        assert_eq!(Policy::decode(&long), Err(PolicyError::Malformed));
        let more = [&[0xa4], &bytes[1..], &[0x18, 0x63, 0x00]].concat();
        assert_eq!(Policy::decode(&more), Err(PolicyError::Malformed));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            if let Ok(policy) = Policy::decode(&bytes) {
                prop_assert_eq!(&policy.encoded()[..], bytes);
            }
        }

        #[test]
        fn fewer_keys_than_needed_are_never_enough(
            needed in 1u32..6, signers in 6u8..12, signed: u64,
        ) {
            let policy = Policy::of(needed, (0..signers).map(signer).collect()).unwrap();
            let rule = policy.rule(Right::Retire, "x").unwrap();
            let signed = signed & ((1 << signers) - 1);
            prop_assert_eq!(policy.is_enough(rule, SignerSet(signed)), signed.count_ones() >= needed);
        }
    }
}
