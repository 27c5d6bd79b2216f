//! Messages offered at one rate, and what came of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::book::{Book, MESSAGES_MAX};
use crate::{
    measure::{Outcome, Stopwatch, quantile},
    peers::gossip::{Counted, Network, Published},
};

/// How many messages a second, and how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) rate: f64,
    pub(super) length: Duration,
    /// Whether it only asks if everything arrives: what does not is not waited for.
    pub(super) is_probe: bool,
}

/// Messages of a rung, however slow it is.
const MESSAGES_LEAST: usize = 8;

/// Once nothing arrives for so long, nothing will.
const SILENCE: Duration = Duration::from_secs(1);

/// Nothing is waited for longer after the last message was published.
const DRAIN_MOST: Duration = Duration::from_secs(5);

/// What is missing after that may take so long to be told, or to be mended after all.
const TOLD_MOST: Duration = Duration::from_secs(12);

/// For copies that come late: they count as copies.
const LATE: Duration = Duration::from_millis(200);

/// Between two looks at what was delivered.
const LOOK: Duration = Duration::from_millis(1);

/// A rate is sustained if this share is taken, and delivered to everybody who should get it, ...
const SHARE_LEAST: f64 = 0.999;

/// ... if it is there within this time, ...
const LAST_MOST: Duration = Duration::from_secs(1);

/// ... and if the last quarter of the messages takes at most so much longer than the first, as a part of the time that
/// they were offered: where it takes ever longer, a queue grows.
const GROWTH_MOST: f64 = 0.1;

/// What chance may do to that.
const GROWTH_FREE: Duration = Duration::from_millis(10);

/// A rate that came this close is tried once more: the machine may have had a bad moment.
const CLOSE: f64 = 0.7;

/// What came of one rate.
#[derive(Debug, Clone)]
pub(super) struct Rung {
    pub(super) rate: f64,
    pub(super) offered: u64,
    pub(super) taken: u64,
    /// Of them, to how many nodes, and to how many it should have been.
    delivered: u64,
    expected: u64,
    /// Delivered before the drain was over.
    in_time: u64,
    /// Messages that everybody got.
    complete: u64,
    /// From the first message to the last delivery, and what it should have been.
    took: Duration,
    due: Duration,
    cpu: Duration,
    copies: u64,
    pub(super) told: u64,
    /// Deliveries of what had been delivered.
    pub(super) twice: u64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// What the last quarter of the messages took more than the first, by their medians.
    growth: Duration,
}

impl Rung {
    pub(super) fn is_sustained(&self) -> bool {
        self.taken as f64 >= SHARE_LEAST * self.offered as f64
            && self.in_time as f64 >= SHARE_LEAST * self.expected as f64
            && self.p99 <= LAST_MOST
            && self.growth <= self.due.mul_f64(GROWTH_MOST) + GROWTH_FREE
    }

    /// Messages a second that reached everybody.
    pub(super) fn carried(&self) -> f64 {
        self.complete as f64 / self.took.max(self.due).as_secs_f64()
    }

    pub(super) fn share(&self) -> f64 {
        self.delivered as f64 / self.expected as f64
    }

    pub(super) fn missed(&self) -> u64 {
        self.expected.saturating_sub(self.delivered)
    }

    pub(super) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.in_time as f64
    }

    /// Copies that came in beyond those that were delivered, for each of these.
    pub(super) fn redundancy(&self) -> f64 {
        self.copies as f64 / self.delivered as f64 - 1.0
    }
}

/// Publishes on a network and reads the book.
pub(super) struct Driver {
    network: Arc<dyn Network>,
    book: Arc<Book>,
    publishers: usize,
    seed: u64,
}

impl Driver {
    pub(super) fn new(network: Arc<dyn Network>, book: Arc<Book>, publishers: usize, seed: u64) -> Self {
        Driver { network, book, publishers, seed }
    }

    pub(super) async fn neighbours(&self) -> Outcome<usize> {
        self.network.neighbours().await
    }

    /// Waits until everything that a few publishers say reaches everybody, twice in a row.
    pub(super) async fn joined(&self, limit: Duration) -> Outcome<()> {
        let began = Instant::now();
        let mut in_a_row = 0;
        while in_a_row < 2 {
            if began.elapsed() > limit {
                return Err(format!("not everybody has joined after {limit:?}").into());
            }
            let probe = Offer { rate: 100.0, length: Duration::from_millis(200), is_probe: true };
            let rung = self.offer(probe).await?;
            in_a_row = if rung.missed() == 0 && rung.taken == rung.offered { in_a_row + 1 } else { 0 };
        }
        Ok(())
    }

    /// As [`offer`](Self::offer), and once more if it was not sustained but nearly.
    pub(super) async fn offer_again(&self, offer: Offer) -> Outcome<Rung> {
        let rung = self.offer(offer).await?;
        if rung.is_sustained() || rung.carried() < CLOSE * offer.rate {
            return Ok(rung);
        }
        self.offer(offer).await
    }

    pub(super) async fn offer(&self, offer: Offer) -> Outcome<Rung> {
        let wanted = (offer.rate * offer.length.as_secs_f64()) as usize;
        let messages = wanted.clamp(MESSAGES_LEAST.max(self.publishers), MESSAGES_MAX);
        let due = Duration::from_secs_f64((messages - 1) as f64 / offer.rate);
        self.book.begin(messages);
        let before = self.network.counted().await?;
        let (watch, began) = (Stopwatch::start(), Instant::now());
        let mut publishers = JoinSet::new();
        for publisher in 0..self.publishers {
            let publishing = self.publish(publisher, messages, offer.rate, began, due);
            publishers.spawn(publishing);
        }
        let mut taken = 0;
        while let Some(published) = publishers.join_next().await {
            taken += published?;
        }
        let expected = taken * (self.book.nodes() as u64 - 1);
        let published = Instant::now();
        while self.book.delivered() < expected
            && published.elapsed() < DRAIN_MOST
            && self.book.moved().max(published).elapsed() < SILENCE
        {
            tokio::time::sleep(LOOK).await;
        }
        let cpu = watch.stop(1).cpu;
        let took = self.book.moved().saturating_duration_since(began);
        let (in_time, mut complete) = (self.book.delivered(), self.book.complete(messages));
        let growth = growth(&complete);
        complete.sort_unstable();
        let after = self.settled(before, if offer.is_probe { 0 } else { expected }).await?;
        Ok(Rung {
            rate: offer.rate,
            offered: messages as u64,
            taken,
            delivered: self.book.delivered(),
            in_time,
            expected,
            complete: complete.len() as u64,
            took,
            due,
            cpu,
            copies: after.copies - before.copies,
            told: after.told - before.told,
            twice: self.book.twice(),
            p50: quantile(&complete, 0.5),
            p99: quantile(&complete, 0.99),
            growth,
        })
    }

    /// One of the publishers, each with every so-manieth message. Says how many were taken.
    fn publish(
        &self,
        publisher: usize,
        messages: usize,
        rate: f64,
        began: Instant,
        due: Duration,
    ) -> impl Future<Output = u64> + Send + 'static {
        let (network, book, publishers) =
            (Arc::clone(&self.network), Arc::clone(&self.book), self.publishers);
        // As far apart as they can be, whatever the order in which nodes joined.
        let node = publisher * book.nodes() / publishers;
        let mut chance = fastrand::Rng::with_seed(self.seed ^ ((publisher as u64) << 32));
        async move {
            let mut taken = 0;
            for number in (publisher..messages).step_by(publishers) {
                let at = Duration::from_secs_f64(number as f64 / rate);
                if let Some(wait) = at.checked_sub(began.elapsed()) {
                    tokio::time::sleep(wait).await;
                }
                // Whoever makes us wait for longer than half of the time again has not taken the rest.
                if began.elapsed() > due.mul_f64(1.5) + LATE {
                    break;
                }
                let message = book.write(number, &mut chance);
                taken += u64::from(network.publish(node, message).await == Published::Taken);
            }
            taken
        }
    }

    /// The counters once they stand still and, if something is missing, there was time to tell of it or to mend it.
    async fn settled(&self, before: Counted, expected: u64) -> Outcome<Counted> {
        let began = Instant::now();
        let mut counted = self.network.counted().await?;
        loop {
            tokio::time::sleep(LATE).await;
            let now = self.network.counted().await?;
            let is_still = now.copies == counted.copies || began.elapsed() > DRAIN_MOST;
            let is_known = self.book.delivered() + now.told - before.told >= expected;
            if is_still && (is_known || began.elapsed() > TOLD_MOST) {
                return Ok(now);
            }
            counted = now;
        }
    }
}

/// What the last quarter takes more than the first, by their medians.
fn growth(took: &[Duration]) -> Duration {
    let quarter = took.len().div_ceil(4);
    let middle = |part: &[Duration]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        quantile(&part, 0.5)
    };
    middle(&took[took.len() - quarter..]).saturating_sub(middle(&took[..quarter]))
}
