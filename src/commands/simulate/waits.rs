//! The waits before evictions, and between the drain and the hook's completion; also those that would be left out, and why.

use super::reasons;
use super::view::{Place, PlannedWaitView};
use crate::fact::{NoticeOutcome, Wait};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Notice;
use crate::pipeline::interruption::{ForLoadBalancers, Policy, Waits, remedy, wait_of};
use crate::pipeline::node::Node;
use crate::pipeline::node::shift::Shift;
use crate::runtime::clock::Clock;
use std::time::Duration;
use tokio::time::Instant;

/// Has the wait for the shift end when the shift counts no longer.
pub(super) fn end_with(shift: &Shift, waits: &mut Waits, clock: &Clock) {
    if let Some(until) = waits.until(Wait::ZonalShift) {
        waits.remove(Wait::ZonalShift);
        waits.add(Wait::ZonalShift, until.min(clock.instant_of(shift.until)));
    }
}

/// Returns the waits before evictions, among them perhaps that for the end of the shift.
pub(super) fn before(waits: &Waits, shift: Option<&Shift>) -> Vec<PlannedWaitView> {
    let mut views = views(Place::BeforeEvictions, waits, Instant::now());
    for view in views.iter_mut().filter(|view| view.wait == Wait::ZonalShift) {
        view.until = shift.map_or_else(|| view.until.clone(), reasons::shifted_back);
    }
    views
}

/// Returns the waits between a drain that succeeds and the completion, and those that are not made although they are set.
pub(super) fn after(
    policy: &Policy,
    notice: &Notice,
    node: &Node,
    (drained, deadline): (Instant, Deadline),
    clock: &Clock,
) -> Vec<PlannedWaitView> {
    let waits = policy.waits_after(notice, NoticeOutcome::Drained, node.has_volumes, drained, deadline);
    let balanced = policy.waits.load_balancers != ForLoadBalancers::Nothing;
    let has_hook = policy.touched_hook(notice).is_some();
    // Without volumes and without a hook the answer does not mention them.
    let volumes = !policy.waits.volumes.is_zero() && (has_hook || node.has_volumes);
    let wanted = [(Wait::Volumes, volumes), (Wait::LoadBalancers, balanced)];
    let why_not = |wait| match wait {
        _ if policy.dry_run => "--dry-run waits for nothing",
        _ if !has_hook => "without a lifecycle hook to complete, nothing would be put off",
        Wait::Volumes if !node.has_volumes => "no volume is attached to the Node",
        Wait::LoadBalancers if notice.hook().is_some_and(|hook| hook.replaces_root_volume) => {
            "the instance only gets another root volume, and stays in its target groups"
        }
        _ => "no time is left",
    };
    let mut views = if has_hook { views(Place::BeforeCompletion, &waits, drained) } else { Vec::new() };
    let unmade = wanted.into_iter().filter(|(wait, wanted)| *wanted && !views.iter().any(|view| view.wait == *wait));
    let unmade: Vec<_> = unmade.map(|(wait, _)| forgone(Place::BeforeCompletion, wait, why_not(wait))).collect();
    views.extend(unmade);
    views.extend(end_of_repair(policy, notice, node, clock));
    views
}

/// Returns the wait for the end of a repair.
fn end_of_repair(policy: &Policy, notice: &Notice, node: &Node, clock: &Clock) -> Option<PlannedWaitView> {
    let (remedy, at_most) = remedy(policy, notice, node, NoticeOutcome::Drained, None, clock.now())?;
    let (place, wait) = (Place::AfterDrain, wait_of(remedy));
    Some(if policy.dry_run { forgone(place, wait, "--dry-run changes nothing") } else { view(place, wait, at_most) })
}

/// Returns the deadline if a wave or a shift lasts until its latest end: a hook's time for the drain begins then.
pub(super) fn put_off(notice: &Notice, clock: &Clock, deadline: Deadline, waits: &Waits) -> Deadline {
    let waited = waits.put_off_until().map(|until| until.saturating_duration_since(clock.notice_instant(notice.at())));
    waited.map_or(deadline, |waited| deadline.put_off(waited))
}

/// Returns a wait that is not made.
pub(super) fn forgone(place: Place, wait: Wait, why: &str) -> PlannedWaitView {
    PlannedWaitView { at_most_seconds: None, not_because: Some(why.to_owned()), ..view(place, wait, Duration::ZERO) }
}

fn views(place: Place, waits: &Waits, from: Instant) -> Vec<PlannedWaitView> {
    waits.iter().map(|(wait, until)| view(place, wait, until.saturating_duration_since(from))).collect()
}

fn view(place: Place, wait: Wait, at_most: Duration) -> PlannedWaitView {
    let (until, setting) = match wait {
        Wait::Admission => ("fewer nodes are drained, or AWS confirms the notice", "--max-draining, --verify"),
        Wait::Delay => ("the time is over", "--delay"),
        Wait::Replacement => ("another Node of the Auto Scaling group is Ready", "--on KIND=replace"),
        Wait::Wave => ("fewer nodes with the value of its label are drained", "--wave"),
        Wait::ZonalShift => ("traffic is no longer shifted away from another zone", "--zonal-shift"),
        Wait::HoldBeforeDrain => ("ebbtide/release is set to before-drain", "--hold"),
        Wait::CompleteAfter => ("the time is over", "--complete-after"),
        Wait::Volumes => ("the volumes of the drained pods are detached", "--wait-for-volumes"),
        Wait::LoadBalancers => ("no target group lists the instance", "--wait-for-load-balancers"),
        Wait::Reboot => ("the node is healthy again; the instance is rebooted for that", "--on-condition"),
        Wait::Termination => ("the Auto Scaling group was asked to terminate the instance", "--terminate-first"),
        Wait::HoldBeforeCompletion => ("ebbtide/release is set to before-completion", "--hold"),
    };
    let at_most_seconds = Some((at_most + Duration::from_millis(500)).as_secs());
    let until = until.to_owned();
    PlannedWaitView { place, wait, until, setting, at_most_seconds, not_because: None }
}
