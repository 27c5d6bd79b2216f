#![doc = "A subsystem of one's own: a builder, a pool, a handle, a shutdown."]

use std::{num::NonZeroUsize, time::Duration};

use prometheus_client::registry::Registry;
use ron_core::{CallError, Deadline, LaneSpec, Metrics, Pool, PoolSpec, Stopped, Supervisor, TaskSpec};

const REQUESTS: LaneSpec = LaneSpec::new("greeter", "requests", 64)
    .flow("callers → workers")
    .why("a caller waits for at most 32 greetings of a worker");
const WORKER: TaskSpec = TaskSpec::new("greeter", "worker").what("writes one greeting at a time");

/// Settings of the subsystem, and how it starts.
struct Builder {
    workers: NonZeroUsize,
}

impl Builder {
    fn workers(mut self, workers: NonZeroUsize) -> Self {
        self.workers = workers;
        self
    }

    fn start(self, host: &Supervisor, registry: &mut Registry) -> Greeter {
        let metrics = Metrics::register("greeter", registry);
        let tasks = host.child("greeter", Duration::from_secs(1), metrics);
        let spec = PoolSpec { lane: REQUESTS, task: WORKER, workers: self.workers };
        let pool = Pool::start(&tasks, spec, |name: String, _| async move { format!("hello, {name}") });
        Greeter { pool, tasks }
    }
}

/// The handle: all that a host ever sees.
#[derive(Clone, Debug)]
struct Greeter {
    pool: Pool<String, String>,
    tasks: Supervisor,
}

impl Greeter {
    fn builder() -> Builder {
        Builder { workers: NonZeroUsize::new(2).expect("two is not zero") }
    }

    /// Greets. Full is `Busy` at once, late is `Timeout`, stopped is `Canceled`.
    async fn greet(&self, name: &str, deadline: Deadline) -> Result<String, CallError> {
        self.pool.call("greet", name.to_owned(), deadline).await
    }

    /// Refuses newcomers, finishes what was accepted, then ends.
    async fn shutdown(&self) -> Stopped {
        self.tasks.shutdown().await
    }
}

#[tokio::main]
async fn main() {
    let mut registry = Registry::default();
    let host = Supervisor::new("host");
    let greeter = Greeter::builder().workers(NonZeroUsize::MIN).start(&host, &mut registry);

    let deadline = Deadline::after(Duration::from_secs(1));
    assert_eq!(greeter.greet("ron", deadline).await.as_deref(), Ok("hello, ron"));
    assert!(host.ready().status().writes);

    let stopped = greeter.shutdown().await;
    assert_eq!((stopped.drained, stopped.aborted), (1, 0));
    assert_eq!(greeter.greet("late", deadline).await, Err(CallError::Canceled));
    assert!(!host.ready().status().reads, "a part that has stopped is not ready");

    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry).expect("writing to a string");
    assert!(metrics.contains("greeter_queue_capacity{queue=\"requests\"} 64"));
    assert!(metrics.contains("greeter_tasks_spawned_total{kind=\"worker\"} 1"));
    host.shutdown().await;
}
