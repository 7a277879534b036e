//! Restarts of Nodes before the start of a change that is recorded on them. Retirement means failing hardware, so that they are likely.
//!
//! Such a restart settles nothing: AWS's own restart comes at the start. But an instance that was stopped and started has left for other
//! hardware, and AWS drops the change. EC2 knows that first, and is asked once for each restart. If it can't be, the change stands until AWS
//! Health or the Node's agent withdraws it.

use super::record::{NoticeRecord, RETURN_BEFORE_START, Withdrawal};
use super::release::NodeRelease;
use super::replacement::is_replaced;
use super::{Listing, Marker, Node};
use crate::clients::gate::{CALL_TIMEOUT, Category, Class, KubeError};
use crate::fact::{Fact, Facts};
use crate::pipeline::event::{Detail, InstanceId, NoticeKey};
use crate::runtime::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum age of an announcement whose change EC2 is asked about: EC2 may list a change later than a message announces it.
const LISTED_AFTER: SignedDuration = SignedDuration::from_mins(3);

/// Minimum time before a restart could be the return from a change in which it is judged, whether or not EC2 may be asked by then: later the
/// early restart would be taken for that return.
const JUDGED_BEFORE: Duration = Duration::from_secs(10);

/// What EC2 lists of the changes that are ahead.
enum Changes {
    /// The instances that have one.
    Of(HashSet<InstanceId>),
    /// EC2 can't be asked: the settings don't need it otherwise, or the role may not.
    Unknown,
}

impl Changes {
    /// Whether EC2 no longer lists a change of this instance.
    fn has_dropped(&self, instance: &InstanceId) -> bool {
        matches!(self, Self::Of(listed) if !listed.contains(instance))
    }
}

/// Returns when it is to be judged whether the changes that are ahead of a Node stand, which has restarted; `None` if it has none.
pub(super) fn early_restart(node: &Node, now: Timestamp) -> Option<Timestamp> {
    let is_judged = node.ready && !node.ignored && !is_replaced(node, now);
    let early = || {
        let notices = node.record.notices().map(|(_, notice)| notice).filter(|_| is_judged);
        notices.filter(|notice| notice.has_restarted_early(&node.boot, now))
    };
    let last = early().filter_map(|notice| notice.start?.checked_sub(RETURN_BEFORE_START + JUDGED_BEFORE).ok()).min();
    early().filter_map(listed_from).max().into_iter().chain(last).min()
}

/// Returns when EC2 lists the change that is announced, if it stands.
fn listed_from(notice: &NoticeRecord) -> Option<Timestamp> {
    notice.since.unwrap_or_default().checked_add(LISTED_AFTER).ok()
}

/// Finds out whether changes stand after a restart, and records it.
pub struct Restarts {
    /// What EC2 lists, if the settings have it asked about changes at all.
    pub listing: Option<Listing>,
    /// Patches the Nodes.
    pub marker: Marker,
    /// Wall time: changes name their start in it.
    pub clock: Clock,
    /// Receives facts.
    pub facts: Facts,
}

impl Restarts {
    /// Records of the changes that are ahead of these Nodes, which have restarted, whether they stand or EC2 has dropped them. Returns for
    /// each Node whether that succeeded.
    pub(super) async fn judge(&self, nodes: Vec<Arc<Node>>) -> Vec<(Arc<Node>, bool)> {
        if nodes.is_empty() {
            return Vec::new();
        }
        let asked = self.clock.now();
        let Some(changes) = self.changes(asked, &nodes).await else {
            return nodes.into_iter().map(|node| (node, false)).collect();
        };
        let mut judged = Vec::new();
        for node in nodes {
            let early = node.record.notices().filter(|(_, notice)| notice.has_restarted_early(&node.boot, asked));
            let mut succeeded = true;
            let early = early.filter_map(|(key, notice)| Some((key, notice.start?, listed_from(notice)? <= asked)));
            for (key, start, is_listed) in early.collect::<Vec<_>>() {
                let written = if is_listed && changes.has_dropped(&node.instance) {
                    self.drop_change(&node, key, Withdrawal { at: asked, start: Some(start) }).await
                } else {
                    self.keep_change(&node, key, asked).await
                };
                if let Err(error) = &written {
                    self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
                }
                succeeded &= written.is_ok();
            }
            judged.push((node, succeeded));
        }
        judged
    }

    /// Asks EC2. `None` if it did not answer.
    async fn changes(&self, now: Timestamp, nodes: &[Arc<Node>]) -> Option<Changes> {
        let Some(listing) = &self.listing else { return Some(Changes::Unknown) };
        let error = match listing.changes(now).await {
            Ok(listed) => {
                let stands = listed
                    .into_iter()
                    .filter(|notice| !matches!(&notice.detail, Detail::ScheduledChange(of) if of.withdrawn));
                return Some(Changes::Of(stands.map(|notice| notice.instance).collect()));
            }
            Err(error) => error,
        };
        let can_be_asked = !matches!(error.category, Category::Denied | Category::Invalid | Category::NotFound);
        if let Some(node) = nodes.first() {
            self.facts.emit(&Fact::RestartUnjudged { on: node.named(), retried: can_be_asked, error: &error });
        }
        (!can_be_asked).then_some(Changes::Unknown)
    }

    /// Removes what the Node records of a change that EC2 has dropped, and notes that for older copies of its message.
    async fn drop_change(&self, node: &Node, key: NoticeKey, by: Withdrawal) -> Result<(), KubeError> {
        let due = |current: &Node| {
            let is_early = |notice: &NoticeRecord| notice.has_restarted_early(&current.boot, by.at);
            current.record.notice(key).filter(|notice| is_early(notice))?;
            NodeRelease::of_withdrawn(current, key, by, true)
        };
        let released = self.marker.release(node, Instant::now() + CALL_TIMEOUT, due).await?;
        if let Some(released) = released {
            released.report(node, |fact| self.facts.emit(fact));
        }
        Ok(())
    }

    /// Records that the Node's restart was no return from the change, which stands.
    async fn keep_change(&self, node: &Node, key: NoticeKey, now: Timestamp) -> Result<(), KubeError> {
        let by = (Class::List, Instant::now() + CALL_TIMEOUT);
        let stands = |notice: &NoticeRecord, current: &Node| {
            notice.has_restarted_early(&current.boot, now).then(|| notice.in_boot(&current.boot))
        };
        self.marker.revise(node, key, by, stands).await.map(drop)
    }
}
