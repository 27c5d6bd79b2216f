use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;
use ron_core::{
    CallError, Deadline, Metrics, Phase, Restart, Stop, Stopped, Supervisor, Task, TaskEnd, TaskSpec, now,
};

use super::{explode, registered, series, soon};

const TASK: TaskSpec = TaskSpec::new("test", "task");
const PROMPT: TaskSpec = TaskSpec::new("test", "listener").restart(Restart::PROMPT);
const PATIENT: TaskSpec = TaskSpec::new("test", "dialer").restart(Restart::PATIENT);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(Debug, thiserror::Error)]
#[error("no route")]
struct NoRoute;

#[tokio::test(start_paused = true)]
async fn phases_go_one_way_and_the_report_counts() {
    let supervisor = Supervisor::builder("test").drain(seconds(3)).start();
    supervisor.spawn(TASK, |stop| async move { stop.requested().await });
    supervisor.spawn(TASK, |stop| async move {
        stop.requested().await;
        assert_eq!(stop.drain_until().map(Deadline::remaining), Some(seconds(3)));
        tokio::time::sleep(seconds(2)).await;
    });
    supervisor.spawn(TASK, |_| std::future::pending::<()>());
    assert_eq!(supervisor.phase(), Phase::Running);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watchers = Supervisor::new("watchers");
    let watcher = {
        let (supervisor, seen) = (supervisor.clone(), Arc::clone(&seen));
        watchers.spawn(TASK, |_| async move {
            while supervisor.phase() != Phase::Stopped {
                seen.lock().unwrap().push(supervisor.phase());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    };
    let stopped = supervisor.shutdown().await;
    assert_eq!(stopped, Stopped { drained: 2, aborted: 1, elapsed: seconds(3) });
    watcher.ended().await;
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted() && seen.contains(&Phase::Draining), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_factory_is_restarted_with_growing_jittered_pauses_until_the_budget_is_spent() {
    let (registry, metrics) = registered();
    let supervisor = Supervisor::builder("test").metrics(metrics).seed(7).start();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    let began = now();
    let task = supervisor.spawn_restarting(PROMPT, move |_| {
        log.lock().unwrap().push(began.elapsed());
        async { explode("address in use") }
    });
    let fatal = supervisor.fatal().await;
    assert_eq!((fatal.kind, fatal.supervisor.as_str()), ("listener", "test"));
    assert!(fatal.reason.contains("address in use"), "{fatal}");
    assert_eq!(task.ended().await, TaskEnd::Failed);
    let starts = starts.lock().unwrap();
    assert_eq!(starts.len(), 6, "the first start and five restarts");
    let ceilings = [200, 400, 800, 1600, 2000].map(Duration::from_millis);
    for (pair, ceiling) in starts.windows(2).zip(ceilings) {
        let pause = pair[1] - pair[0];
        assert!(
            pause >= Duration::from_millis(100) && pause <= ceiling + Duration::from_millis(1),
            "{starts:?}"
        );
    }
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"listener\"}"), Some(6));
    assert_eq!(series(&registry, "tasks_restarted_total{kind=\"listener\"}"), Some(5));
    let status = supervisor.ready().status();
    assert!(!status.reads && !status.writes);
    assert!(
        status.closed().any(|gate| gate.reason.as_deref().is_some_and(|why| why.contains("address in use")))
    );
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_per_window_so_rare_failures_go_on_for_ever() {
    let supervisor = Supervisor::new("test");
    let starts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&starts);
    supervisor.spawn_restarting(PROMPT, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(seconds(20)).await;
            Err::<(), _>(NoRoute)
        }
    });
    tokio::time::sleep(seconds(20 * 50)).await;
    assert!(starts.load(Ordering::SeqCst) > 40);
    assert_eq!(supervisor.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ran_for_long_is_restarted_as_quickly_as_the_first_time() {
    let supervisor = Supervisor::builder("test").seed(2).start();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    supervisor.spawn_restarting(PATIENT, move |_| {
        let mut starts = log.lock().unwrap();
        starts.push(now());
        // Ten quick failures, a good hour, and a failure again.
        let runs_for = seconds(if starts.len() == 11 { 3600 } else { 0 });
        async move {
            tokio::time::sleep(runs_for).await;
            Err::<(), _>(NoRoute)
        }
    });
    tokio::time::sleep(seconds(7200)).await;
    let starts = starts.lock().unwrap();
    let pause = starts[11] - starts[10] - seconds(3600);
    assert!(pause <= Duration::from_millis(201), "{pause:?}");
}

#[tokio::test(start_paused = true)]
async fn the_patient_policy_never_gives_up_and_never_waits_longer_than_a_minute() {
    let supervisor = Supervisor::builder("test").seed(1).start();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    supervisor.spawn_restarting(PATIENT, move |_| {
        log.lock().unwrap().push(now());
        async { Err::<(), _>(NoRoute) }
    });
    tokio::time::sleep(seconds(7200)).await;
    let starts = starts.lock().unwrap();
    assert!(starts.len() > 120, "{}", starts.len());
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] <= seconds(60) + Duration::from_millis(1)));
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_state_fails_loudly_and_once() {
    let (registry, metrics) = registered();
    let supervisor = Supervisor::builder("test").metrics(metrics).start();
    let task = supervisor.spawn(TASK, |_| async { explode("the log is gone") });
    let fatal = supervisor.fatal().await;
    assert_eq!(fatal.to_string(), "task task of test failed for good: panicked: the log is gone");
    assert_eq!(task.ended().await, TaskEnd::Failed);
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"task\"}"), Some(1));
    assert_eq!(supervisor.shutdown().await.aborted, 0, "a failed supervisor still shuts down");
}

#[tokio::test(start_paused = true)]
async fn the_request_to_stop_is_made_before_the_call_returns() {
    // It used to be made by a task of its own, so that an intake took work in after `abort` had returned.
    let end_it: [fn(&Supervisor); 2] = [Supervisor::request_stop, Supervisor::abort];
    for end in end_it {
        let host = Supervisor::new("host");
        end(&host);
        assert!(host.stop().is_requested());
        assert!(!host.ready().status().reads);
        host.shutdown().await;
    }
    let host = Supervisor::new("host");
    let stop = host.stop();
    drop(host);
    assert!(stop.is_requested());
}

#[tokio::test(start_paused = true)]
async fn a_task_may_end_its_own_supervisor() {
    let host = Supervisor::new("host");
    let (itself, began) = (host.clone(), now());
    host.spawn(TASK, |_| async move { itself.request_stop() });
    assert_eq!(host.shutdown().await.drained, 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_expendable_task_fails_for_itself_only() {
    let (registry, metrics) = registered();
    let host = Supervisor::builder("host").metrics(metrics).start();
    let session = TaskSpec::new("test", "session").restart(Restart::Expendable);
    let task = host.spawn(session, |_| async { explode("bad peer") });
    assert_eq!(task.ended().await, TaskEnd::Failed);
    assert_eq!(host.failure(), None);
    assert!(host.ready().status().reads);
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"session\"}"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_rebuilt_is_not_said_to_be_restarted() {
    let host = Supervisor::new("host");
    host.spawn(PROMPT, |_| async {});
    let noted = host.metrics().inventory().to_markdown();
    assert!(noted.contains("| test | listener | fatal |"), "{noted}");
    host.spawn_restarting(PATIENT, |_| async {});
    let noted = host.metrics().inventory().to_markdown();
    assert!(noted.contains("| test | dialer | restarted after 100ms to 60s |"), "{noted}");
}

#[tokio::test(start_paused = true)]
async fn a_fatal_in_a_child_reaches_the_host() {
    let host = Supervisor::new("host");
    let child = host.child("store", seconds(1), Metrics::default());
    child.spawn(TASK, |_| async { Err::<(), _>(NoRoute) });
    let fatal = host.fatal().await;
    assert_eq!((fatal.supervisor.as_str(), fatal.reason.as_str()), ("store", "no route"));
    assert!(!host.ready().status().reads);
}

#[tokio::test(start_paused = true)]
async fn dependents_stop_before_what_they_use() {
    let host = Supervisor::new("host");
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str, pause: u64| {
        let order = Arc::clone(&order);
        move |stop: Stop| async move {
            stop.requested().await;
            tokio::time::sleep(seconds(pause)).await;
            order.lock().unwrap().push(name);
        }
    };
    let disk = host.child("disk", seconds(5), Metrics::default());
    disk.spawn(TASK, note("disk", 0));
    let store = host.child("store", seconds(5), Metrics::default());
    store.spawn(TASK, note("store", 2));
    host.spawn(TASK, note("gateway", 1));
    let stopped = host.shutdown().await;
    assert_eq!(*order.lock().unwrap(), ["gateway", "store", "disk"]);
    assert_eq!(stopped, Stopped { drained: 3, aborted: 0, elapsed: seconds(3) });
}

#[tokio::test(start_paused = true)]
async fn readiness_goes_before_the_first_task_is_asked_to_stop() {
    let host = Supervisor::new("host");
    let ready = host.ready().clone();
    let task = host.spawn(TASK, |stop| async move {
        stop.requested().await;
        assert!(!ready.status().reads, "told to stop while the balancer still sends work");
        assert!(ready.status().closed().any(|gate| gate.reason.as_deref() == Some("draining")));
    });
    assert!(host.ready().status().reads);
    host.shutdown().await;
    assert_eq!(task.ended().await, TaskEnd::Drained);
}

#[tokio::test(start_paused = true)]
async fn a_second_ctrl_c_ends_the_drain() {
    let host = Supervisor::builder("host").drain(seconds(60)).start();
    let child = host.child("child", seconds(60), Metrics::default());
    host.spawn(TASK, |_| std::future::pending::<()>());
    child.spawn(TASK, |_| std::future::pending::<()>());
    let began = now();
    let (stopped, ()) = tokio::join!(host.shutdown(), async {
        tokio::time::sleep(seconds(1)).await;
        host.abort();
    });
    assert_eq!((stopped.drained, stopped.aborted), (0, 2));
    assert_eq!(began.elapsed(), seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_the_whole_shutdown_holds_over_all_children() {
    let host = Supervisor::builder("host").drain(seconds(60)).start();
    let child = host.child("child", seconds(60), Metrics::default());
    child.spawn(TASK, |_| std::future::pending::<()>());
    let stopped = host.shutdown_by(Deadline::after(seconds(2))).await;
    assert_eq!(stopped, Stopped { drained: 0, aborted: 1, elapsed: seconds(2) });
}

#[tokio::test(start_paused = true)]
async fn shutdown_goes_on_if_nobody_waits_for_it() {
    let host = Supervisor::builder("host").drain(seconds(1)).start();
    let task = host.spawn(TASK, |_| std::future::pending::<()>());
    let impatient = tokio::time::timeout(Duration::from_millis(10), host.shutdown()).await;
    assert!(impatient.is_err());
    assert_eq!(task.ended().await, TaskEnd::Aborted);
    assert_eq!(host.shutdown().await.aborted, 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_without_shutdown_only_asks() {
    let host = Supervisor::builder("host").drain(seconds(1)).start();
    let polite = host.spawn(TASK, |stop| async move { stop.requested().await });
    let deaf = host.spawn(TASK, |_| std::future::pending::<()>());
    let began = now();
    drop(host);
    assert_eq!(began.elapsed(), Duration::ZERO, "drop does not wait");
    assert_eq!(polite.ended().await, TaskEnd::Drained);
    assert_eq!(deaf.ended().await, TaskEnd::Aborted);
}

#[tokio::test(start_paused = true)]
async fn tasks_may_start_tasks_and_a_stopped_supervisor_refuses_them() {
    let host = Supervisor::new("host");
    let spawner = host.spawner();
    let late = Arc::new(Mutex::new(None::<Task>));
    let kept = Arc::clone(&late);
    host.spawn(TASK, |stop| async move {
        stop.requested().await;
        // Draining may need help.
        let helper = spawner.spawn(TASK, |_| tokio::time::sleep(seconds(1)));
        assert_eq!(helper.ended().await, TaskEnd::Drained);
        *kept.lock().unwrap() = Some(helper);
    });
    assert_eq!(host.shutdown().await, Stopped { drained: 2, aborted: 0, elapsed: seconds(1) });
    assert!(late.lock().unwrap().is_some());
    let refused = host.spawn(TASK, |_| async { explode("must not run") });
    assert_eq!(refused.ended().await, TaskEnd::Refused);
    // Once a child of a stopped supervisor ran its tasks after the report that nothing runs any more.
    let orphan = host.child("late", seconds(1), Metrics::default());
    assert_eq!(orphan.phase(), Phase::Stopped);
    let refused = orphan.spawn(TASK, |_| async { explode("must not run") });
    assert_eq!(refused.ended().await, TaskEnd::Refused);
    assert_eq!(orphan.shutdown().await, Stopped::default());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_will_not_die_does_not_hold_up_the_report() {
    // The runtime of a paused test has one thread, so the deaf one gets a thread of its own.
    let host = Supervisor::builder("host").drain(Duration::from_millis(10)).start();
    let (release, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let thread = host
        .spawn_thread(TASK, move |_| {
            let _ = wait.recv();
        })
        .unwrap();
    assert_eq!(host.shutdown().await.aborted, 1);
    assert_eq!(thread.end(), None, "left behind, and said so");
    release.send(()).unwrap();
}

#[test]
fn threads_are_supervised() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let host = Supervisor::new("host");
        let task = host.spawn_thread(TASK, |_| explode("disk on fire")).unwrap();
        assert_eq!(task.ended().await, TaskEnd::Failed);
        assert_eq!(host.fatal().await.reason, "panicked: disk on fire");

        let (lane, inbox) = ron_core::Lane::open(ron_core::LaneSpec::new("test", "jobs", 4), host.metrics());
        lane.close_on(&host.stop());
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        let writer = host.spawn_thread(TASK, move |_| {
            while let Some(job) = inbox.recv_blocking() {
                count.fetch_add(job, Ordering::SeqCst);
            }
        });
        lane.try_push(40).unwrap();
        lane.try_push(2).unwrap();
        host.shutdown().await;
        assert_eq!(writer.unwrap().ended().await, TaskEnd::Drained);
        assert_eq!(done.load(Ordering::SeqCst), 42);
    });
}

#[test]
fn blocking_calls_are_capped_counted_and_never_silent() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let (registry, metrics) = registered();
        let host = Supervisor::builder("host").blocking_max(1).metrics(metrics).start();
        let deadline = || Deadline::after(seconds(30));
        assert_eq!(host.blocking("hash", deadline(), || 6 * 7).await, Ok(42));
        let panicked = host.blocking::<()>("hash", deadline(), || panic!("bad block")).await;
        assert_eq!(panicked, Err(CallError::Panicked { op: "hash" }));

        let (release, wait) = std::sync::mpsc::sync_channel::<()>(1);
        let spawner = host.spawner();
        let holder = host.spawn(TASK, |_| async move {
            spawner.blocking("read", deadline(), move || wait.recv()).await.unwrap().unwrap();
        });
        while host.running() < 2 {
            tokio::task::yield_now().await;
        }
        let short = Deadline::after(Duration::from_millis(20));
        let crowded_out = host.blocking("hash", short, || ()).await;
        assert_eq!(crowded_out, Err(CallError::Timeout { op: "hash" }));
        assert_eq!(series(&registry, "io_timeouts_total{op=\"hash\"}"), Some(1));
        release.send(()).unwrap();
        holder.ended().await;
        host.shutdown().await;
        assert_eq!(host.blocking("hash", deadline(), || ()).await, Err(CallError::Canceled));
    });
}

#[tokio::test(start_paused = true)]
async fn inline_blocking_needs_no_thread() {
    let host = Supervisor::builder("sim").inline_blocking(true).start();
    let here = std::thread::current().id();
    let there = host.blocking("where", soon(), || std::thread::current().id()).await;
    assert_eq!(there, Ok(here));
}

/// What a task of the property test does.
#[derive(Debug, Clone, Copy)]
enum Habit {
    ReturnsSoon,
    StopsWhenAsked,
    DrainsFor(u64),
    NeverStops,
    PanicsAfter(u64),
    RestartsUntilAsked,
}

fn habits() -> impl Strategy<Value = Vec<(u64, Habit)>> {
    let habit = prop_oneof![
        Just(Habit::ReturnsSoon),
        Just(Habit::StopsWhenAsked),
        (0u64..8).prop_map(Habit::DrainsFor),
        Just(Habit::NeverStops),
        (1u64..8).prop_map(Habit::PanicsAfter),
        Just(Habit::RestartsUntilAsked),
    ];
    proptest::collection::vec((0u64..5, habit), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever tasks do, and whenever the stop comes: everyone who was spawned is accounted for exactly once, the
    /// drain deadline holds, and the counters, the report and the tasks' own endings tell the same story.
    #[test]
    fn everybody_is_accounted_for(habits in habits(), stop_at in 0u64..12) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (registry, metrics) = registered();
            let drain = seconds(4);
            let supervisor = Supervisor::builder("test").drain(drain).metrics(metrics).seed(3).start();
            let groups = [supervisor.child("one", drain, supervisor.metrics().clone()), supervisor.clone()];
            let mut tasks = Vec::new();
            for (index, (start_at, habit)) in habits.into_iter().enumerate() {
                let group = &groups[index % 2];
                let wait = move || tokio::time::sleep(seconds(start_at));
                tasks.push(match habit {
                    Habit::ReturnsSoon => group.spawn(TASK, move |_| wait()),
                    Habit::StopsWhenAsked => group.spawn(TASK, |stop| async move { stop.requested().await }),
                    Habit::DrainsFor(time) => group.spawn(TASK, move |stop| async move {
                        stop.requested().await;
                        tokio::time::sleep(seconds(time)).await;
                    }),
                    Habit::NeverStops => group.spawn(TASK, |_| std::future::pending::<()>()),
                    Habit::PanicsAfter(time) => group.spawn(TASK, move |_| async move {
                        tokio::time::sleep(seconds(time)).await;
                        explode("as planned");
                    }),
                    Habit::RestartsUntilAsked => group.spawn_restarting(PATIENT, |stop| async move {
                        tokio::select! {
                            biased;
                            () = stop.requested() => Ok(()),
                            () = tokio::time::sleep(seconds(1)) => Err(NoRoute),
                        }
                    }),
                });
            }
            tokio::time::sleep(seconds(stop_at)).await;
            let stopped = supervisor.shutdown().await;
            assert!(stopped.elapsed <= drain * 2, "two groups, one drain time each: {stopped:?}");
            let ends: Vec<TaskEnd> = tasks.iter().map(|task| task.end().expect("ended")).collect();
            let count = |end| ends.iter().filter(|each| **each == end).count();
            let counted = |name: &str| {
                ["task", "dialer"].iter().filter_map(|kind| series(&registry, &format!("{name}{{kind=\"{kind}\"}}"))).sum::<u64>() as usize
            };
            assert_eq!(counted("tasks_spawned_total"), tasks.len());
            assert_eq!(counted("tasks_ended_total"), tasks.len());
            assert_eq!(counted("tasks_aborted_total"), count(TaskEnd::Aborted));
            assert_eq!(counted("tasks_canceled_total"), count(TaskEnd::Drained));
            assert_eq!(stopped.aborted, count(TaskEnd::Aborted));
            assert_eq!(stopped.drained, count(TaskEnd::Drained));
            assert_eq!(supervisor.failure().is_some(), count(TaskEnd::Failed) > 0);
            assert_eq!(supervisor.running() + groups[0].running(), 0);
        });
    }
}
