//! Outcomes of recently ended notices, for late copies.

use crate::pipeline::event::{Identity, Version};
use crate::pipeline::interruption::NoticeOutcome;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which an outcome is kept: a copy that arrives within it gets the first copy's outcome.
const KEPT_FOR: Duration = Duration::from_mins(15);

/// Maximum number of outcomes kept, of a few hundred bytes each.
const MAX_ENTRIES: usize = 8192;

/// Outcomes of notices that ended for good, each from the end of the notice's first copy.
#[derive(Debug, Default)]
pub struct OutcomeCache(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    outcomes: HashMap<Arc<Version>, (NoticeOutcome, Instant)>,
    /// The same in the order of their times, so that nothing is searched when a notice ends.
    order: VecDeque<(Arc<Version>, Instant)>,
}

impl Entries {
    /// Removes old outcomes.
    fn sweep(&mut self, now: Instant) {
        while let Some((version, _)) = self.order.pop_front_if(|(_, at)| now - *at >= KEPT_FOR) {
            self.outcomes.remove(&version);
        }
    }
}

impl OutcomeCache {
    /// Returns the outcome of the notice, if it has ended.
    pub(super) fn get(&self, version: &Version) -> Option<NoticeOutcome> {
        let entries = self.0.lock();
        entries.outcomes.get(version).filter(|(_, at)| at.elapsed() < KEPT_FOR).map(|(outcome, _)| *outcome)
    }

    /// Forgets the outcomes of the notice with this identity.
    pub(super) fn forget(&self, identity: &Identity) {
        let mut entries = self.0.lock();
        entries.outcomes.retain(|version, _| !version.is_of(identity));
        let Entries { outcomes, order } = &mut *entries;
        order.retain(|(version, _)| outcomes.contains_key(version));
    }

    /// Keeps the outcome of a notice that has ended for good.
    pub(super) fn remember(&self, version: &Version, outcome: NoticeOutcome) {
        // A notice that was handed over, crashed, planned or not admitted has not ended. The others without work cost no call to find out
        // again, and may differ then.
        if !is_work(outcome) && outcome != NoticeOutcome::Reported {
            return;
        }
        let mut entries = self.0.lock();
        let now = Instant::now();
        entries.sweep(now);
        // Copies that waited together end together, and are one notice.
        if entries.outcomes.len() < MAX_ENTRIES && !entries.outcomes.contains_key(version) {
            let version = Arc::new(version.clone());
            entries.order.push_back((Arc::clone(&version), now));
            entries.outcomes.insert(version, (outcome, now));
        }
    }
}

/// Whether the notice was worked on to its end.
pub(super) const fn is_work(outcome: NoticeOutcome) -> bool {
    use NoticeOutcome::{Crashed, Excluded, HandedOver, Ignored, NotAdmitted, NotOurs, Planned, Reported};
    !matches!(outcome, Crashed | HandedOver | Planned | Ignored | Reported | NotOurs | Excluded | NotAdmitted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event;
    use tokio::time::advance;

    impl OutcomeCache {
        /// The number of outcomes, and that of entries in their order.
        fn len(&self) -> (usize, usize) {
            let entries = self.0.lock();
            (entries.outcomes.len(), entries.order.len())
        }
    }

    fn event(n: usize) -> Version {
        let body = include_str!("../../../tests/fixtures/events/spot.json").replace("4a6f9e2d", &n.to_string());
        let event::Parsed::Notices(mut notices) = event::parse(&body) else { panic!("{body}") };
        notices.next().unwrap().version()
    }

    #[tokio::test(start_paused = true)]
    async fn copies_that_end_are_remembered_once() {
        let cache = OutcomeCache::default();
        cache.remember(&event(0), NoticeOutcome::Drained);
        advance(KEPT_FOR / 2).await;
        for _ in 0..3 {
            cache.remember(&event(0), NoticeOutcome::Drained);
        }
        assert_eq!(cache.len(), (1, 1));
        advance(KEPT_FOR / 2).await;
        assert_eq!(cache.get(&event(0)), None, "its time runs from the first");
        cache.remember(&event(0), NoticeOutcome::Blocked);
        assert_eq!((cache.get(&event(0)), cache.len()), (Some(NoticeOutcome::Blocked), (1, 1)), "then it is new");
    }

    /// A copy of such a notice has to be acted on.
    #[tokio::test(start_paused = true)]
    async fn what_has_not_ended_for_good_is_not_remembered() {
        use NoticeOutcome::{Crashed, Excluded, HandedOver, Ignored, NotAdmitted, NotOurs, Planned};
        let cache = OutcomeCache::default();
        for outcome in NoticeOutcome::ALL {
            cache.remember(&event(0), outcome);
            let ends = !matches!(outcome, HandedOver | Crashed | Planned | NotAdmitted | NotOurs | Ignored | Excluded);
            assert_eq!(cache.get(&event(0)), ends.then_some(outcome));
            advance(KEPT_FOR).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_is_forgotten_first() {
        let cache = OutcomeCache::default();
        for n in 0..3 {
            cache.remember(&event(n), NoticeOutcome::Drained);
            advance(KEPT_FOR / 4).await;
        }
        // It does not make the first any younger.
        cache.remember(&event(0), NoticeOutcome::Drained);
        advance(KEPT_FOR / 4).await;
        cache.remember(&event(3), NoticeOutcome::Drained);
        let known = |cache: &OutcomeCache| (0..4).filter(|n| cache.get(&event(*n)).is_some()).collect::<Vec<_>>();
        assert_eq!((known(&cache), cache.len()), (vec![1, 2, 3], (3, 3)));
        advance(KEPT_FOR / 4).await;
        cache.remember(&event(3), NoticeOutcome::Drained);
        assert_eq!((known(&cache), cache.len()), (vec![2, 3], (2, 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_outcomes_is_bounded() {
        let cache = OutcomeCache::default();
        for n in 0..=MAX_ENTRIES {
            for _copy in 0..2 {
                cache.remember(&event(n), NoticeOutcome::Drained);
            }
        }
        assert_eq!(cache.len(), (MAX_ENTRIES, MAX_ENTRIES));
        assert_eq!((cache.get(&event(0)), cache.get(&event(MAX_ENTRIES))), (Some(NoticeOutcome::Drained), None));
        advance(KEPT_FOR).await;
        cache.remember(&event(MAX_ENTRIES), NoticeOutcome::Drained);
        assert_eq!(cache.len(), (1, 1), "there is room again");
    }
}
