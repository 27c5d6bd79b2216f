use std::{collections::VecDeque, num::NonZeroUsize, time::Duration};

use proptest::prelude::*;
use ron_core::{
    CallError, Deadline, Inbox, Lane, LaneSpec, MemoryBudget, Metrics, PriorityInbox, Reply, Stop,
    Supervisor, TaskSpec,
};

use super::{explode, registered, series, settle, soon};

const WORK: LaneSpec = LaneSpec::new("test", "work", 2);
const TASK: TaskSpec = TaskSpec::new("test", "task");

fn lane<T: Send + 'static>(spec: LaneSpec) -> (Lane<T>, Inbox<T>) {
    Lane::open(spec, &Metrics::default())
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_and_depth_is_the_truth() {
    let (registry, metrics) = registered();
    let (lane, inbox) = Lane::open(WORK, &metrics);
    assert_eq!((0..5).filter(|item| lane.try_push(*item).is_ok()).count(), 2);
    assert_eq!(series(&registry, "busy_rejections_total{endpoint=\"work\"}"), Some(3));
    assert_eq!(series(&registry, "queue_depth{queue=\"work\"}"), Some(2));
    assert_eq!(inbox.recv().await, Some(0));
    assert_eq!(series(&registry, "queue_depth{queue=\"work\"}"), Some(1));
    assert_eq!(series(&registry, "queue_dropped_total{queue=\"work\"}"), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_sheds_keeps_the_newest_and_counts_the_rest() {
    let (registry, metrics) = registered();
    let (lane, inbox) = Lane::open(WORK.shed_oldest(), &metrics);
    for item in 0..5 {
        lane.try_push(item).unwrap();
    }
    assert_eq!(series(&registry, "queue_dropped_total{queue=\"work\"}"), Some(3));
    assert_eq!(series(&registry, "busy_rejections_total{endpoint=\"work\"}"), Some(0));
    assert_eq!((inbox.try_recv(), inbox.try_recv(), inbox.try_recv()), (Some(3), Some(4), None));
}

/// Also what nobody looked at in time, however it came in: at once, after waiting, in the place of an older one.
#[tokio::test(start_paused = true)]
async fn the_most_that_ever_waited_is_remembered() {
    const FEW: LaneSpec = LaneSpec::new("test", "few", 3);
    let metrics = Metrics::default();
    let seen = || {
        let depths = |queues: Vec<ron_core::QueueState>| -> Vec<usize> {
            queues.iter().map(|queue| queue.depth).collect()
        };
        (depths(metrics.queues()), depths(metrics.queues_at_most()))
    };
    let (lane, inbox) = Lane::open(FEW, &metrics);
    lane.try_push(0).unwrap();
    lane.try_push(1).unwrap();
    assert_eq!((inbox.try_recv(), inbox.try_recv()), (Some(0), Some(1)));
    assert_eq!(seen(), (vec![0], vec![2]));
    for item in 2..5 {
        lane.try_push(item).unwrap();
    }
    lane.try_push(5).unwrap_err();
    let (pushed, _) = tokio::join!(lane.push(5, soon()), async { inbox.try_recv() });
    pushed.unwrap();
    while inbox.try_recv().is_some() {}
    assert_eq!(seen(), (vec![0], vec![3]));
    drop((lane, inbox));
    let (shedding, _inbox) = Lane::open(FEW.shed_oldest(), &metrics);
    (0..10).for_each(|item| shedding.try_push(item).unwrap());
    assert_eq!(seen(), (vec![3], vec![3]));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_room_ends_at_the_deadline_and_leaves_nothing_behind() {
    let (registry, metrics) = registered();
    let (lane, inbox) = Lane::open(WORK, &metrics);
    lane.try_push(1).unwrap();
    lane.try_push(2).unwrap();
    assert_eq!(lane.push(3, soon()).await, Err(CallError::Timeout { op: "work" }));
    assert_eq!(series(&registry, "io_timeouts_total{op=\"work\"}"), Some(1));
    drop(lane);
    assert_eq!((inbox.recv().await, inbox.recv().await, inbox.recv().await), (Some(1), Some(2), None));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_order_and_not_overtaken() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane(WORK);
    lane.try_push(0).unwrap();
    lane.try_push(1).unwrap();
    for item in 2..5 {
        let lane = lane.clone();
        supervisor.spawn(TASK, |_| async move { lane.push(item, soon()).await.unwrap() });
        settle().await;
    }
    assert_eq!(inbox.recv().await, Some(0));
    assert!(lane.try_push(9).is_err(), "the place belongs to the one who waits longest");
    for expected in 1..5 {
        assert_eq!(inbox.recv().await, Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_drains_what_was_accepted_and_refuses_who_waits() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane(WORK);
    lane.try_push(0).unwrap();
    lane.try_push(1).unwrap();
    let waiting = lane.clone();
    let task = supervisor.spawn(TASK, |_| async move {
        assert_eq!(waiting.push(2, soon()).await, Err(CallError::Canceled));
    });
    settle().await;
    inbox.close();
    assert_eq!(lane.try_push(3), Err(CallError::Canceled));
    assert_eq!((inbox.recv().await, inbox.recv().await, inbox.recv().await), (Some(0), Some(1), None));
    assert_eq!(task.ended().await, ron_core::TaskEnd::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_intake_before_anything_else() {
    let supervisor = Supervisor::new("test");
    let stop: Stop = supervisor.stop();
    let (lane, inbox) = lane(WORK);
    lane.close_on(&stop);
    lane.try_push(1).unwrap();
    supervisor.abort();
    supervisor.shutdown().await;
    assert!(lane.is_closed());
    assert_eq!((inbox.recv().await, inbox.recv().await), (Some(1), None));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_answered_late_or_lost_but_never_silent() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane::<(u32, Reply<u32>)>(WORK);
    supervisor.spawn(TASK, |_| async move {
        while let Some((question, reply)) = inbox.recv().await {
            match question {
                0 => reply.send(42),
                1 => drop(reply),
                2 => reply.refuse(CallError::Busy { what: "disk", retry_after: Duration::ZERO }),
                _ => {
                    // Keeps the caller waiting.
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    assert!(reply.is_abandoned());
                }
            }
        }
    });
    let ask = |question| {
        let lane = lane.clone();
        async move { lane.call("ask", soon(), |reply| (question, reply)).await }
    };
    assert_eq!(ask(0).await, Ok(42));
    assert_eq!(ask(1).await, Err(CallError::Canceled));
    assert!(matches!(ask(2).await, Err(CallError::Busy { what: "disk", .. })));
    assert_eq!(ask(3).await, Err(CallError::Timeout { op: "ask" }));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_panics_tells_its_caller() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane::<Reply<()>>(WORK);
    supervisor.spawn(TASK, |_| async move {
        let _reply = inbox.recv().await;
        explode("out of ideas");
    });
    let answer = lane.call("ask", soon(), |reply| reply).await;
    assert_eq!(answer, Err(CallError::Panicked { op: "ask" }));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_frees_its_place() {
    let (lane, inbox) = lane::<Reply<()>>(WORK);
    for _ in 0..10 {
        let gone = lane.call("ask", soon(), |reply| reply).await;
        assert_eq!(gone, Err(CallError::Timeout { op: "ask" }));
        assert_eq!(lane.depth(), 0, "nobody waits for this request any more");
    }
    drop(inbox);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_bounded_across_lanes_and_given_back() {
    let (registry, metrics) = registered();
    let budget = MemoryBudget::new("memory", 100);
    let spec = LaneSpec::new("test", "bytes", 100);
    let (first, first_inbox) = Lane::<Vec<u8>>::open_weighed(spec, &metrics, &budget, Vec::len);
    let (second, second_inbox) = Lane::<Vec<u8>>::open_weighed(spec, &metrics, &budget, Vec::len);
    first.try_push(vec![0; 60]).unwrap();
    let refused = second.try_push(vec![0; 60]);
    assert!(matches!(refused, Err(CallError::Busy { what: "memory", .. })), "{refused:?}");
    assert_eq!(series(&registry, "busy_rejections_total{endpoint=\"bytes\"}"), Some(1));
    second.try_push(vec![0; 40]).unwrap();
    assert_eq!(budget.used(), 100);

    let held = second_inbox.recv_held().await.unwrap();
    assert_eq!(budget.used(), 100, "still in the consumer's hands");
    drop(held);
    assert_eq!(budget.used(), 60);
    let (pushed, taken) = tokio::join!(second.push(vec![0; 60], soon()), first_inbox.recv());
    assert_eq!((pushed, taken.map(|bytes| bytes.len())), (Ok(()), Some(60)), "room came in time");

    let giant = second.push(vec![0; 101], soon()).await;
    assert!(matches!(giant, Err(CallError::Busy { what: "memory", .. })), "{giant:?}");
    drop((second, second_inbox));
    assert_eq!(budget.used(), 0, "a lane that goes gives its bytes back");
}

/// What was shed for a newcomer went to whoever waited for the budget, and so the whole queue was shed for nothing.
#[test]
#[should_panic(expected = "sheds, and shares a budget")]
fn a_lane_that_sheds_shares_no_budget() {
    let spec = LaneSpec::new("test", "bytes", 100).shed_oldest();
    let budget = MemoryBudget::new("memory", 100);
    let _ = Lane::<Vec<u8>>::open_weighed(spec, &Metrics::default(), &budget, Vec::len);
}

#[tokio::test(start_paused = true)]
async fn the_second_lane_is_not_starved_by_the_first() {
    let (first, first_inbox) = lane(LaneSpec::new("test", "approvals", 100));
    let (second, second_inbox) = lane(LaneSpec::new("test", "proposals", 100));
    for _ in 0..40 {
        first.try_push("approval").unwrap();
        second.try_push("proposal").unwrap();
    }
    let mut inbox = PriorityInbox::new(first_inbox, second_inbox, NonZeroUsize::new(3).unwrap());
    let mut order = Vec::new();
    for _ in 0..8 {
        order.push(inbox.recv().await.unwrap());
    }
    let (a, p) = ("approval", "proposal");
    assert_eq!(order, [a, a, a, p, a, a, a, p]);
    drop((first, second));
    let mut rest = 0;
    while inbox.recv().await.is_some() {
        rest += 1;
    }
    assert_eq!(rest, 72, "both lanes drain");
}

#[tokio::test(start_paused = true)]
async fn the_pause_in_a_refusal_follows_the_rate_of_draining() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane(LaneSpec::new("test", "work", 100));
    supervisor.spawn(TASK, |_| async move {
        while inbox.recv().await.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut pauses = Vec::new();
    for _ in 0..2000 {
        if let Err(CallError::Busy { retry_after, .. }) = lane.try_push(()) {
            pauses.push(retry_after);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    // A hundred wait, a hundred are taken per second: half of them in half a second.
    let last = *pauses.last().unwrap();
    assert!((Duration::from_millis(400)..=Duration::from_millis(600)).contains(&last), "{last:?}");
}

/// A push that has not been admitted yet.
type Waiting = std::pin::Pin<Box<dyn Future<Output = Result<(), CallError>>>>;

#[tokio::test(start_paused = true)]
async fn a_builder_may_override_the_capacity_and_a_refused_item_comes_back() {
    let (registry, metrics) = registered();
    let asked_for = ron_core::Capacity::new("lanes.work", 1).unwrap();
    let (lane, _inbox) = Lane::open(WORK.with_capacity(asked_for), &metrics);
    lane.try_push("first").unwrap();
    let Err((refusal, item)) = lane.try_push_or_return("second") else { panic!("one is the capacity") };
    assert!(matches!(refusal, CallError::Busy { what: "work", .. }), "{refusal:?}");
    assert_eq!(item, "second");
    assert_eq!(series(&registry, "queue_capacity{queue=\"work\"}"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_lets_the_next_one_in() {
    let (lane, inbox) = lane::<Option<Reply<()>>>(LaneSpec::new("test", "work", 1));
    let mut call = Box::pin(lane.call("ask", soon(), Some));
    assert!(futures_poll(&mut call).is_none());
    let mut push = Box::pin(lane.push(None, soon()));
    assert!(futures_poll(&mut push).is_none(), "the lane is full");
    drop(call);
    assert_eq!(futures_poll(&mut push), Some(Ok(())), "the place went to the one who waited");
    assert_eq!(inbox.depth(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_much_and_gives_up_does_not_hold_back_one_that_waits_for_little() {
    let budget = MemoryBudget::new("memory", 10);
    let (lane, _inbox) = Lane::<usize>::open_weighed(WORK, &Metrics::default(), &budget, |bytes| *bytes);
    lane.try_push(5).unwrap();
    let (mut much, mut little) = (Box::pin(lane.push(9, soon())), Box::pin(lane.push(1, soon())));
    assert!(futures_poll(&mut much).is_none());
    assert!(futures_poll(&mut little).is_none(), "in order of arrival");
    drop(much);
    assert_eq!(little.await, Ok(()));
    assert_eq!(budget.used(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_with_a_full_lane_lets_others_run() {
    let supervisor = Supervisor::new("test");
    let (lane, inbox) = lane(LaneSpec::new("test", "work", 1000));
    while lane.try_push(()).is_ok() {}
    drop(lane);
    let left = inbox.clone();
    supervisor.spawn(TASK, |_| async move { while inbox.recv().await.is_some() {} });
    let seen = supervisor.spawn(TASK, |_| async move {
        assert!(left.depth() > 0, "it ran only after everything was taken");
    });
    assert_eq!(seen.ended().await, ron_core::TaskEnd::Completed);
}

#[derive(Debug, Clone)]
enum Step {
    Push(u8),
    Wait(u8),
    GiveUp(usize),
    Take,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u8>().prop_map(Step::Push),
        3 => any::<u8>().prop_map(Step::Wait),
        2 => (0usize..4).prop_map(Step::GiveUp),
        5 => Just(Step::Take),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// The lane against a list: every accepted item comes out once and in order of arrival, waiting producers are
    /// admitted as room appears, one that gives up vanishes, and after a close only what was accepted comes out.
    #[test]
    fn a_lane_behaves_like_its_model(capacity in 1usize..4, steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (lane, inbox) = lane(LaneSpec::new("test", "model", capacity));
            let mut queued: VecDeque<u8> = VecDeque::new();
            let mut waiting: Vec<(u8, Waiting)> = Vec::new();
            let mut closed = false;
            for step in steps {
                match step {
                    Step::Push(item) => {
                        let pushed = lane.try_push(item);
                        if closed {
                            assert_eq!(pushed, Err(CallError::Canceled));
                        } else if queued.len() < capacity && waiting.is_empty() {
                            assert_eq!(pushed, Ok(()));
                            queued.push_back(item);
                        } else {
                            assert!(matches!(pushed, Err(CallError::Busy { .. })));
                        }
                    }
                    Step::Wait(item) => {
                        let lane = lane.clone();
                        let deadline = Deadline::after(Duration::from_secs(3600));
                        let mut push: Waiting =
                            Box::pin(async move { lane.push(item, deadline).await });
                        let now = futures_poll(&mut push);
                        if closed {
                            assert_eq!(now, Some(Err(CallError::Canceled)));
                        } else if queued.len() < capacity && waiting.is_empty() {
                            assert_eq!(now, Some(Ok(())));
                            queued.push_back(item);
                        } else {
                            assert_eq!(now, None);
                            waiting.push((item, push));
                        }
                    }
                    Step::GiveUp(which) => {
                        if which < waiting.len() {
                            drop(waiting.remove(which));
                        }
                    }
                    Step::Take => {
                        let took = inbox.try_recv();
                        assert_eq!(took, queued.pop_front());
                        if took.is_some() && !closed && !waiting.is_empty() {
                            let (item, mut push) = waiting.remove(0);
                            assert_eq!(futures_poll(&mut push), Some(Ok(())));
                            queued.push_back(item);
                        }
                    }
                    Step::Close => {
                        lane.close();
                        closed = true;
                        for (_, mut push) in waiting.drain(..) {
                            assert_eq!(futures_poll(&mut push), Some(Err(CallError::Canceled)));
                        }
                    }
                }
                assert_eq!(lane.depth(), queued.len());
                assert!(queued.len() <= capacity);
            }
        });
    }
}

/// Polls once without caring to be woken.
fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut cx) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
