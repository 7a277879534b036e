//! The wait for a place in the Node's waves. Heartbeats keep a hook alive meanwhile, and its time for the drain starts with the place.

use super::active_wait::ActiveWait;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category, Class, KubeError, LAST_CALL};
use crate::fact::{DrainStep, Fact, WaitOutcome};
use crate::pipeline::drain::Deadline;
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::completion::KeptHook;
use crate::pipeline::interruption::step::Target;
use crate::pipeline::interruption::waves::Turn;
use crate::pipeline::node::Node;
use crate::pipeline::node::record::{Place, whole_seconds};
use crate::runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time between writing a place and checking for other replicas' places. If two replicas' watches lag by less than half of this, at least
/// one sees the other in time.
const SEEN_AFTER: Duration = Duration::from_secs(2);

/// Time after which nodes ahead that have taken no free place are passed over: they wait for something else, or their replica is gone. A
/// replica under load writes a place, and checks it, in less. Nodes that pass over others at the same time may take places out of order, but
/// never more than there are.
const PASSED_OVER: Duration = Duration::from_secs(10);

/// Pause after a change, so that a storm of changes is read once.
const CHANGES_PAUSE: Duration = Duration::from_millis(100);

/// Minimum interval between reports of a changed place in the line: in a storm a thousand nodes move up with each drain that ends.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time to note that a drain is over. Without the note the place is free some time after the deadline.
const NOTE_TIMEOUT: Duration = Duration::from_mins(5);

/// Maximum time for that note before a hook's completion: the Node is deleted soon, and its place with it.
const HOOK_NOTE_TIMEOUT: Duration = Duration::from_secs(10);

impl Case {
    /// Waits until the Node has a place in its waves, and records it on the Node.
    pub(super) async fn placed(&self, waiting: &ActiveWait<'_>, hook: Option<&KeptHook>) -> WaitOutcome {
        let Self { interrupter, notice, node, .. } = self;
        let Some(node) = node else { return WaitOutcome::NotNeeded };
        let (key, waves) = (notice.key(), interrupter.waves.of(self.policy.pool.as_deref()));
        let mut changes = interrupter.index.places();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let (mut room_since, mut reported_at) = (None, None);
        let mut passing = false;
        loop {
            // In a blind index, a place that looks free may be taken.
            interrupter.index.live().await;
            let Some(known) = interrupter.index.newest(node) else { return WaitOutcome::NotNeeded };
            if let Some(Place::Evicts(_) | Place::Over) = known.record.notice(key).and_then(|known| known.place) {
                // A takeover.
                return WaitOutcome::Met;
            }
            if let Some(shift) = interrupter.shifts.holding_back(&known, interrupter.clock.now()) {
                // A shift has started meanwhile: no node gets a place.
                (room_since, reported_at, passing) = (None, None, false);
                self.wait_in(&shift, waiting).await;
                continue;
            }
            let claim = match waves.turn(&known, interrupter.clock, passing) {
                Turn::Now(claim) => claim,
                Turn::Later { reason, has_room, look_again } => {
                    let report_at =
                        reported_at.map(|at: Instant| at + REPORT_INTERVAL).filter(|at| *at > Instant::now());
                    if report_at.is_none() {
                        waiting.set_reason(reason);
                        reported_at = Some(Instant::now());
                    }
                    room_since = has_room.then(|| room_since.unwrap_or_else(Instant::now));
                    let pass_at = room_since.map(|since| since + PASSED_OVER);
                    passing = pass_at.is_some_and(|at| at <= Instant::now());
                    if !passing {
                        let look_again = look_again.map(|at| interrupter.clock.instant_of(at) + CHANGES_PAUSE);
                        let next = pass_at.into_iter().chain(look_again).chain(report_at).min();
                        tokio::select! {
                            // The sender lives as long as the index.
                            _ = changes.changed() => sleep(CHANGES_PAUSE).await,
                            () = clock::until(next) => {}
                        }
                    }
                    continue;
                }
            };
            // As other replicas read it: the order must be the same for all.
            let at = whole_seconds(interrupter.clock.now());
            let ends = hook.and_then(|hook| hook.deadline_from(interrupter.clock.instant_of(at)));
            let noted = self.note_place(node, Place::Evicts(at), ends).await;
            drop(claim);
            if let Err(error) = noted {
                if error.category == Category::Denied {
                    return WaitOutcome::Denied;
                }
                sleep(error.wait(backoff.step())).await;
                continue;
            }
            sleep(SEEN_AFTER).await;
            if waves.keeps(node, at, interrupter.clock) {
                return WaitOutcome::Met;
            }
            (room_since, passing) = (None, false);
            // If that fails, the mark still shows the place as taken, and it counts.
            let _ = self.note_place(node, Place::Waits, hook.and_then(|hook| hook.deadline_from(waiting.until))).await;
        }
    }

    /// Returns the target with the deadline that counts from the Node's place, or from now without one. `None` if it is not put off.
    pub(super) fn counted_from_place(&self, target: &Target, hook: Option<&KeptHook>) -> Option<Target> {
        let Self { interrupter, notice, .. } = self;
        let known = interrupter.index.newest(&target.node);
        let begins = match known.and_then(|known| known.record.notice(notice.key())?.place) {
            Some(Place::Evicts(at)) => interrupter.clock.instant_of(at),
            _ => Instant::now(),
        };
        let deadline = KeptHook::put_off(hook, begins)?.at_least(Instant::now() + LAST_CALL);
        Some(Target { deadline, ..target.clone() })
    }

    /// Records on the Node that evictions have started, if its mark shows that they wait: the wait was cut short or timed out. The wait has
    /// put off a hook's deadline.
    pub(in crate::pipeline::interruption) async fn note_evictions(&self, deadline: Deadline) {
        let ends = matches!(deadline, Deadline::Hook(_)).then_some(deadline);
        let evicts = || Place::Evicts(self.interrupter.clock.now());
        self.change_place(|place| place == Some(Place::Waits), evicts, ends).await;
    }

    /// Records on the Node that its place in the waves is free, if it had or awaited one, or was `drained` without one.
    pub(in crate::pipeline::interruption) async fn end_place(&self, drained: bool) {
        let ends = |place| match place {
            Some(Place::Waits | Place::Evicts(_)) => true,
            Some(Place::Over) => false,
            None => drained,
        };
        self.change_place(ends, || Place::Over, None).await;
    }

    async fn change_place(
        &self,
        changes: impl Fn(Option<Place>) -> bool,
        to: impl Fn() -> Place,
        ends: Option<Deadline>,
    ) {
        let Self { interrupter, policy, notice, node, .. } = self;
        let Some(node) = node else { return };
        let at_most = if notice.hook().is_some() { HOOK_NOTE_TIMEOUT } else { NOTE_TIMEOUT };
        let (key, by) = (notice.key(), Instant::now() + at_most);
        let note = || async {
            let Some(known) = interrupter.index.newest(node) else { return Ok(()) };
            let place = known.record.notice(key).and_then(|known| known.place);
            let is_of_wave = || policy.waits.waves.iter().any(|wave| known.labels.contains_key(&*wave.label));
            if !changes(place) || place.is_none() && !is_of_wave() {
                return Ok(());
            }
            Box::pin(self.note_place(node, to(), ends)).await
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        // `note_place` has reported each failure.
        let _ = backoff.retry(Some(by), note, |error| error.category != Category::Denied).await;
    }

    async fn note_place(&self, node: &Arc<Node>, place: Place, ends: Option<Deadline>) -> Result<(), KubeError> {
        let Self { interrupter, notice, .. } = self;
        let key = notice.key();
        let ends = ends.map(|ends| interrupter.clock.timestamp_of(ends.at()));
        let by = (Class::List, Instant::now() + CALL_TIMEOUT);
        let noted = interrupter.marker.revise(node, key, by, |known, _| known.placed(place, ends)).await;
        noted.map(drop).inspect_err(|error| {
            let (on, step, category) = (node.named(), DrainStep::Wave, error.category);
            self.emit(&Fact::DrainRetried { on, step, category, error });
        })
    }
}
