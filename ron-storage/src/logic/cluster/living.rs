//! What objects and nodes go through, one story each.

use super::*;

#[test]
fn copies_come_to_where_they_belong_and_nowhere_else() {
    let mut cluster = Cluster::new(8);
    for number in 0..20 {
        cluster.put_copies(number, number % 8, 3);
    }
    cluster.settle();
    cluster.check_settled();
}

#[test]
fn shards_come_to_where_they_belong_and_the_whole_goes() {
    for count in [3, 9, 12] {
        let mut cluster = Cluster::new(count);
        for number in 0..10 {
            cluster.put_shards(number, number % count, 6, 3);
        }
        cluster.settle();
        cluster.check_settled();
    }
}

/// A put that is acknowledged here leaves all shards on one node: that is no 4+2 yet.
#[test]
fn shards_on_one_node_are_spread() {
    let mut cluster = Cluster::new(8);
    let object = cluster.put_shards(1, 0, 4, 2);
    for shard in cluster.claims[&object].shards[0].clone() {
        cluster.tell(name(0), shard, Holding::Good);
    }
    cluster.tell(name(0), object, Holding::Absent);
    let first = cluster.ones.get_mut(&name(0)).unwrap().plan.poll(SECOND).unwrap();
    assert_eq!(first.class, Class::Urgent);
    cluster.ones.get_mut(&name(0)).unwrap().plan.on_done(object, Outcome::Done, SECOND);
    cluster.settle();
    cluster.check_settled();
}

#[test]
fn a_node_that_is_back_within_the_grace_costs_nothing() {
    let mut cluster = Cluster::new(6);
    for number in 0..20 {
        cluster.put_copies(number, 0, 2);
    }
    cluster.settle();
    let (before, now) = (cluster.done.len(), cluster.now);
    cluster.set(2, Presence::Away);
    let up: Vec<_> = cluster.ones.keys().copied().collect();
    for id in up {
        assert_eq!(cluster.ones.get_mut(&id).unwrap().plan.poll(now + GRACE - SECOND), None);
    }
    cluster.set(2, Presence::Up);
    cluster.settle();
    assert_eq!(cluster.done.len(), before);
}

#[test]
fn a_node_that_stays_away_is_replaced_and_trimmed_when_it_is_back() {
    let mut cluster = Cluster::new(6);
    for number in 0..20 {
        cluster.put_copies(number, 0, 3);
    }
    for number in 20..30 {
        cluster.put_shards(number, 1, 3, 2);
    }
    cluster.settle();
    let (lost, before) = (cluster.ones[&name(2)].disk.len(), cluster.transfers());
    cluster.set(2, Presence::Away);
    cluster.settle();
    cluster.check_settled();
    // One for each copy, and one for all shards of an object.
    assert!(
        (1..=lost).contains(&(cluster.transfers() - before)),
        "{lost} lost, {} done",
        cluster.transfers() - before
    );
    cluster.set(2, Presence::Up);
    cluster.settle();
    cluster.check_settled();
}

#[test]
fn the_last_copy_comes_first_and_copies_before_shards() {
    let mut cluster = Cluster::new(5);
    let shards = cluster.put_shards(3, 0, 2, 1);
    cluster.settle();
    let object = |number| content(number);
    // Two of three copies, one of three, and a shard are missing, in the eyes of the one who has all of them.
    let me = name(0);
    let mut plan = Plan::new(me, PlanSettings { takeover: Duration::ZERO, ..PlanSettings::default() });
    plan.on_nodes(&cluster.nodes, SECOND);
    let wanted = |copies| Standing::Live(Wanted { copies, len: LEN, ..Wanted::default() });
    plan.on_claims(shards, cluster.claims[&shards].clone());
    plan.on_held(me, shards, Holding::Good);
    plan.on_claims(object(1), Claimed { standing: wanted(3), shards: vec![] });
    plan.on_claims(object(2), Claimed { standing: wanted(3), shards: vec![] });
    plan.on_held(me, object(1), Holding::Good);
    plan.on_held(name(1), object(1), Holding::Good);
    plan.on_held(me, object(2), Holding::Good);
    let order: Vec<_> =
        std::iter::from_fn(|| plan.poll(SECOND)).map(|step| (step.class, step.object)).collect();
    assert_eq!(order, [(Class::Urgent, object(2)), (Class::Copies, object(1)), (Class::Parity, shards)]);
}

/// A node that has just started has not seen those who are away, and does not take them for empty.
#[test]
fn who_just_started_waits_for_those_it_has_not_seen() {
    let cluster = {
        let mut cluster = Cluster::new(6);
        cluster.put_copies(0, 0, 3);
        cluster.put_shards(1, 1, 3, 2);
        cluster.settle();
        cluster
    };
    for number in 0..6 {
        let me = name(number);
        for away in (0..6).filter(|away| *away != number) {
            let mut nodes = cluster.nodes.clone();
            nodes[away].presence = Presence::Away;
            let mut plan = Plan::new(me, PlanSettings::default());
            plan.on_nodes(&nodes, SECOND);
            for (object, claimed) in &cluster.claims {
                plan.on_claims(*object, claimed.clone());
            }
            for other in (0..6).filter(|other| *other != away) {
                plan.on_compared(&name(other));
                for piece in cluster.ones[&name(other)].disk.keys() {
                    plan.on_held(name(other), *piece, Holding::Good);
                }
            }
            assert_eq!(plan.poll(SECOND), None, "{number} without {away}");
            assert_eq!(plan.count(Health::Lost), 0);
            // It does not say either that everything is there.
            for (object, claimed) in &cluster.claims {
                let pieces = claimed.shards.iter().flatten().chain([object]);
                let is_on_it =
                    pieces.into_iter().any(|piece| cluster.ones[&name(away)].disk.contains_key(piece));
                assert_eq!(plan.health(object) != Some(Health::Met), is_on_it, "{number} without {away}");
            }
        }
    }
}

/// A node that was away, or that nobody had looked at, lacks something: that it is there now, and what it has, is news about all that
/// is not as it should be.
#[test]
fn who_is_there_at_last_is_given_what_it_lacks_at_once() {
    let (mut nodes, object) = (Cluster::new(2).nodes, content(3));
    let mut plan = Plan::new(name(0), PlanSettings::default());
    plan.on_nodes(&nodes[..1], SECOND);
    let wanted = Wanted { copies: 2, len: LEN, ..Wanted::default() };
    plan.on_claims(object, Claimed { standing: Standing::Live(wanted), shards: vec![] });
    plan.on_held(name(0), object, Holding::Good);
    assert_eq!((plan.poll(SECOND), plan.health(&object)), (None, Some(Health::Urgent)));
    nodes[1].presence = Presence::Away;
    plan.on_nodes(&nodes, SECOND);
    assert_eq!((plan.poll(SECOND), plan.health(&object)), (None, Some(Health::Under)));
    nodes[1].presence = Presence::Up;
    plan.on_nodes(&nodes, SECOND * 2);
    let step = plan.poll(SECOND * 2).unwrap();
    assert_eq!((step.class, step.job), (Class::Urgent, Job::Copy { piece: object, to: name(1) }));
}

#[test]
fn draining_empties_a_node_and_gives_it_nothing() {
    let mut cluster = Cluster::new(10);
    for number in 0..20 {
        cluster.put_copies(number, 0, 2);
        cluster.put_shards(100 + number, 1, 4, 2);
    }
    cluster.settle();
    cluster.done.clear();
    cluster.set(3, Presence::Draining);
    assert!(!cluster.ones[&name(3)].disk.is_empty());
    cluster.settle();
    cluster.check_settled();
    assert!(cluster.ones[&name(3)].disk.is_empty());
    assert!(!cluster.done.iter().any(|(_, step)| step.class == Class::Urgent));
    let computed = |(_, step): &&(NodeId, Step)| matches!(step.job, Job::Rebuild { .. });
    assert_eq!(cluster.done.iter().filter(computed).count(), 0, "what is there is copied and not computed");
}

#[test]
fn what_forgets_at_a_restart_never_counts() {
    let mut cluster = Cluster::new(4);
    cluster.nodes[1].is_durable = false;
    cluster.tell_nodes();
    let object = cluster.put_copies(0, 1, 3);
    cluster.settle();
    assert_eq!(cluster.holders(&object).len(), 3);
    assert!(!cluster.ones[&name(1)].disk.contains_key(&object), "it is trimmed there");
}

#[test]
fn deleted_stays_deleted_whoever_comes_back() {
    let mut cluster = Cluster::new(6);
    let (copies, shards) = (cluster.put_copies(0, 0, 3), cluster.put_shards(1, 1, 2, 2));
    cluster.settle();
    let away =
        cluster.ones.iter().find(|(_, one)| one.disk.contains_key(&copies)).map(|(id, _)| *id).unwrap();
    let away = (0..6).find(|number| name(*number) == away).unwrap();
    cluster.set(away, Presence::Away);
    let names = cluster.claims[&shards].shards.clone();
    cluster.claim(copies, Standing::Deleted, vec![]);
    cluster.claim(shards, Standing::Deleted, vec![]);
    cluster.settle();
    cluster.check_settled();
    let someone = name((away + 1) % 6);
    assert!(cluster.ones[&someone].plan.has_copy(&copies), "the one who is away has a copy");
    let done = cluster.done.len();
    cluster.set(away, Presence::Up);
    cluster.settle();
    cluster.check_settled();
    assert!(!cluster.ones[&someone].plan.has_copy(&copies));
    for (node, step) in &cluster.done[done..] {
        assert_eq!((*node, step.class), (name(away), Class::Drop));
    }
    assert!(names.iter().flatten().all(|shard| cluster.holders(shard).is_empty()));
}

#[test]
fn a_pinned_object_is_not_trimmed() {
    let mut cluster = Cluster::new(5);
    let object = cluster.put_copies(0, 0, 2);
    let wanted = Wanted { copies: 2, is_pinned: true, len: LEN, ..Wanted::default() };
    cluster.claim(object, Standing::Live(wanted), vec![]);
    for number in 0..5 {
        cluster.tell(name(number), object, Holding::Good);
    }
    cluster.settle();
    assert_eq!(cluster.holders(&object).len(), 5);
}

#[test]
fn the_next_in_line_takes_over() {
    let mut cluster = Cluster::new(5);
    let object = cluster.put_copies(0, 0, 3);
    cluster.settle();
    let holders = cluster.holders(&object);
    let lost = (0..5).find(|number| holders.contains(&name(*number))).unwrap();
    cluster.tell(name(lost), object, Holding::Bad);
    // Whose turn it is does nothing.
    let turns: Vec<_> = holders
        .iter()
        .filter(|id| **id != name(lost))
        .map(|id| (cluster.ones.get_mut(id).unwrap().plan.poll(cluster.now).is_some(), *id))
        .collect();
    assert_eq!(turns.iter().filter(|(acts, _)| *acts).count(), 1);
    let second = turns.iter().find(|(acts, _)| !acts).unwrap().1;
    let plan = &mut cluster.ones.get_mut(&second).unwrap().plan;
    let later = cluster.now + PlanSettings::default().takeover;
    assert_eq!(plan.wake_at(), Some(later));
    assert_eq!(plan.poll(later - SECOND), None);
    let step = plan.poll(later).unwrap();
    assert_eq!(step.job, Job::Copy { piece: object, to: name(lost) });
}

#[test]
fn who_declines_is_passed_over_and_failures_wait_longer_each_time() {
    let mut cluster = Cluster::new(6);
    let object = cluster.put_copies(0, 0, 3);
    let plan = &mut cluster.ones.get_mut(&name(0)).unwrap().plan;
    let to = |step: Option<Step>| match step.map(|step| step.job) {
        Some(Job::Copy { to, .. }) => to,
        other => panic!("{other:?}"),
    };
    let first = to(plan.poll(SECOND));
    plan.on_done(object, Outcome::Declined(first), SECOND);
    let second = to(plan.poll(SECOND));
    assert_ne!(first, second);
    plan.on_done(object, Outcome::Failed, SECOND);
    assert_eq!(plan.poll(SECOND), None);
    assert_eq!(plan.wake_at(), Some(SECOND * 6));
    assert_eq!(to(plan.poll(SECOND * 6)), second);
    plan.on_done(object, Outcome::Failed, SECOND * 6);
    assert_eq!((plan.poll(SECOND * 6), plan.wake_at()), (None, Some(SECOND * 16)));
}

/// A node that answers and takes nothing, because its disk fails or what is sent to it gets stuck, was given the same object for ever:
/// it never declined, so nobody else was asked.
#[test]
fn who_cannot_take_it_is_passed_over_after_a_few_tries() {
    check_passed_over(1, 3, SECOND * 20);
    // Of two copies none is the last: first it is waited for whether the node is gone.
    check_passed_over(2, 6, SECOND * 160);
}

fn check_passed_over(holders: usize, times: usize, at_most: Duration) {
    let mut cluster = Cluster::new(6);
    let object = cluster.put_copies(0, 0, 3);
    (1..holders).for_each(|number| cluster.tell(name(number), object, Holding::Good));
    // Who is first in line of those that have it.
    let is_first = |number: &usize| {
        let mut plan = cluster.ones[&name(*number)].plan.clone();
        plan.poll(SECOND).is_some()
    };
    let first = (0..holders).find(is_first).unwrap();
    let plan = &mut cluster.ones.get_mut(&name(first)).unwrap().plan;
    let mut tried = Vec::new();
    let mut now = SECOND;
    while tried.len() <= times {
        match plan.poll(now).map(|step| step.job) {
            Some(Job::Copy { to, .. }) => {
                tried.push(to);
                plan.on_done(object, Outcome::Stuck(to), now);
            }
            Some(other) => panic!("{other:?}"),
            None => now = plan.wake_at().unwrap(),
        }
        assert!(now < at_most, "{tried:?}");
    }
    assert!(tried[..times].iter().all(|to| *to == tried[0]), "{tried:?}");
    assert_ne!(tried[times], tried[0]);
}

/// Where nobody else is left, whoever declined is asked again when that is over. Nobody thought of it before something else was heard.
#[test]
fn who_declined_is_asked_again() {
    let mut cluster = Cluster::new(2);
    let object = cluster.put_copies(0, 0, 2);
    let plan = &mut cluster.ones.get_mut(&name(0)).unwrap().plan;
    assert!(plan.poll(SECOND).is_some());
    plan.on_done(object, Outcome::Declined(name(1)), SECOND);
    assert_eq!(plan.poll(SECOND), None);
    let later = plan.wake_at().unwrap();
    let step = plan.poll(later).unwrap();
    assert_eq!(step.job, Job::Copy { piece: object, to: name(1) });
}

/// What the next loss would end does not wait because something that mattered less failed before.
#[test]
fn what_is_urgent_does_not_wait_for_what_failed() {
    let mut cluster = Cluster::new(4);
    let object = cluster.put_copies(0, 0, 2);
    cluster.settle();
    let holders = cluster.holders(&object);
    let extra = (0..4).find(|number| !holders.contains(&name(*number))).unwrap();
    // One too many, which is not trimmed again and again: somebody reads it.
    cluster.tell(name(extra), object, Holding::Good);
    let plan = &mut cluster.ones.get_mut(&name(extra)).unwrap().plan;
    let mut now = cluster.now;
    for _ in 0..10 {
        let step = loop {
            match plan.poll(now) {
                Some(step) => break step,
                None => now = plan.wake_at().unwrap().max(now),
            }
        };
        assert_eq!(step.class, Class::Trim);
        plan.on_done(object, Outcome::Failed, now);
    }
    for holder in holders {
        plan.on_held(holder, object, Holding::Absent);
    }
    assert_eq!(plan.poll(now).map(|step| step.class), Some(Class::Urgent));
}

#[test]
fn what_is_lost_is_said_once_and_what_is_found_too() {
    let mut cluster = Cluster::new(9);
    let (copies, shards) = (cluster.put_copies(0, 0, 2), cluster.put_shards(1, 1, 6, 3));
    cluster.settle();
    let holders = cluster.holders(&copies);
    let others: Vec<usize> = (0..9).filter(|number| !holders.contains(&name(*number))).take(2).collect();
    // Two with the copies and two more: four shards, and three may go.
    for number in (0..9).filter(|number| holders.contains(&name(*number)) || others.contains(number)) {
        cluster.set(number, Presence::Away);
    }
    cluster.settle();
    let mut lost: Vec<_> = cluster.news.iter().filter(|news| **news == News::Lost(copies)).collect();
    assert_eq!(lost.len(), 5, "each of those who are left, once");
    lost = cluster.news.iter().filter(|news| **news == News::Lost(shards)).collect();
    assert_eq!(lost.len(), 5);
    cluster.set(others[0], Presence::Up);
    cluster.settle();
    assert!(cluster.news.contains(&News::Found(shards)));
    assert!(!cluster.news.contains(&News::Found(copies)));
}

/// The pieces of an object that is all zeros, or that repeats itself, are the same bytes and so one piece with many homes. A node
/// that was the home of the sixth trimmed it because somebody else was the home of the first, and was given it again, for ever.
#[test]
fn shards_of_the_same_bytes_are_not_trimmed_and_copied_for_ever() {
    let mut cluster = Cluster::new(8);
    let (object, same) = (content(77), ContentId::of(b"zeros"));
    for names in [vec![same; 6], vec![same, ContentId::of(b"a"), same, same, ContentId::of(b"b"), same]] {
        let coding = Coding { data: 4, parity: 2, manifest: ContentId::of(b"manifest") };
        let wanted = Wanted { codings: vec![coding], len: LEN, ..Wanted::default() };
        cluster.claim(object, Standing::Live(wanted), vec![names.clone()]);
        cluster.tell(name(0), object, Holding::Good);
        let before = cluster.done.len();
        cluster.settle();
        assert!(cluster.done.len() - before < 30, "{} steps", cluster.done.len() - before);
        let homes: BTreeSet<NodeId> = names.iter().flat_map(|shard| cluster.holders(shard)).collect();
        assert_eq!(homes.len(), 6);
        assert!(cluster.ones.values().all(|one| one.plan.health(&object) == Some(Health::Met)));
        cluster.claim(object, Standing::Deleted, vec![names]);
        cluster.settle();
        cluster.check_settled();
    }
}

/// A pin keeps copies where they are, also on a node that is about to go: that node was never empty.
#[test]
fn what_is_pinned_does_not_keep_a_node_from_going() {
    let mut cluster = Cluster::new(5);
    let (pinned, both) = (content(1), cluster.put_copies(2, 0, 2));
    let only = Wanted { is_pinned: true, len: LEN, ..Wanted::default() };
    cluster.claim(pinned, Standing::Live(only), vec![]);
    cluster.tell(name(3), pinned, Holding::Good);
    let wanted = Wanted { copies: 2, is_pinned: true, len: LEN, ..Wanted::default() };
    cluster.claim(both, Standing::Live(wanted), vec![]);
    cluster.settle();
    cluster.tell(name(3), both, Holding::Good);
    cluster.settle();
    assert_eq!(cluster.holders(&pinned), [name(3)]);
    cluster.set(3, Presence::Draining);
    cluster.settle();
    assert!(cluster.ones[&name(3)].disk.is_empty(), "it is empty");
    assert!(!cluster.holders(&pinned).is_empty() && cluster.holders(&both).len() >= 2);
}

/// A node in memory that does not answer has lost what it had. It was taken for a durable one as soon as nobody could ask it, and
/// so its copy counted just when it was gone.
#[test]
fn what_forgets_counts_no_more_when_it_is_away() {
    let mut cluster = Cluster::new(4);
    cluster.nodes[1].is_durable = false;
    cluster.tell_nodes();
    let object = cluster.put_copies(0, 1, 2);
    cluster.tell(name(2), object, Holding::Good);
    let plan = &mut cluster.ones.get_mut(&name(2)).unwrap().plan;
    assert_eq!(plan.copies_of(&object), 1);
    let mut nodes = cluster.nodes.clone();
    // What the looker says of a node that does not answer.
    (nodes[1].presence, nodes[1].is_durable) = (Presence::Away, true);
    plan.on_nodes(&nodes, SECOND);
    plan.poll(SECOND);
    assert_eq!((plan.copies_of(&object), plan.health(&object)), (1, Some(Health::Urgent)));
}

/// A node that said that it would go, and went, is not waited for, and given nothing.
#[test]
fn who_drained_and_went_is_given_up_at_once() {
    let mut cluster = Cluster::new(5);
    for number in 0..20 {
        cluster.put_copies(number, 0, 2);
    }
    cluster.settle();
    let before = cluster.now;
    cluster.set(3, Presence::Draining);
    cluster.set(3, Presence::Away);
    let up: Vec<_> = (0..5).filter(|number| *number != 3).map(name).collect();
    for id in &up {
        let plan = &cluster.ones[id].plan;
        assert!((0..20).all(|number| !plan.targets(&content(number), 2).contains(&name(3))));
    }
    cluster.settle();
    cluster.check_settled();
    assert!(cluster.now < before + GRACE, "nothing waited for it");
}

/// One that is away for most of the time was never given up, because each time it came back the grace began anew.
#[test]
fn who_comes_and_goes_is_given_up_and_nothing_moves_to_and_fro() {
    let mut cluster = Cluster::new(6);
    for number in 0..20 {
        cluster.put_copies(number, 0, 2);
    }
    cluster.settle();
    let (held, settled) = (cluster.ones[&name(2)].disk.len(), cluster.done.len());
    assert!(held > 0);
    for _ in 0..40 {
        cluster.set(2, Presence::Away);
        let until = cluster.now + SECOND * 600;
        cluster.run_until(until);
        cluster.set(2, Presence::Up);
        let until = cluster.now + SECOND * 300;
        cluster.run_until(until);
    }
    let done = &cluster.done[settled..];
    let copied = done.iter().filter(|(_, step)| matches!(step.job, Job::Copy { .. })).count();
    // What it has is copied elsewhere once, and once only.
    assert_eq!(copied, held, "of {} steps", done.len());
    cluster.settle();
    cluster.check_settled();
}

/// A policy that changes leaves the shards of the one before, which nobody names any more.
#[test]
fn shards_of_a_policy_that_is_over_go() {
    let mut cluster = Cluster::new(8);
    let object = cluster.put_shards(1, 0, 3, 2);
    cluster.settle();
    let before = cluster.claims[&object].shards[0].clone();
    assert!(before.iter().all(|shard| cluster.holders(shard).len() == 1));
    // Whoever changes it has the object first.
    cluster.tell(name(5), object, Holding::Good);
    let copies = Wanted { copies: 2, len: LEN, ..Wanted::default() };
    cluster.claim(object, Standing::Live(copies), vec![]);
    cluster.settle();
    cluster.check_settled();
    assert!(before.iter().all(|shard| cluster.holders(shard).is_empty()), "they are still there");
    assert!(cluster.ones.values().all(|one| before.iter().all(|shard| !one.plan.is_known(shard))));
}

/// Whoever changes the policy has the only copy until others have theirs. If it is lost with that, the shards are still there.
#[test]
fn a_copy_that_is_lost_before_there_is_another_comes_back_out_of_the_shards_before() {
    let mut cluster = Cluster::new(8);
    let object = cluster.put_shards(1, 0, 3, 2);
    cluster.settle();
    let before = cluster.claims[&object].shards[0].clone();
    let copies = Wanted { copies: 2, len: LEN, ..Wanted::default() };
    cluster.claim(object, Standing::Live(copies), vec![]);
    // Too few of them for now: nothing is lost by trying.
    let (first, second) = (cluster.holders(&before[0])[0], cluster.holders(&before[1])[0]);
    let away = |cluster: &Cluster, id| cluster.nodes.iter().position(|node| node.id == id).unwrap();
    let numbers = [first, second, cluster.holders(&before[2])[0]].map(|id| away(&cluster, id));
    numbers.iter().for_each(|number| cluster.set(*number, Presence::Away));
    cluster.run_until(2 * GRACE);
    assert!(cluster.holders(&object).is_empty());
    numbers.iter().for_each(|number| cluster.set(*number, Presence::Up));
    cluster.settle();
    cluster.check_settled();
    assert_eq!(cluster.holders(&object).len(), 2);
    assert!(before.iter().all(|shard| cluster.holders(shard).is_empty()), "they are still there");
}

/// A node that was started again has not seen how the policy changed, and is told what is left here of the one before.
#[test]
fn what_is_left_of_a_policy_goes_when_the_next_is_met_and_not_before() {
    let mut cluster = Cluster::new(5);
    let (object, other) = (cluster.put_shards(1, 0, 2, 1), cluster.put_shards(2, 0, 2, 1));
    let left = [ContentId::of(b"old shard"), ContentId::of(b"old manifest"), ContentId::of(b"shared")];
    let mut shards = cluster.claims[&other].shards.clone();
    shards[0].push(left[2]);
    let Standing::Live(mut wanted) = cluster.claims[&other].standing.clone() else { panic!("it lives") };
    wanted.codings[0].parity = 2;
    cluster.claim(other, Standing::Live(wanted), shards);
    for piece in left {
        cluster.tell(name(0), piece, Holding::Good);
        let one = &mut cluster.ones.get_mut(&name(0)).unwrap().plan;
        one.on_left(&object, &[piece]);
        one.on_held(name(0), piece, Holding::Good);
    }
    let is_over = |cluster: &Cluster| left.map(|piece| !cluster.ones[&name(0)].disk.contains_key(&piece));
    cluster.tell(name(0), object, Holding::Bad);
    let up = cluster.ones.get_mut(&name(0)).unwrap().plan.poll(SECOND).map(|step| step.object);
    assert_ne!(up, Some(object), "nothing is left of it");
    assert_eq!(is_over(&cluster), [false; 3]);
    cluster.ones.get_mut(&name(0)).unwrap().plan.on_done(other, Outcome::Failed, SECOND);
    cluster.tell(name(0), object, Holding::Good);
    cluster.settle();
    cluster.check_settled();
    assert_eq!(is_over(&cluster), [true, true, cluster.holders(&left[2]) != [name(0)]]);
    assert_eq!(cluster.holders(&left[2]).len(), 1, "the other object wants it");
}

/// A piece that went bad where it does not belong any more was replaced elsewhere, and stayed there for ever.
#[test]
fn what_is_bad_and_does_not_belong_here_goes() {
    let mut cluster = Cluster::new(8);
    let (copies, shards) = (cluster.put_copies(0, 0, 2), cluster.put_shards(1, 1, 3, 2));
    cluster.settle();
    let shard = cluster.claims[&shards].shards[0][2];
    for piece in [copies, shard, shards] {
        let object = if piece == copies { copies } else { shards };
        let targets = cluster.ones[&name(0)].plan.targets(&object, 5);
        let other = (0..8).map(name).find(|id| !targets.contains(id)).unwrap();
        cluster.tell(other, piece, Holding::Bad);
        cluster.settle();
        assert!(!cluster.ones[&other].disk.contains_key(&piece));
    }
    cluster.check_settled();
}

#[test]
fn what_nobody_claims_is_not_kept_in_mind() {
    let mut cluster = Cluster::new(3);
    let plan = &mut cluster.ones.get_mut(&name(0)).unwrap().plan;
    for number in 0..1000 {
        plan.on_held(name(1), content(number), Holding::Good);
    }
    assert_eq!(plan.held_by(&name(1)).count(), 0);
    assert!(!plan.has_copy(&content(3)));
}

#[test]
fn the_fewest_copies_are_known_without_looking_at_all_of_them() {
    let mut cluster = Cluster::new(6);
    for number in 0..20 {
        cluster.put_copies(number, 0, 3);
    }
    cluster.settle();
    let fewest = |cluster: &Cluster| cluster.ones[&name(1)].plan.fewest_copies();
    assert_eq!(fewest(&cluster), Some(3));
    let holder = cluster.holders(&content(4))[0];
    let one = &mut cluster.ones.get_mut(&name(1)).unwrap().plan;
    one.on_held(holder, content(4), Holding::Bad);
    one.poll(SECOND);
    assert_eq!(fewest(&cluster), Some(2));
    for number in 0..20 {
        cluster.claim(content(number), Standing::Deleted, vec![]);
    }
    cluster.settle();
    assert_eq!(fewest(&cluster), None);
}

#[test]
fn only_what_changed_is_weighed() {
    let mut cluster = Cluster::new(5);
    for number in 0..50 {
        cluster.put_copies(number, 0, 2);
    }
    cluster.settle();
    let one = &mut cluster.ones.get_mut(&name(0)).unwrap().plan;
    assert_eq!((one.weighing(), one.wake_at()), (0, None));
    one.on_held(name(1), content(3), Holding::Bad);
    one.on_held(name(1), content(3), Holding::Bad);
    assert_eq!(one.weighing(), 1);
}
