//! Which provider first: near, fresh, quick, and known to deliver.
//!
//! A score is the weighted mean of four factors from 0 to 1, so an answer can explain it by listing them. An unknown factor
//! counts 0.5: an unknown provider comes after those known to be good and before those known to be bad.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use ron_core::NodeId;

use crate::source::Provider;

/// What each factor is worth, and how fast announcements age.
#[derive(Debug, Clone, PartialEq)]
pub struct RankSettings {
    /// The region of this node; providers with the same one are near. Default none: then no provider is.
    pub region: Option<String>,
    /// The age at which a provider's announcement counts half. Default six hours, half of the time between announcements.
    pub half_life: Duration,
    /// The weight of being in the same region. Default 0.3.
    pub region_weight: f64,
    /// The weight of a recent announcement. Default 0.2.
    pub freshness_weight: f64,
    /// The weight of a short time to the first byte. Default 0.2.
    pub latency_weight: f64,
    /// The weight of successful fetches. Default 0.3.
    pub success_weight: f64,
}

impl Default for RankSettings {
    fn default() -> Self {
        RankSettings {
            region: None,
            half_life: Duration::from_secs(6 * 3600),
            region_weight: 0.3,
            freshness_weight: 0.2,
            latency_weight: 0.2,
            success_weight: 0.3,
        }
    }
}

/// The factors of a score, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Why {
    /// 1 in the same region, 0 in another, 0.5 where one of the two is not known.
    pub region: f32,
    /// 1 when just announced, halved with every half-life since; 0.5 where that is not known.
    pub freshness: f32,
    /// 1 for a first byte within 30 ms, 0.75 within 100 ms, 0.5 within 300 ms or where that is not known, 0.25 beyond.
    pub latency: f32,
    /// The share of fetches that succeeded, recent ones counting more; 0.5 where there were none.
    pub success: f32,
}

/// A provider with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// The provider.
    pub provider: Provider,
    /// From 0 to 1; higher is better.
    pub score: f32,
    /// The factors of the score.
    pub why: Why,
    /// The label of the source that reported it.
    pub source: &'static str,
}

/// Orders providers, best first; equal ones by their ids, so that the order is always the same.
#[must_use]
pub fn rank(
    providers: Vec<(Provider, &'static str)>,
    known: &Reputation,
    settings: &RankSettings,
    unix_secs: u64,
) -> Vec<Ranked> {
    let weights = settings.region_weight
        + settings.freshness_weight
        + settings.latency_weight
        + settings.success_weight;
    let mut ranked: Vec<Ranked> = providers
        .into_iter()
        .map(|(provider, source)| {
            let why = explain(&provider, known, settings, unix_secs);
            let sum = settings.region_weight * f64::from(why.region)
                + settings.freshness_weight * f64::from(why.freshness)
                + settings.latency_weight * f64::from(why.latency)
                + settings.success_weight * f64::from(why.success);
            let score = if weights > 0.0 { (sum / weights) as f32 } else { 0.0 };
            Ranked { provider, score, why, source }
        })
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.provider.id.cmp(&b.provider.id)));
    ranked
}

fn explain(provider: &Provider, known: &Reputation, settings: &RankSettings, unix_secs: u64) -> Why {
    let region = match (&settings.region, &provider.region) {
        (Some(ours), Some(theirs)) => f32::from(u8::from(ours.as_str() == &**theirs)),
        _ => 0.5,
    };
    let freshness = provider.issued.map_or(0.5, |issued| {
        let age = unix_secs.saturating_sub(issued) as f64;
        0.5_f64.powf(age / settings.half_life.as_secs_f64().max(1.0)) as f32
    });
    let record = known.records.get(&provider.id);
    let latency = record.and_then(|record| record.rtt_secs).map_or(0.5, |rtt| match rtt {
        ..0.03 => 1.0,
        ..0.1 => 0.75,
        ..0.3 => 0.5,
        _ => 0.25,
    });
    // One good and one bad fetch are assumed of everybody, so that one failure does not condemn.
    let success = record.map_or(0.5, |record| (record.good + 1.0) / (record.all + 2.0));
    Why { region, freshness, latency, success }
}

/// How much a fetch counts beside the one after it.
const FADE: f32 = 0.9;

/// What was learned about providers by fetching from them. Bounded: a new provider displaces the one known longest.
#[derive(Debug, Clone)]
pub struct Reputation {
    records: HashMap<NodeId, Record>,
    order: VecDeque<NodeId>,
    max: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    good: f32,
    all: f32,
    rtt_secs: Option<f32>,
}

impl Reputation {
    /// Nobody is known yet, and at most `max` will be.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Reputation { records: HashMap::new(), order: VecDeque::new(), max: max.max(1) }
    }

    /// A fetch from a provider succeeded or failed; `rtt` is the time to the first byte, if known.
    pub fn on_fetch(&mut self, id: NodeId, is_good: bool, rtt: Option<Duration>) {
        if !self.records.contains_key(&id) {
            if self.order.len() >= self.max {
                if let Some(oldest) = self.order.pop_front() {
                    self.records.remove(&oldest);
                }
            }
            self.order.push_back(id);
        }
        let record = self.records.entry(id).or_default();
        record.good = record.good * FADE + f32::from(u8::from(is_good));
        record.all = record.all * FADE + 1.0;
        if let Some(rtt) = rtt.map(|rtt| rtt.as_secs_f32()) {
            record.rtt_secs = Some(record.rtt_secs.map_or(rtt, |old| old * 0.8 + rtt * 0.2));
        }
    }

    /// Forgets everybody.
    pub fn clear(&mut self) {
        self.records.clear();
        self.order.clear();
    }

    /// How many are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether nobody is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn provider(id: u8) -> Provider {
        Provider::new(NodeId::from_bytes([id; 32]), [])
    }

    fn order(providers: Vec<Provider>, known: &Reputation, settings: &RankSettings) -> Vec<u8> {
        let providers = providers.into_iter().map(|provider| (provider, "test")).collect();
        rank(providers, known, settings, NOW).iter().map(|ranked| ranked.provider.id.as_bytes()[0]).collect()
    }

    #[test]
    fn the_same_region_is_first_and_an_unknown_one_before_another() {
        let settings = RankSettings { region: Some("eu".into()), ..RankSettings::default() };
        let at = |id, region: Option<&str>| Provider { region: region.map(Into::into), ..provider(id) };
        let all = vec![at(1, Some("us")), at(2, None), at(3, Some("eu"))];
        assert_eq!(order(all.clone(), &Reputation::new(9), &settings), [3, 2, 1]);
        // Without a place of its own, nobody is near.
        assert_eq!(order(all, &Reputation::new(9), &RankSettings::default()), [1, 2, 3]);
    }

    #[test]
    fn words_grow_old_by_their_half_life() {
        let said = |id, ago: u64| Provider { issued: Some(NOW - ago), ..provider(id) };
        let settings = RankSettings { half_life: Duration::from_secs(3600), ..RankSettings::default() };
        let ranked = rank(
            vec![(said(1, 7200), "a"), (said(2, 0), "b"), (said(3, 3600), "c")],
            &Reputation::new(9),
            &settings,
            NOW,
        );
        let freshness: Vec<f32> = ranked.iter().map(|ranked| ranked.why.freshness).collect();
        assert_eq!(freshness, [1.0, 0.5, 0.25]);
        assert_eq!(ranked[0].source, "b");
        // A clock that runs ahead is as fresh as can be and no fresher.
        let ahead = Provider { issued: Some(NOW + 99_999), ..provider(9) };
        assert_eq!(rank(vec![(ahead, "d")], &Reputation::new(9), &settings, NOW)[0].why.freshness, 1.0);
    }

    #[test]
    fn those_who_deliver_quickly_are_before_strangers_and_those_before_the_rest() {
        let mut known = Reputation::new(9);
        let id = |id| NodeId::from_bytes([id; 32]);
        for _ in 0..5 {
            known.on_fetch(id(2), true, Some(Duration::from_millis(10)));
            known.on_fetch(id(3), false, Some(Duration::from_millis(900)));
        }
        let all = vec![provider(3), provider(1), provider(2)];
        assert_eq!(order(all.clone(), &known, &RankSettings::default()), [2, 1, 3]);
        // It gets another chance when it has done better for a while.
        for _ in 0..20 {
            known.on_fetch(id(3), true, Some(Duration::from_millis(5)));
        }
        assert_eq!(order(all, &known, &RankSettings::default()), [3, 2, 1]);
    }

    #[test]
    fn weights_turn_the_order_around() {
        let mut known = Reputation::new(9);
        known.on_fetch(NodeId::from_bytes([1; 32]), false, None);
        let old = Provider { issued: Some(NOW - 1_000_000), ..provider(2) };
        let fresh = Provider { issued: Some(NOW), ..provider(1) };
        let only = |freshness_weight, success_weight| RankSettings {
            region_weight: 0.0,
            latency_weight: 0.0,
            freshness_weight,
            success_weight,
            ..RankSettings::default()
        };
        assert_eq!(order(vec![old.clone(), fresh.clone()], &known, &only(1.0, 0.0)), [1, 2]);
        assert_eq!(order(vec![old, fresh], &known, &only(0.0, 1.0)), [2, 1]);
    }

    #[test]
    fn it_remembers_so_many_and_no_more() {
        let mut known = Reputation::new(3);
        for id in 0..50 {
            known.on_fetch(NodeId::from_bytes([id; 32]), true, None);
        }
        assert_eq!((known.len(), known.records.len()), (3, 3));
        known.clear();
        assert!(known.is_empty());
    }
}
