//! One resolution, from a key to a verdict: what the name stands for, what the content is made of, who has it.
//!
//! A name is settled first, by the sources in the order in which the host trusts them. What is known of the content already
//! is used; otherwise its manifest and its providers are looked for at the same time. Everything ends with the last race or
//! at the deadline, whichever is first, and what was gathered by then is the answer.

use std::time::Duration;

use ron_core::ContentId;
use tokio::time::Instant;

use super::{
    key::Key,
    race::{End, Outcome, Question, Race, RaceSettings},
    rank::Ranked,
};
use crate::source::{Answered, Manifest, NameRecord, Provider};

/// How one resolution is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolveSettings {
    /// Provider sources asked at once.
    pub alpha: usize,
    /// Provider sources asked besides when those are slow.
    pub beta: usize,
    /// When they are slow.
    pub hedge_after: Duration,
    /// Times that questions may be asked again, of each kind.
    pub retries: u32,
    /// Verified providers that make an answer satisfactory.
    pub enough: usize,
    /// Providers kept at most.
    pub providers_max: usize,
}

/// Whom there is to ask.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Those that know about the name, by number, the most trusted first.
    pub names: Vec<usize>,
    /// How many know manifests.
    pub manifests: usize,
    /// How many know providers.
    pub providers: usize,
}

/// Something to be done for a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Look whether the cache knows this content.
    LookUp(ContentId),
    /// Ask for what the name stands for.
    Name(Question),
    /// Ask for what the content is made of.
    Manifest(ContentId, Question),
    /// Ask who has it.
    Providers(Key, Question),
}

/// What was gathered.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    /// What the name stands for.
    pub name: Option<NameRecord>,
    /// The content.
    pub content: Key,
    /// What it is made of.
    pub manifest: Option<Manifest>,
    /// Who has it, and who said so.
    pub providers: Vec<(Provider, &'static str)>,
    /// Whether nothing was cut short; where nobody was found, whether one who can say so said so.
    pub is_complete: bool,
}

impl Gathered {
    /// Whether all that was found is what the name stands for.
    #[must_use]
    pub fn is_name_only(&self) -> bool {
        self.providers.is_empty() && self.manifest.is_none()
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// With an answer.
    Found(Gathered),
    /// There is nothing, as far as anybody who was asked knows.
    Nothing {
        /// Whether one who can say so said so and nobody failed to answer.
        is_final: bool,
    },
    /// Without one.
    Failed(Failure),
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The budget is spent.
    Late,
    /// Everybody who could be asked keeps failing and is left alone for now.
    Refused,
    /// Those who were asked failed.
    Failed,
}

#[derive(Debug)]
enum Phase {
    Name(Race),
    LookUp { is_asked: bool },
    Content { manifest: Race, providers: Race },
    Over,
}

/// One resolution.
#[derive(Debug)]
pub struct Resolve {
    settings: ResolveSettings,
    sources: Sources,
    phase: Phase,
    rng: fastrand::Rng,
    name: Option<NameRecord>,
    content: Option<Key>,
    manifest: Option<Manifest>,
    providers: Vec<(Provider, &'static str)>,
    verdict: Option<Verdict>,
    hedge_won: Option<bool>,
}

impl Resolve {
    /// Begins.
    #[must_use]
    pub fn new(
        key: &Key,
        sources: Sources,
        settings: ResolveSettings,
        rng: fastrand::Rng,
        now: Instant,
    ) -> Self {
        let mut resolve = Resolve {
            settings,
            sources,
            phase: Phase::Over,
            rng,
            name: None,
            content: None,
            manifest: None,
            providers: Vec::new(),
            verdict: None,
            hedge_won: None,
        };
        match key {
            Key::Name(_) => {
                let race = resolve.race(resolve.sources.names.len(), 1, 0, false, now);
                resolve.phase = Phase::Name(race);
            }
            content => resolve.seek(content.clone(), now),
        }
        resolve.settle();
        resolve
    }

    fn race(&mut self, targets: usize, alpha: usize, beta: usize, fails_over: bool, now: Instant) -> Race {
        let ResolveSettings { hedge_after, retries, .. } = self.settings;
        let settings = RaceSettings { alpha, beta, hedge_after, retries, fails_over };
        Race::new(targets, settings, self.rng.fork(), now)
    }

    /// Looks for the manifest and the providers.
    fn seek(&mut self, content: Key, now: Instant) {
        // Only what we can verify has a manifest.
        let manifests = if matches!(content, Key::Content(_)) { self.sources.manifests } else { 0 };
        let manifest = self.race(manifests, 1, 1, true, now);
        let providers = self.race(self.sources.providers, self.settings.alpha, self.settings.beta, true, now);
        self.content = Some(content);
        self.phase = Phase::Content { manifest, providers };
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Do> {
        if self.verdict.is_some() {
            return None;
        }
        match &mut self.phase {
            Phase::Name(race) => race.poll().map(|question| {
                Do::Name(Question { target: self.sources.names[question.target], ..question })
            }),
            Phase::LookUp { is_asked } => {
                let content = self.name.as_ref().map(|record| record.content)?;
                (!std::mem::replace(is_asked, true)).then_some(Do::LookUp(content))
            }
            Phase::Content { manifest, providers } => {
                let content = self.content.clone()?;
                if let (Key::Content(id), Some(question)) = (&content, manifest.poll()) {
                    return Some(Do::Manifest(*id, question));
                }
                providers.poll().map(|question| Do::Providers(content, question))
            }
            Phase::Over => None,
        }
    }

    /// A question about the name was answered, `None` by certainty that it stands for nothing.
    pub fn on_name(&mut self, source: usize, answer: Result<Option<NameRecord>, bool>, now: Instant) {
        let Phase::Name(race) = &mut self.phase else { return };
        let Some(target) = self.sources.names.iter().position(|at| *at == source) else { return };
        match answer {
            Ok(Some(record)) => {
                self.name = Some(record);
                self.phase = Phase::LookUp { is_asked: false };
            }
            Ok(None) => race.on_outcome(target, Outcome::Little { is_final: true }, now),
            Err(is_transient) => race.on_outcome(target, Outcome::Failed { is_transient }, now),
        }
        self.settle();
    }

    /// What the cache knows about the content, if it does.
    pub fn on_cached(&mut self, known: Option<(Option<Manifest>, Vec<Ranked>)>, now: Instant) {
        let Some(content) = self.name.as_ref().map(|record| Key::Content(record.content)) else { return };
        match known {
            Some((manifest, providers)) => {
                let providers =
                    providers.into_iter().map(|ranked| (ranked.provider, ranked.source)).collect();
                let name = self.name.clone();
                let found = Gathered { name, content, manifest, providers, is_complete: true };
                self.end(Verdict::Found(found));
            }
            None => self.seek(content, now),
        }
        self.settle();
    }

    /// A question about the manifest was answered.
    pub fn on_manifest(&mut self, target: usize, answer: Result<Option<Manifest>, bool>, now: Instant) {
        let Phase::Content { manifest: race, .. } = &mut self.phase else { return };
        let outcome = match answer {
            Ok(Some(manifest)) => {
                self.manifest = Some(manifest);
                Outcome::Enough
            }
            Ok(None) => Outcome::Little { is_final: false },
            Err(is_transient) => Outcome::Failed { is_transient },
        };
        race.on_outcome(target, outcome, now);
        self.settle();
    }

    /// Somebody has it. Says whether that is news. Whether it is enough is judged when all is in that came with it:
    /// [`on_brought`](Self::on_brought).
    pub fn on_found(&mut self, provider: Provider, source: &'static str) -> bool {
        if !matches!(self.phase, Phase::Content { .. }) {
            return false;
        }
        let has_room = self.providers.len() < self.settings.providers_max;
        match self.providers.iter_mut().find(|(known, _)| known.id == provider.id) {
            // Of two words of one provider the later counts.
            Some((known, by)) if provider.issued > known.issued => {
                (*known, *by) = (provider, source);
                false
            }
            Some(_) => false,
            None if has_room => {
                self.providers.push((provider, source));
                true
            }
            None => false,
        }
    }

    /// A question has brought somebody.
    pub fn on_brought(&mut self, target: usize, now: Instant) {
        let Phase::Content { providers: race, .. } = &mut self.phase else { return };
        if self.providers.len() >= self.settings.enough.max(1) {
            race.on_outcome(target, Outcome::Enough, now);
        }
        self.settle();
    }

    /// A search for providers is over; whom it found was told before.
    pub fn on_providers(&mut self, target: usize, answer: Result<Answered, bool>, now: Instant) {
        let Phase::Content { providers: race, .. } = &mut self.phase else { return };
        let outcome = match answer {
            Ok(Answered { is_final }) => Outcome::Little { is_final },
            Err(is_transient) => Outcome::Failed { is_transient },
        };
        race.on_outcome(target, outcome, now);
        self.settle();
    }

    /// A question is not asked, because its target keeps failing.
    pub fn on_refused(&mut self, what: &Do) {
        match (what, &mut self.phase) {
            (Do::Name(question), Phase::Name(race)) => {
                if let Some(target) = self.sources.names.iter().position(|at| *at == question.target) {
                    race.on_refused(target);
                }
            }
            (Do::Manifest(_, question), Phase::Content { manifest, .. }) => {
                manifest.on_refused(question.target)
            }
            (Do::Providers(_, question), Phase::Content { providers, .. }) => {
                providers.on_refused(question.target)
            }
            _ => {}
        }
        self.settle();
    }

    /// Time has passed. `spend` takes a hedge from the budget, or says that it is spent.
    pub fn on_tick(&mut self, now: Instant, mut spend: impl FnMut() -> bool) {
        match &mut self.phase {
            Phase::Name(race) => race.on_tick(now, &mut spend),
            Phase::Content { manifest, providers } => {
                manifest.on_tick(now, &mut spend);
                providers.on_tick(now, &mut spend);
            }
            Phase::LookUp { .. } | Phase::Over => {}
        }
    }

    /// When the clock matters next.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Name(race) => race.wake_at(),
            Phase::Content { manifest, providers } => {
                let is_open = |race: &&Race| race.end().is_none();
                [manifest, providers]
                    .iter()
                    .filter(|race| is_open(race))
                    .filter_map(|race| race.wake_at())
                    .min()
            }
            Phase::LookUp { .. } | Phase::Over => None,
        }
    }

    /// The budget is spent. What was gathered is the answer.
    pub fn on_deadline(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        let is_something = !self.providers.is_empty() || self.manifest.is_some();
        let verdict = match self.content.clone() {
            Some(content) if is_something => Verdict::Found(self.gathered(content, false)),
            _ => Verdict::Failed(Failure::Late),
        };
        self.end(verdict);
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// What the name stands for, if that was settled and the rest was not.
    #[must_use]
    pub fn named(&self) -> Option<Gathered> {
        let name = self.name.clone()?;
        let content = Key::Content(name.content);
        let (manifest, providers) = (self.manifest, self.providers.clone());
        Some(Gathered { name: Some(name), content, manifest, providers, is_complete: false })
    }

    /// Whether providers were asked because others were slow, and then whether one of them was first.
    #[must_use]
    pub fn hedge_won(&self) -> Option<bool> {
        self.hedge_won
    }

    /// Whether the providers are settled, so that whoever was asked about them besides can be called off.
    #[must_use]
    pub fn has_providers(&self) -> bool {
        match &self.phase {
            Phase::Content { providers, .. } => matches!(providers.end(), Some(End::Won { .. })),
            _ => false,
        }
    }

    fn gathered(&mut self, content: Key, is_complete: bool) -> Gathered {
        Gathered {
            name: self.name.clone(),
            content,
            manifest: self.manifest,
            providers: std::mem::take(&mut self.providers),
            is_complete,
        }
    }

    fn end(&mut self, verdict: Verdict) {
        if let Phase::Content { providers, .. } = &self.phase {
            let won = matches!(providers.end(), Some(End::Won { is_hedge: true, .. }));
            self.hedge_won = providers.was_hedged().then_some(won);
        }
        self.phase = Phase::Over;
        self.verdict = Some(verdict);
    }

    /// Ends if there is nothing left to wait for.
    fn settle(&mut self) {
        match &self.phase {
            Phase::Name(race) => {
                let Some(End::Spent { is_final, failed, refused, .. }) = race.end() else { return };
                let verdict = match (failed, refused) {
                    (0, 0) => Verdict::Nothing { is_final },
                    (0, _) => Verdict::Failed(Failure::Refused),
                    _ => Verdict::Failed(Failure::Failed),
                };
                self.end(verdict);
            }
            Phase::Content { manifest, providers } => {
                let (Some(of_manifest), Some(of_providers), Some(content)) =
                    (manifest.end(), providers.end(), self.content.clone())
                else {
                    return;
                };
                let was_cut = |end: End| match end {
                    End::Won { .. } => (0, 0),
                    End::Spent { failed, refused, .. } => (failed, refused),
                };
                let (failed, refused) = was_cut(of_providers);
                // A manifest that nobody could be asked for is one that may come later.
                let is_complete = (failed, refused) == (0, 0) && was_cut(of_manifest) == (0, 0);
                let is_final = matches!(of_providers, End::Spent { is_final: true, .. });
                let verdict = if !self.providers.is_empty() || self.manifest.is_some() {
                    Verdict::Found(self.gathered(content, is_complete))
                } else if (failed, refused) == (0, 0) && self.name.is_some() {
                    // What the name stands for is proven, whether somebody has that or not.
                    Verdict::Found(self.gathered(content, is_complete && is_final))
                } else if (failed, refused) == (0, 0) {
                    Verdict::Nothing { is_final }
                } else if failed == 0 {
                    Verdict::Failed(Failure::Refused)
                } else {
                    Verdict::Failed(Failure::Failed)
                };
                self.end(verdict);
            }
            Phase::LookUp { .. } | Phase::Over => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ron_core::NodeId;

    use super::*;

    const SETTINGS: ResolveSettings = ResolveSettings {
        alpha: 3,
        beta: 2,
        hedge_after: Duration::from_millis(150),
        retries: 3,
        enough: 1,
        providers_max: 32,
    };

    fn content() -> ContentId {
        ContentId::of(b"it")
    }

    fn sources(names: usize, manifests: usize, providers: usize) -> Sources {
        Sources { names: (0..names).collect(), manifests, providers }
    }

    fn begin(key: &Key, sources: Sources) -> (Resolve, Instant) {
        let now = ron_core::now();
        (Resolve::new(key, sources, SETTINGS, fastrand::Rng::with_seed(3), now), now)
    }

    fn steps(resolve: &mut Resolve) -> Vec<&'static str> {
        std::iter::from_fn(|| resolve.poll())
            .map(|step| match step {
                Do::LookUp(_) => "look up",
                Do::Name(_) => "name",
                Do::Manifest(..) => "manifest",
                Do::Providers(..) => "providers",
            })
            .collect()
    }

    fn provider(id: u8) -> Provider {
        Provider::new(NodeId::from_bytes([id; 32]), [])
    }

    fn record(version: u64) -> NameRecord {
        NameRecord { content: content(), version, proven_by: "test", ttl: None }
    }

    fn manifest() -> Manifest {
        Manifest { id: content(), len: 2, group_bytes: 65_536 }
    }

    #[test]
    fn a_name_leads_to_content_and_that_to_both_at_once() {
        let key = Key::Name("a/name".parse().unwrap());
        let (mut resolve, now) = begin(&key, sources(1, 1, 2));
        assert_eq!(steps(&mut resolve), ["name"]);
        resolve.on_name(0, Ok(Some(record(3))), now);
        assert_eq!(steps(&mut resolve), ["look up"]);
        resolve.on_cached(None, now);
        assert_eq!(steps(&mut resolve), ["manifest", "providers", "providers"]);
        resolve.on_manifest(0, Ok(Some(manifest())), now);
        assert!(resolve.on_found(provider(1), "dht"));
        resolve.on_brought(1, now);
        let Some(Verdict::Found(found)) = resolve.verdict() else { panic!("{resolve:?}") };
        assert!(found.is_complete && found.manifest == Some(manifest()) && found.providers.len() == 1);
        assert_eq!((found.name.clone().unwrap().version, resolve.hedge_won()), (3, None));
    }

    #[test]
    fn what_the_cache_knows_is_not_asked_again() {
        let key = Key::Name("a/name".parse().unwrap());
        let (mut resolve, now) = begin(&key, sources(1, 1, 2));
        steps(&mut resolve);
        resolve.on_name(0, Ok(Some(record(3))), now);
        steps(&mut resolve);
        resolve.on_cached(Some((Some(manifest()), Vec::new())), now);
        assert!(steps(&mut resolve).is_empty());
        assert!(matches!(resolve.verdict(), Some(Verdict::Found(_))));
    }

    #[test]
    fn only_one_who_can_say_no_does() {
        let check = |answers: &[Result<Answered, bool>]| {
            let (mut resolve, now) = begin(&content().into(), sources(0, 0, answers.len()));
            steps(&mut resolve);
            for (target, answer) in answers.iter().enumerate() {
                resolve.on_providers(target, *answer, now);
            }
            resolve.verdict().cloned().unwrap()
        };
        let (no, unsure) = (Ok(Answered { is_final: true }), Ok(Answered { is_final: false }));
        assert_eq!(check(&[no, unsure]), Verdict::Nothing { is_final: true });
        assert_eq!(check(&[unsure]), Verdict::Nothing { is_final: false });
        assert_eq!(check(&[no, Err(false)]), Verdict::Failed(Failure::Failed));
        assert_eq!(check(&[]), Verdict::Nothing { is_final: false });
    }

    #[test]
    fn a_name_that_stands_for_nothing_is_a_final_no_and_a_silent_source_is_not() {
        let key = Key::Name("a/name".parse().unwrap());
        let (mut resolve, now) = begin(&key, sources(2, 1, 1));
        assert_eq!(steps(&mut resolve), ["name"]);
        resolve.on_name(0, Ok(None), now);
        assert_eq!(steps(&mut resolve), ["name"], "the next source may know it");
        resolve.on_name(1, Ok(None), now);
        assert_eq!(resolve.verdict(), Some(&Verdict::Nothing { is_final: true }));
        let (mut resolve, now) = begin(&key, sources(2, 1, 1));
        steps(&mut resolve);
        resolve.on_name(0, Err(false), now);
        assert_eq!(
            resolve.verdict(),
            Some(&Verdict::Failed(Failure::Failed)),
            "a less trusted one is not asked instead"
        );
    }

    #[test]
    fn at_the_deadline_what_there_is_is_the_answer() {
        let (mut resolve, now) = begin(&content().into(), sources(0, 1, 1));
        steps(&mut resolve);
        resolve.on_manifest(0, Ok(Some(manifest())), now);
        resolve.on_deadline();
        assert!(matches!(resolve.verdict(), Some(Verdict::Found(found)) if !found.is_complete));
        let (mut resolve, _) = begin(&content().into(), sources(0, 1, 1));
        steps(&mut resolve);
        resolve.on_deadline();
        assert_eq!(resolve.verdict(), Some(&Verdict::Failed(Failure::Late)));
    }

    #[test]
    fn everybody_left_alone_is_told_apart_from_everybody_failing() {
        let (mut resolve, _) = begin(&content().into(), sources(0, 0, 2));
        while let Some(step) = resolve.poll() {
            resolve.on_refused(&step);
        }
        assert_eq!(resolve.verdict(), Some(&Verdict::Failed(Failure::Refused)));
    }

    #[test]
    fn of_two_words_of_one_provider_the_later_counts() {
        let settings = ResolveSettings { enough: 9, providers_max: 2, ..SETTINGS };
        let now = ron_core::now();
        let rng = fastrand::Rng::with_seed(1);
        let mut resolve = Resolve::new(&content().into(), sources(0, 0, 2), settings, rng, now);
        steps(&mut resolve);
        let said = |id, issued| Provider { issued: Some(issued), ..provider(id) };
        assert!(resolve.on_found(said(1, 5), "a"));
        assert!(!resolve.on_found(said(1, 7), "b"));
        assert!(!resolve.on_found(said(1, 6), "c"));
        assert!(resolve.on_found(said(2, 1), "a"));
        assert!(!resolve.on_found(said(3, 1), "a"), "two are kept at most");
        resolve.on_deadline();
        let Some(Verdict::Found(found)) = resolve.verdict() else { panic!("{resolve:?}") };
        assert_eq!(
            (found.providers.len(), found.providers[0].0.issued, found.providers[0].1),
            (2, Some(7), "b")
        );
    }

    #[test]
    fn content_that_we_cannot_verify_has_no_manifest() {
        let foreign: Key = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n".parse().unwrap();
        let (mut resolve, _) = begin(&foreign, sources(0, 1, 1));
        assert_eq!(steps(&mut resolve), ["providers"]);
    }
}
