//! Loom models of the lanes, permits, snapshots and latches that ship, in the shapes in which subsystems use them.
//!
//! Run with `RUSTFLAGS="--cfg ron_loom" cargo test -p ron-core --release --lib models`. Every model bounds its
//! preemptions: three find the bugs of this kind, and the state space stays a matter of seconds. The planted bugs run
//! a model again in a process of its own, because loom ends a deadlocked one by aborting.

use std::{
    future::{Future, poll_fn},
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use loom::{future::block_on, thread};

use crate::{
    CallError, Deadline, Event, Feed, Lane, LaneSpec, Metrics, PriorityInbox, Snapshot, Stop, Tally,
    permits::Permits,
    planted::{Bug, plant},
    roll::Roll,
};

const ONE: LaneSpec = LaneSpec::new("model", "one", 1);
const TWO: LaneSpec = LaneSpec::new("model", "two", 2);

/// Names the bug to plant in a child process.
const PLANT: &str = "RON_PLANT";

fn model(run: impl Fn() + Sync + Send + 'static) {
    let bug = match std::env::var(PLANT).as_deref() {
        Ok("LostStop") => Some(Bug::LostStop),
        Ok("LostJob") => Some(Bug::LostJob),
        Ok("DrainDrops") => Some(Bug::DrainDrops),
        Ok("LeakedPermit") => Some(Bug::LeakedPermit),
        _ => None,
    };
    let _planted = bug.map(plant);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn lane(spec: LaneSpec) -> (Lane<Job>, crate::Inbox<Job>) {
    Lane::open(spec, &Metrics::default())
}

fn stop_now(stop: &Stop) {
    stop.request(Deadline::after(std::time::Duration::from_secs(1)));
}

/// A job that counts its drops, so that a lost or doubled one shows.
#[derive(Debug)]
struct Job {
    number: usize,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Drives `future` one step and then gives it up, as `select!` does with the loser. Tells what it said.
async fn one_look<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// A worker that takes jobs until the lane ends. It is told to stop through `stop`, and drains.
async fn work(inbox: crate::Inbox<Job>, stop: Stop) -> Vec<usize> {
    let mut done = Vec::new();
    let mut stopping = false;
    loop {
        let mut requested = pin!(stop.requested());
        let mut next = pin!(inbox.recv());
        // What `select! { biased; .. }` does, without tokio's macro in the model.
        let job = poll_fn(|cx| {
            if !stopping && requested.as_mut().poll(cx).is_ready() {
                stopping = true;
                inbox.close();
            }
            next.as_mut().poll(cx)
        })
        .await;
        match job {
            Some(job) => done.push(job.number),
            None => return done,
        }
    }
}

#[test]
fn dht_work_reaches_the_bucket_writer_in_order_and_ends() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (work_lane, work_inbox) = lane(TWO);
        let (route_lane, route_inbox) = lane(ONE);
        let stop = Stop::new();
        work_lane.close_on(&stop);
        let worker = thread::spawn(move || {
            block_on(async {
                while let Some(job) = work_inbox.recv().await {
                    route_lane.producer_push(job).await;
                }
            });
        });
        let writer = thread::spawn(move || {
            block_on(async {
                let mut routed = Vec::new();
                while let Some(job) = route_inbox.recv().await {
                    routed.push(job.number);
                }
                routed
            })
        });
        let accepted: Vec<usize> = (0..2)
            .filter(|number| {
                work_lane.try_push(Job { number: *number, dropped: Arc::clone(&dropped) }).is_ok()
            })
            .collect();
        stop_now(&stop);
        worker.join().unwrap();
        assert_eq!(writer.join().unwrap(), accepted, "lost, doubled or reordered");
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn dht_bucket_snapshots_are_whole_and_never_go_back() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (route_lane, route_inbox) = lane(TWO);
        let snapshot = Snapshot::new((0, Vec::new()));
        let stop = Stop::new();
        route_lane.close_on(&stop);
        let published = snapshot.clone();
        let writer = thread::spawn(move || {
            block_on(async {
                let mut bucket = Vec::new();
                while let Some(job) = route_inbox.recv().await {
                    bucket.push(job.number);
                    published.replace((bucket.len(), bucket.clone()));
                }
            });
        });
        let accepted: Vec<usize> = (0..2)
            .filter(|number| {
                route_lane.try_push(Job { number: *number, dropped: Arc::clone(&dropped) }).is_ok()
            })
            .collect();
        // A lookup reads while the writer publishes, and never waits for it.
        let (first, second) = (snapshot.load(), snapshot.load());
        for seen in [&first, &second] {
            assert_eq!(seen.0, seen.1.len(), "torn");
        }
        assert!(first.0 <= second.0, "went back");
        stop_now(&stop);
        writer.join().unwrap();
        assert_eq!(snapshot.load().1, accepted, "what was queued at the stop is published");
    });
}

#[test]
fn index_shutdown_is_never_lost() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(ONE);
        let stop = Stop::new();
        let seen = stop.clone();
        let consumer = thread::spawn(move || block_on(work(inbox, seen)));
        let pushed = lane.try_push(Job { number: 1, dropped: Arc::clone(&dropped) });
        stop_now(&stop);
        let done = consumer.join().unwrap();
        assert_eq!(done.len(), usize::from(pushed.is_ok()), "a job that was accepted is done");
        drop(lane);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "each job is dropped once");
    });
}

#[test]
fn index_config_swap_is_old_or_new() {
    model(|| {
        let settings = Snapshot::new((1, 1));
        let mut watch = settings.watch();
        let writer = {
            let settings = settings.clone();
            thread::spawn(move || {
                settings.replace((2, 2));
                settings.update(|old| (old.0 + 1, old.1 + 1));
            })
        };
        let (left, right) = **watch.get();
        assert_eq!(left, right, "torn");
        block_on(async {
            while watch.get().0 != 3 {
                watch.changed().await;
            }
        });
        assert_eq!(**watch.get(), (3, 3));
        writer.join().unwrap();
    });
}

#[test]
fn overlay_two_producers_one_consumer_and_an_interrupt() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(ONE);
        let stop = Stop::new();
        lane.close_on(&stop);
        let producers = [1, 2].map(|number| {
            let (lane, dropped) = (lane.clone(), Arc::clone(&dropped));
            thread::spawn(move || lane.try_push(Job { number, dropped }).is_ok())
        });
        drop(lane.clone());
        let first = block_on(one_look(inbox.recv())).flatten();
        stop_now(&stop);
        let late = lane.try_push(Job { number: 3, dropped: Arc::clone(&dropped) });
        assert_eq!(late, Err(CallError::Canceled), "a push after the stop must be an error");
        let accepted = producers.map(|producer| usize::from(producer.join().unwrap())).iter().sum::<usize>();
        let rest = block_on(async {
            let mut rest = 0;
            while inbox.recv().await.is_some() {
                rest += 1;
            }
            rest
        });
        assert_eq!(usize::from(first.is_some()) + rest, accepted);
        drop(first);
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn storage_listener_to_worker_handles_or_refuses() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(TWO);
        let stop = Stop::new();
        let seen = stop.clone();
        let listener = {
            let dropped = Arc::clone(&dropped);
            thread::spawn(move || {
                let push = |number| lane.try_push(Job { number, dropped: Arc::clone(&dropped) });
                [push(1), push(2)].into_iter().filter(Result::is_ok).count()
            })
        };
        let worker = thread::spawn(move || block_on(work(inbox, seen)));
        stop_now(&stop);
        let accepted = listener.join().unwrap();
        assert_eq!(worker.join().unwrap().len(), accepted, "handled, or refused with an error");
        assert_eq!(dropped.load(Ordering::SeqCst), 2, "no double drop");
    });
}

#[test]
fn registry_commits_once_and_publishes_each_commit() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (approvals, approvals_inbox) = lane(ONE);
        let (proposals, proposals_inbox) = lane(ONE);
        let feed = Feed::unmeasured(LaneSpec::feed("model", "committed", 2), Tally::default());
        let mut follower = feed.subscribe();
        let committer = thread::spawn(move || {
            let burst = NonZeroUsize::MIN;
            let mut inbox = PriorityInbox::new(approvals_inbox, proposals_inbox, burst);
            block_on(async {
                let mut head = Vec::new();
                while let Some(job) = inbox.recv().await {
                    head.push(job.number);
                    feed.publish(job.number);
                }
                head
            })
        });
        let job = |number| Job { number, dropped: Arc::clone(&dropped) };
        proposals.try_push(job(1)).unwrap();
        approvals.try_push(job(2)).unwrap();
        drop((approvals, proposals));
        let mut followed = Vec::new();
        block_on(async {
            while let Some(event) = follower.recv().await {
                match event {
                    Event::Item(number) => followed.push(number),
                    Event::Missed(_) => unreachable!("two events fit into the feed"),
                }
            }
        });
        let mut head = committer.join().unwrap();
        assert_eq!(followed, head, "published in commit order");
        head.sort_unstable();
        assert_eq!(head, [1, 2], "each proposal is committed once");
    });
}

#[test]
fn a_job_given_up_by_one_consumer_reaches_the_next() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(TWO);
        let other = inbox.clone();
        // Waits, is perhaps woken for the job, and then has something better to do.
        let fickle = thread::spawn(move || block_on(one_look(inbox.recv())).flatten().is_some());
        let steady = thread::spawn(move || {
            block_on(async {
                let mut taken = 0;
                while other.recv().await.is_some() {
                    taken += 1;
                }
                taken
            })
        });
        lane.try_push(Job { number: 1, dropped: Arc::clone(&dropped) }).unwrap();
        let had_it = fickle.join().unwrap();
        if had_it {
            lane.close();
            assert_eq!(steady.join().unwrap(), 0);
        } else {
            // The lane stays open: only the wake-up can bring the job to the steady consumer.
            while dropped.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            lane.close();
            assert_eq!(steady.join().unwrap(), 1);
        }
    });
}

/// A worker that is busy with its job does not come back to the queue: a wake-up meant for the second job must not
/// end with it.
#[test]
fn two_workers_with_one_job_each_take_both() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(TWO);
        let workers = [inbox.clone(), inbox].map(|inbox| {
            thread::spawn(move || {
                let job = block_on(inbox.recv());
                // Kept for ever, as a job that takes long is.
                std::mem::forget(job);
                std::mem::forget(inbox);
            })
        });
        for number in [1, 2] {
            lane.try_push(Job { number, dropped: Arc::clone(&dropped) }).unwrap();
        }
        workers.map(|worker| worker.join().unwrap());
    });
}

#[test]
fn permits_are_given_back_on_every_path() {
    model(|| {
        let permits = Permits::new(2);
        let greedy = {
            let permits = permits.clone();
            thread::spawn(move || drop(block_on(permits.take(2))))
        };
        let hasty = {
            let permits = permits.clone();
            // Takes what it can get at once, or gives up.
            thread::spawn(move || drop(block_on(one_look(permits.take(1)))))
        };
        drop(permits.try_take(2));
        greedy.join().unwrap();
        hasty.join().unwrap();
        assert_eq!(permits.free(), 2, "permits leaked or multiplied");
    });
}

#[test]
fn drain_accounting_counts_everybody_or_refuses() {
    model(|| {
        let roll: Arc<Roll<()>> = Arc::new(Roll::new());
        let first = roll.enter().unwrap();
        let member = {
            let roll = Arc::clone(&roll);
            thread::spawn(move || {
                // A task that starts another one while it drains, and then ends.
                let second = roll.enter();
                roll.leave(first, true);
                second.map(|second| roll.leave(second, true)).is_some()
            })
        };
        roll.begin_emptying();
        block_on(roll.empty());
        assert_eq!(roll.present(), 0, "said to be empty while somebody ran");
        assert!(roll.enter().is_none(), "the roll is closed once it was empty");
        assert!(member.join().unwrap(), "a running task may still start another");
        assert!(roll.drained() <= 2);
    });
}

#[test]
fn a_waiting_producer_is_admitted_or_told() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(ONE);
        lane.try_push(Job { number: 0, dropped: Arc::clone(&dropped) }).unwrap();
        let producer = {
            let (lane, dropped) = (lane.clone(), Arc::clone(&dropped));
            thread::spawn(move || block_on(lane.producer_push(Job { number: 1, dropped })))
        };
        let mut taken = usize::from(inbox.try_recv().is_some());
        inbox.close();
        let admitted = producer.join().unwrap();
        while inbox.try_recv().is_some() {
            taken += 1;
        }
        assert_eq!(taken, 1 + usize::from(admitted));
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn overlay_writer_takes_many_and_lets_those_who_wait_in() {
    model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (lane, inbox) = lane(TWO);
        let producer = {
            let (lane, dropped) = (lane.clone(), Arc::clone(&dropped));
            thread::spawn(move || {
                block_on(async {
                    for number in 0..3 {
                        assert!(lane.producer_push(Job { number, dropped: Arc::clone(&dropped) }).await);
                    }
                });
            })
        };
        drop(lane);
        let mut numbers = Vec::new();
        let mut taken = Vec::new();
        while let Some(job) = block_on(inbox.recv()) {
            numbers.push(job.number);
            inbox.try_recv_while(&mut taken, |_| true);
            numbers.extend(taken.drain(..).map(|held| held.item.number));
        }
        producer.join().unwrap();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
    });
}

/// Runs a model of this file again with `bug` planted, and requires it to fail.
fn must_fail(model: &str, bug: Bug) {
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("models::{model}"), "--exact"])
        .env(PLANT, format!("{bug:?}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("running 1 test"), "no such model: {said}");
    assert!(!run.status.success(), "{model} does not notice {bug:?}");
}

#[test]
fn planted_lost_stop_is_caught() {
    must_fail("index_shutdown_is_never_lost", Bug::LostStop);
}

#[test]
fn planted_lost_job_is_caught() {
    must_fail("a_job_given_up_by_one_consumer_reaches_the_next", Bug::LostJob);
}

#[test]
fn planted_drain_that_drops_is_caught() {
    must_fail("dht_work_reaches_the_bucket_writer_in_order_and_ends", Bug::DrainDrops);
}

#[test]
fn planted_leaked_permit_is_caught() {
    must_fail("permits_are_given_back_on_every_path", Bug::LeakedPermit);
}
