//! What a proposal would change, in words: all that a signer signs.

use std::time::Duration;

use data_encoding::HEXLOWER;
use ron_registry::{Action, Content, Group, Policy, Proposal, Rule, Signer};

/// Bytes of a payload that are shown.
const PAYLOAD_SHOWN: usize = 512;

/// What is there now, for who can know.
pub(super) enum Before {
    /// The proposal is all there is.
    Unknown,
    /// What a name stands for: nothing, or something since a version.
    Name(Option<(u64, String)>),
    /// Who decides.
    Policy(Policy),
}

fn line(sign: char, label: &str, value: &str) -> String {
    format!("{sign} {label:<12}{value}").trim_end().to_owned()
}

fn signer_words(signer: &Signer) -> String {
    let until = signer.expires.map_or(String::new(), |at| format!(" until {at}"));
    format!("{} {}{until}", signer.name, HEXLOWER.encode(signer.key.as_bytes()))
}

fn group_words(group: &Group) -> String {
    format!("{}: {} of {}", group.name, group.needed, group.members.join(", "))
}

fn rule_words(rule: &Rule) -> String {
    let right = format!("{:?}", rule.right).to_lowercase();
    format!("{right} {}*: {}", rule.prefix, rule.quorum)
}

/// What leaves, what stays, what comes. What stays is shown of signers only: of rules it says nothing.
fn compare(label: &str, old: &[String], new: &[String], is_all_shown: bool) -> Vec<String> {
    let leaves = old.iter().filter(|one| !new.contains(one)).map(|one| line('-', label, one));
    let rest = new.iter().filter_map(|one| match old.contains(one) {
        true if is_all_shown => Some(line(' ', label, one)),
        true => None,
        false => Some(line('+', label, one)),
    });
    leaves.chain(rest).collect()
}

/// Who decides from then on, beside who does now: two policies whose signers are called the same are not the same.
fn policies(epoch: u64, old: Option<&Policy>, new: &Policy) -> Vec<String> {
    fn words<T>(list: Option<&[T]>, word: impl Fn(&T) -> String) -> Vec<String> {
        list.unwrap_or_default().iter().map(word).collect()
    }
    let mut lines = vec![line('-', "policy", &format!("of epoch {epoch}"))];
    let (was, is) = (words(old.map(Policy::signers), signer_words), words(Some(new.signers()), signer_words));
    lines.extend(compare("signer", &was, &is, true));
    let (was, is) = (words(old.map(Policy::groups), group_words), words(Some(new.groups()), group_words));
    lines.extend(compare("group", &was, &is, true));
    let (was, is) = (words(old.map(Policy::rules), rule_words), words(Some(new.rules()), rule_words));
    lines.extend(compare("rule", &was, &is, false));
    lines
}

/// The content itself, if the entry holds it: as text if it is some, else in hex, and not more than a screen of it.
fn payload(bytes: &[u8]) -> String {
    let rest = bytes.len().saturating_sub(PAYLOAD_SHOWN);
    let rest = if rest == 0 { String::new() } else { format!(" and {rest} bytes more") };
    let shown = &bytes[..bytes.len().min(PAYLOAD_SHOWN)];
    let is_text = |text: &str| !text.chars().any(|letter| letter.is_control() && !"\n\t\r".contains(letter));
    // A letter that is cut in two at the end is none of its own.
    let whole = match std::str::from_utf8(shown) {
        Err(error) if error.error_len().is_none() => &shown[..error.valid_up_to()],
        _ => shown,
    };
    match std::str::from_utf8(whole).ok().filter(|text| is_text(text)) {
        Some(text) => line('+', "text", &format!("{text:?}{rest}")),
        None => line('+', "hex", &format!("{}{rest}", HEXLOWER.encode(shown))),
    }
}

/// How long something still lasts.
fn left(expires: u64, now: u64) -> String {
    let minutes = Duration::from_millis(expires.saturating_sub(now)).as_secs() / 60;
    match minutes {
        _ if expires <= now => "its time is over".to_owned(),
        0 => "in less than a minute".to_owned(),
        1..=89 => format!("in {minutes} minutes"),
        90..=2849 => format!("in {} h", (minutes + 30) / 60),
        _ => format!("in {} days", (minutes + 720) / 1440),
    }
}

/// A proposal in lines, beside what is there.
pub(super) fn change(proposal: &Proposal, before: &Before, now: u64) -> String {
    let mut lines = vec![format!("proposal {}", proposal.id()), line(' ', "log", proposal.origin())];
    let gone = match (before, proposal.action().prior()) {
        (Before::Name(Some((version, id))), _) => line('-', &format!("version {version}"), id),
        (Before::Name(None), _) | (_, 0) => line('-', "nothing", ""),
        (_, prior) => line('-', &format!("version {prior}"), "and what it says"),
    };
    match proposal.action() {
        Action::Bind { name, content, .. } => {
            lines.extend([line(' ', "name", name.as_str()), gone]);
            match content {
                Content::Artifact(id) => lines.push(line('+', "object", &id.to_string())),
                Content::Payload(bytes) => {
                    let id = format!("{} of {} bytes", content.id(), bytes.len());
                    lines.extend([line('+', "payload", &id), payload(bytes)]);
                }
            }
        }
        Action::Retire { name, .. } => {
            lines.extend([line(' ', "name", name.as_str()), gone, line('+', "nothing", "")]);
        }
        Action::Rotate { policy } | Action::Found { policy } => {
            let old = match before {
                Before::Policy(old) => Some(old),
                _ => None,
            };
            lines.extend(policies(proposal.epoch(), old, policy));
        }
    }
    if let Some(head) = proposal.expect_head() {
        lines.push(line(' ', "only after", &head.to_string()));
    }
    lines.push(line(' ', "expires", &left(proposal.expires(), now)));
    lines.join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use ron_core::net::Identity;

    use super::*;

    fn policy(seeds: &[(u8, &str)]) -> Policy {
        let signer = |(seed, name): &(u8, &str)| Signer {
            name: (*name).to_owned(),
            key: Identity::from_seed(&[*seed; 32]).public_key(),
            expires: (*seed == 1).then_some(7),
        };
        Policy::of(1, seeds.iter().map(signer).collect()).unwrap()
    }

    /// Who approves a rotation sees the keys that decide after it, and how many of them; who knows those that decide now, too.
    #[test]
    fn a_policy_is_shown_with_its_keys() {
        let shown = |new: Policy, before: &Before| {
            let action = Action::Rotate { policy: Arc::new(new) };
            change(&Proposal::new("example.com/log", 3, u64::MAX, action, None).unwrap(), before, 0)
        };
        let (one, other) =
            (shown(policy(&[(1, "ann")]), &Before::Unknown), shown(policy(&[(2, "ann")]), &Before::Unknown));
        let key = |seed: u8| HEXLOWER.encode(Identity::from_seed(&[seed; 32]).public_key().as_bytes());
        for line in [
            "log         example.com/log",
            "- policy      of epoch 3",
            &format!("+ signer      ann {} until 7", key(1)),
            "+ group       all: 1 of ann",
            "+ rule        rotate *: all",
        ] {
            assert!(one.contains(line), "{line} in {one}");
        }
        assert!(!other.contains(&key(1)));
        let beside =
            shown(policy(&[(2, "bob"), (3, "cy")]), &Before::Policy(policy(&[(1, "ann"), (2, "bob")])));
        for line in [
            &format!("\n- signer      ann {} until 7\n", key(1)),
            &format!("\n  signer      bob {}\n", key(2)),
            &format!("\n+ signer      cy {}\n", key(3)),
            "\n- group       all: 1 of ann, bob\n",
            "\n+ group       all: 1 of bob, cy\n",
        ] {
            assert!(beside.contains(line), "{line} in {beside}");
        }
        assert!(!beside.contains("rule"), "{beside}");
    }

    /// A payload is shown and steers no terminal.
    #[test]
    fn a_payload_is_shown() {
        let shown = |bytes: &[u8]| payload(bytes);
        assert_eq!(shown(b"level = 3\n"), "+ text        \"level = 3\\n\"");
        assert_eq!(shown(&[0, 255]), "+ hex         00ff");
        assert_eq!(shown(b"\x1b[2J"), "+ hex         1b5b324a");
        let long = Bytes::from("é".repeat(400));
        assert!(shown(&long).ends_with("é\" and 288 bytes more"), "{}", shown(&long));
    }

    #[test]
    fn time_is_told_as_people_tell_it() {
        let minute = 60_000;
        for (minutes, words) in
            [(24 * 60 - 1, "in 24 h"), (59, "in 59 minutes"), (72 * 60, "in 3 days"), (100, "in 2 h")]
        {
            assert_eq!(left(5 + minutes * minute, 5), words);
        }
        assert_eq!((&*left(5, 5), &*left(6, 5)), ("its time is over", "in less than a minute"));
    }
}
