//! What ends the repair of a Node once it is drained: a reboot of its instance, or its termination by its group. Pure.
//!
//! ```text
//! action reboot    drained ─▶ no reboot within an hour ─▶ Reboot ─┬▶ the node is healthy: its marks are removed
//!                        │                                        └▶ its time is over ─▶ Terminate
//!                        └──▶ one, and the node is unhealthy again, or still, after ten minutes ─▶ Terminate
//! action replace   drained ─▶ its group was not asked to launch another first ─▶ Terminate, with --terminate-first
//! ```

use super::NoticeOutcome;
use super::policy::{Action, Policy};
use crate::fact::{Remedy, Wait};
use crate::pipeline::event::{Detail, Notice};
use crate::pipeline::node::Node;
use crate::pipeline::node::reboot::rebooted_at;
use crate::pipeline::node::replacement::is_asked;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// Time within which a rebooted node must be healthy. EC2 cuts the power of an instance that has not shut down after a few minutes:
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-reboot.html>.
const REBOOT_TIME: Duration = Duration::from_mins(10);

/// Maximum time from EC2's answer that a status check passes until the notice is called off: a round of that source.
const CALL_OFF_TIME: Duration = Duration::from_secs(90);

/// Time within which an instance is not rebooted again.
const REBOOT_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// Maximum wait for the group's turn to terminate an instance.
const TERMINATE_TIME: Duration = Duration::from_mins(10);

/// Returns what is done about the instance of an unhealthy Node after work that ended so, and for how long at most, if anything is left
/// to do. `tried`: the last remedy that this work has tried, whose time is over.
#[must_use]
pub fn remedy(
    policy: &Policy,
    notice: &Notice,
    node: &Node,
    outcome: NoticeOutcome,
    tried: Option<Remedy>,
    now: Timestamp,
) -> Option<(Remedy, Duration)> {
    let is_empty = matches!(outcome, NoticeOutcome::Drained | NoticeOutcome::NodeDead);
    let is_left = is_empty && notice.kind().is_repair() && !notice.is_withdrawn() && !node.is_excluded();
    // One that leaves for another reason is not disturbed: its hook may wait for volumes, or for another controller. A note of a request that
    // is not confirmed may be of a replica that has ended before its call.
    if !is_left || node.record.is_leaving() || is_asked(node) || tried == Some(Remedy::Terminate) {
        return None;
    }
    let terminate = (Remedy::Terminate, TERMINATE_TIME);
    match policy.action(notice) {
        // The time of the wait counts, whenever the reboot was noted in it and whatever the clock shows since. Without a note, EC2 has
        // refused it.
        Action::Reboot if tried.is_some() => rebooted_at(node).filter(|_| !is_healthy(notice, node)).map(|_| terminate),
        Action::Reboot if is_reboot_due(node, now) => Some((Remedy::Reboot, reboot_time(policy, notice))),
        Action::Reboot => {
            // A reboot that another clock noted may be ahead.
            let ago = rebooted_at(node).and_then(|at| Duration::try_from(now.duration_since(at)).ok());
            let left = reboot_time(policy, notice).saturating_sub(ago.unwrap_or_default());
            Some(if left.is_zero() { terminate } else { (Remedy::Reboot, left) })
        }
        Action::Replace if policy.waits.terminate_first => Some(terminate),
        _ => None,
    }
}

/// Returns the time within which the rebooted node must be known to be healthy. EC2 is asked about status checks only now and then.
fn reboot_time(policy: &Policy, notice: &Notice) -> Duration {
    let interval = policy.ec2_poll_interval.filter(|_| matches!(notice.detail, Detail::StatusCheck(_)));
    interval.map_or(REBOOT_TIME, |interval| REBOOT_TIME + interval + CALL_OFF_TIME)
}

/// Whether the Node no longer has the condition that the notice reports. Of a status check only EC2 knows that, and calls the notice off.
fn is_healthy(notice: &Notice, node: &Node) -> bool {
    matches!(&notice.detail, Detail::Condition(name) if !node.has_condition(name))
}

/// Whether the Node's instance may be rebooted now.
#[must_use]
pub fn is_reboot_due(node: &Node, now: Timestamp) -> bool {
    rebooted_at(node).is_none_or(|at| now.duration_since(at) >= REBOOT_PAUSE)
}

/// Returns the wait of the remedy.
#[must_use]
pub const fn wait_of(remedy: Remedy) -> Wait {
    match remedy {
        Remedy::Reboot => Wait::Reboot,
        Remedy::Terminate => Wait::Termination,
    }
}
