//! The owner of an instance.

use super::Case;
use super::known::Owner;
use super::link::MessageLink;
use crate::clients::gate::Backoff;
use crate::fact::Fact;
use crate::pipeline::event::Detail;
use crate::pipeline::node::{InstanceRecord, Membership, Ownership, owned_by_record, owned_without_asking};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Maximum time between a launch and EC2's knowledge of the instance: EC2 is eventually consistent.
const VISIBLE_AFTER: Duration = Duration::from_mins(1);

impl Case {
    /// Finds out which cluster owns the instance. `link` has the source of the notice.
    pub(super) async fn find_owner(&self, link: &MessageLink, by: Instant) -> Owner {
        if let Some(ours) = self.owned_without_asking(link, self.node.is_some()) {
            return Owner::Found(ours);
        }
        timeout_at(by, self.ask_for_owner(link)).await.map_or(Owner::NotFound, Owner::Found)
    }

    fn owned_without_asking(&self, link: &MessageLink, has_node: bool) -> Option<Ownership> {
        let require_tag = self.policy.require_tag;
        owned_without_asking(has_node || link.by_node.load(Ordering::Acquire), require_tag)
    }

    async fn ask_for_owner(&self, link: &MessageLink) -> Ownership {
        let Self { interrupter, notice, .. } = self;
        let visible_by = interrupter.clock.notice_instant(notice.at()) + VISIBLE_AFTER;
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        loop {
            let has_node = interrupter.index.get(&notice.instance).is_some();
            if let Some(owned) = self.owned_without_asking(link, has_node) {
                return owned;
            }
            let launching = matches!(notice.detail, Detail::AsgLaunch(_)) && Instant::now() < visible_by;
            let fate = if launching {
                interrupter.owner.ask_anew(&notice.instance).await
            } else {
                interrupter.owner.ask(&notice.instance).await
            };
            match fate {
                Ok(InstanceRecord::Unknown) if launching => {}
                Ok(fate) => {
                    // A copy from the hook itself may have arrived meanwhile.
                    let direct = link.direct.load(Ordering::Acquire);
                    let owned = |has_node| {
                        let ours = self.owned_without_asking(link, has_node);
                        ours.unwrap_or_else(|| owned_by_record(fate, has_node, direct, notice))
                    };
                    if owned(false) != Ownership::Ours {
                        // A blind index does not know a Node that has registered meanwhile.
                        interrupter.index.live().await;
                    }
                    if !is_certain(fate) && owned(false) != owned(true) {
                        interrupter.index.shows(interrupter.clock.notice_instant(notice.at())).await;
                    }
                    return owned(interrupter.index.get(&notice.instance).is_some());
                }
                Err(error) => {
                    let category = error.category;
                    self.emit(&Fact::OwnerUnknown { about: self.about(), category, error: &error });
                }
            }
            sleep(backoff.step()).await;
        }
    }
}

/// Whether the instance certainly has no Node here that the watch has not shown yet: its tags name another cluster, or it is gone. Most of
/// an account's events are about such instances.
const fn is_certain(record: InstanceRecord) -> bool {
    matches!(
        record,
        InstanceRecord::Known { membership: Membership::OtherCluster, .. } | InstanceRecord::Terminated { .. }
    )
}
