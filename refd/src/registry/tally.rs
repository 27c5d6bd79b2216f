//! Whose approvals count, and how many more it takes.
//!
//! The node decides. This is the same reckoning for people: out of the policy in force, as the node gives it, and out of the
//! proposal itself.

use ron_core::net::PublicKey;
use ron_registry::{Action, Approval, Policy, Proposal, Right, Signer};
use serde_json::Value;

/// What is missing under one policy.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    /// How many more at the least; none if those who are left are not enough.
    more: Option<usize>,
    /// Who could still.
    of: Vec<String>,
}

/// How many more approvals a proposal needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lacks {
    /// Under the policy in force.
    now: Needs,
    /// Of a rotation, under the policy that shall be.
    then: Option<Needs>,
}

fn lasts(signer: &Signer, now: u64) -> bool {
    signer.expires.is_none_or(|expires| expires > now)
}

/// How many more signers it takes at the least until this signer or group agrees. Whoever is reached through one member of a
/// group is not reached through another, so what members lack adds up.
fn lacking(policy: &Policy, label: &str, signed: &[PublicKey], now: u64) -> Option<usize> {
    if let Some(signer) = policy.signers().iter().find(|signer| signer.name == label) {
        return lasts(signer, now).then(|| usize::from(!signed.contains(&signer.key)));
    }
    let group = policy.groups().iter().find(|group| group.name == label)?;
    let members = group.members.iter();
    let mut lack: Vec<usize> = members.filter_map(|member| lacking(policy, member, signed, now)).collect();
    lack.sort_unstable();
    Some(lack.get(..group.needed as usize)?.iter().sum())
}

/// The signers below a group.
fn reached<'a>(policy: &'a Policy, label: &'a str, into: &mut Vec<&'a Signer>) {
    if let Some(signer) = policy.signers().iter().find(|signer| signer.name == label) {
        into.push(signer);
    } else if let Some(group) = policy.groups().iter().find(|group| group.name == label) {
        group.members.iter().for_each(|member| reached(policy, member, into));
    }
}

impl Needs {
    fn of(policy: &Policy, (right, name): (Right, &str), signed: &[PublicKey], now: u64) -> Self {
        let fits = policy.rules().iter().filter(|rule| rule.right == right && name.starts_with(&rule.prefix));
        let Some(rule) = fits.max_by_key(|rule| rule.prefix.len()) else {
            return Needs { more: None, of: Vec::new() };
        };
        let mut signers = Vec::new();
        reached(policy, &rule.quorum, &mut signers);
        let could = signers.into_iter().filter(|signer| lasts(signer, now) && !signed.contains(&signer.key));
        let of = could.map(|signer| signer.name.clone()).collect();
        Needs { more: lacking(policy, &rule.quorum, signed, now), of }
    }

    fn words(&self) -> String {
        match self.more {
            Some(0) => "nothing more".to_owned(),
            Some(more) => format!("{more} more of: {}", self.of.join(", ")),
            None => "more than those who are left can give".to_owned(),
        }
    }
}

impl Lacks {
    /// What a proposal that these have approved lacks under the policy in force.
    pub(super) fn of(proposal: &Proposal, policy: &Policy, signed: &[PublicKey], now: u64) -> Option<Self> {
        let action = proposal.action();
        let asked = (action.right()?, action.name().map_or("", |name| name.as_str()));
        let then = match action {
            Action::Rotate { policy } => Some(Needs::of(policy, asked, signed, now)),
            _ => None,
        };
        Some(Lacks { now: Needs::of(policy, asked, signed, now), then })
    }

    /// In a line for each policy.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let then = self.then.as_ref().map(|then| ("of the new", then.words()));
        [("needs", self.now.words())].into_iter().chain(then).collect()
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let then = self.then.as_ref().map(|then| format!("; of those who shall decide, {}", then.words()));
        format!("{}{}", self.now.words(), then.unwrap_or_default())
    }

    /// For programs.
    pub(super) fn add_to(&self, json: &mut Value) {
        json["needed_more"] = self.now.more.into();
        json["needed_of"] = self.now.of.clone().into();
        if let Some(then) = &self.then {
            json["needed_more_new"] = then.more.into();
            json["needed_of_new"] = then.of.clone().into();
        }
    }
}

/// What a signer is called, by the policy in force or by the one that shall be.
pub(super) fn signer<'a>(proposal: &'a Proposal, policy: &'a Policy, key: &PublicKey) -> Option<&'a Signer> {
    let of = |policy: &'a Policy| policy.signers().iter().find(|signer| signer.key == *key);
    of(policy).or_else(|| match proposal.action() {
        Action::Rotate { policy } => of(policy),
        _ => None,
    })
}

/// Why an approval does not count for a proposal; nothing, if it does. `policy` is the one that the proposal was made under.
pub(super) fn refusal(
    approval: &Approval,
    proposal: &Proposal,
    policy: Option<&Policy>,
    before: &[PublicKey],
    now: u64,
) -> Option<String> {
    let said = approval.statement();
    if said.proposal != proposal.id() || said.origin != proposal.origin() {
        return Some(format!("it is for another proposal, {}", said.proposal));
    }
    if approval.clone().verify().is_err() {
        return Some("its signature does not hold: the file was altered".to_owned());
    }
    if said.expires <= now {
        return Some("it has expired".to_owned());
    }
    let policy = policy?;
    let Some(signer) = signer(proposal, policy, &approval.key()) else {
        let key = data_encoding::HEXLOWER.encode(approval.key().as_bytes());
        return Some(format!("its key is no signer of this log: {key}"));
    };
    if !lasts(signer, now) {
        return Some(format!("the time of its signer {} is over", signer.name));
    }
    before.contains(&approval.key()).then(|| format!("{} is among the others already", signer.name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use ron_core::{ContentId, net::Identity};
    use ron_registry::{Content, Group, Rule};

    use super::*;

    /// An approval counts until its time is over, while its signer's lasts, and once.
    #[test]
    fn what_does_not_count_says_why() {
        let (ann, eve) = (Identity::from_seed(&[1; 32]), Identity::from_seed(&[2; 32]));
        let signer = Signer { name: "ann".to_owned(), key: ann.public_key(), expires: Some(50) };
        let policy = Policy::of(1, vec![signer]).unwrap();
        let propose = |text: &[u8]| {
            let content = Content::Artifact(ContentId::of(text));
            let action = Action::Bind { name: "x".parse().unwrap(), content, prior: 0 };
            Proposal::new("example.com/log", 1, 100, action, None).unwrap()
        };
        let (proposal, other) = (propose(b"x"), propose(b"y"));
        let why = |approval: &Approval, before: &[PublicKey], now| {
            refusal(approval, &proposal, Some(&policy), before, now).unwrap_or_default()
        };
        let good = proposal.approve(&ann, 40);
        assert_eq!(why(&good, &[], 39), "");
        assert_eq!(why(&good, &[], 40), "it has expired");
        assert_eq!(why(&good, &[ann.public_key()], 0), "ann is among the others already");
        assert_eq!(why(&proposal.approve(&ann, 90), &[], 60), "the time of its signer ann is over");
        assert!(why(&proposal.approve(&eve, 90), &[], 0).starts_with("its key is no signer of this log"));
        assert!(why(&other.approve(&ann, 90), &[], 0).starts_with("it is for another proposal"));
        let mut bytes = good.encode();
        *bytes.last_mut().unwrap() ^= 1;
        let altered = Approval::decode(&bytes).unwrap();
        assert!(why(&altered, &[], 0).contains("was altered"));
    }

    /// Of groups within groups the cheapest way counts, and who is not listened to any more is none.
    #[test]
    fn what_lacks_is_the_least_that_would_do() {
        let key = |seed: u8| Identity::from_seed(&[seed; 32]).public_key();
        let signer = |(at, name): (usize, &str), expires| Signer {
            name: name.to_owned(),
            key: key(at as u8),
            expires,
        };
        let mut signers: Vec<Signer> =
            ["ann", "bob", "cy", "dan", "eve"].into_iter().enumerate().map(|one| signer(one, None)).collect();
        signers[4].expires = Some(5);
        let group = |name: &str, needed, members: &[&str]| Group {
            name: name.to_owned(),
            needed,
            members: members.iter().map(|member| (*member).to_owned()).collect(),
        };
        let groups = vec![
            group("pair", 2, &["ann", "bob"]),
            group("trio", 1, &["cy", "dan", "eve"]),
            group("all", 2, &["pair", "trio"]),
        ];
        let rule = |right, prefix: &str, quorum: &str| Rule {
            right,
            prefix: prefix.to_owned(),
            quorum: quorum.to_owned(),
        };
        let rules = vec![
            rule(Right::Bind, "", "all"),
            rule(Right::Bind, "free/", "trio"),
            rule(Right::Rotate, "", "all"),
        ];
        let policy = Policy::new(signers, groups, rules).unwrap();
        let needs = |name: &str, signed: &[u8], now| {
            let signed: Vec<PublicKey> = signed.iter().map(|seed| key(*seed)).collect();
            Needs::of(&policy, (Right::Bind, name), &signed, now)
        };
        assert_eq!(needs("x", &[], 0).more, Some(3));
        assert_eq!(needs("x", &[], 0).of, ["ann", "bob", "cy", "dan", "eve"]);
        assert_eq!(needs("x", &[0, 2], 9), Needs { more: Some(1), of: vec!["bob".into(), "dan".into()] });
        assert_eq!(needs("x", &[0, 1, 4], 9).more, Some(1), "eve's time is over");
        assert_eq!(needs("free/x", &[3], 0).words(), "nothing more");
        assert_eq!(Needs::of(&policy, (Right::Retire, "x"), &[], 0).more, None);
    }
}
