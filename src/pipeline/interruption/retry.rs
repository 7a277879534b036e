//! Another try of work that failed while its change is ahead. A message comes once, and a change may be announced weeks before its start.

use super::late::is_superseded;
use super::{Case, NoticeOutcome};
use crate::clients::gate::Backoff;
use crate::pipeline::event::Notice;
use crate::pipeline::node::Node;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Pauses between tries: from a minute to ten.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_mins(2), Duration::from_mins(10));

/// Returns the pause after which the work on a notice with this outcome is tried again: its calls failed, and its change is ahead. No pause
/// lasts until the start. What was not admitted must give up its place for others, and AWS would have confirmed a real change.
pub(super) fn pause_after(
    outcome: NoticeOutcome,
    notice: &Notice,
    now: Timestamp,
    pauses: &mut Backoff,
) -> Option<Duration> {
    let has_failed = outcome == NoticeOutcome::Failed && !notice.is_withdrawn();
    let ahead = notice.start().filter(|start| has_failed && *start > now)?.duration_since(now).unsigned_abs();
    Some(pauses.step().min(ahead / 2))
}

/// Waits for the next try, or until the Node shows that AWS has moved or cancelled the change. Returns whether a user has uncordoned the
/// Node meanwhile, to keep it.
pub(super) async fn kept_within(case: &Case, pause: Duration) -> bool {
    let Case { interrupter, notice, .. } = case;
    let mut cordoned = None;
    let changed = |known: Option<&Arc<Node>>| {
        let known = known?;
        if is_superseded(notice, known) {
            return Some(false);
        }
        let is_same = cordoned.as_ref() == Some(&(Arc::clone(&known.uid), known.boot.clone()));
        if known.cordoned && known.record.notice(notice.key()).is_some() {
            cordoned = Some((Arc::clone(&known.uid), known.boot.clone()));
        }
        (is_same && !known.cordoned).then_some(true)
    };
    tokio::select! {
        biased;
        kept = interrupter.index.until(&notice.instance, changed) => kept,
        () = sleep(pause) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Detail, Identity, InstanceId, NoticeTime, ScheduledChange};

    #[test]
    fn only_failed_work_on_a_change_that_is_ahead_is_tried_again() {
        let at = |minute: i64| Timestamp::from_second(1_800_000_000 + minute * 60).unwrap();
        let instance = InstanceId::new("i-0123456789abcdef0").unwrap();
        let notice = |start: Option<Timestamp>, withdrawn| {
            let identity = Identity::of_change("instance-event-1".to_owned(), instance.clone());
            let change = ScheduledChange { code: String::new(), start, hard: true, withdrawn, is_issue: false };
            Notice::new(identity, instance.clone(), NoticeTime::Announced(at(0)), Detail::ScheduledChange(change))
        };
        let pause = |outcome, notice: &Notice| pause_after(outcome, notice, at(0), &mut PAUSES.clone());
        let ahead = notice(Some(at(600)), false);
        for outcome in NoticeOutcome::ALL {
            assert_eq!(pause(outcome, &ahead).is_some(), outcome == NoticeOutcome::Failed, "{outcome:?}");
        }
        for over in [notice(Some(at(0)), false), notice(None, false), notice(Some(at(600)), true)] {
            assert_eq!(pause(NoticeOutcome::Failed, &over), None);
        }
        assert_eq!(pause(NoticeOutcome::Failed, &notice(Some(at(1)), false)), Some(Duration::from_secs(30)));
        let mut pauses = PAUSES;
        let mut next = || pause_after(NoticeOutcome::Failed, &ahead, at(0), &mut pauses).unwrap();
        assert!(next() >= Duration::from_mins(1));
        let last = (0..9).map(|_| next()).last().unwrap();
        assert!((Duration::from_mins(5)..=Duration::from_mins(10)).contains(&last));
    }
}
