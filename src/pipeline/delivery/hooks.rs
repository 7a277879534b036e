//! The lifecycle hook of a termination that a Node tells of: searched by the instance, because the metadata do not name it.

use super::Deliverer;
use crate::fact::{Category, Fact, NoticeRef};
use crate::pipeline::event::{Detail, Notice};
use crate::pipeline::interruption::{HookSearch, Interrupter};
use crate::pipeline::node::says::says;
use std::future::pending;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Maximum time for which a drain waits for the first search.
const FIRST_SEARCH: Duration = Duration::from_secs(2);

/// Interval of the searches: a third of the shortest timeout of a hook.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of the hook of a notice.
pub(super) struct SoughtHook {
    /// Whether it may still be found.
    is_open: bool,
    /// The last failure that was told.
    told: Option<Category>,
}

impl Deliverer {
    /// Makes the termination that a Node tells of one with a hook, if the settings name one and the instance waits at it.
    pub(super) async fn seek_hook(&self, notice: &mut Notice, about: &NoticeRef<'_>) -> SoughtHook {
        let is_hint = matches!(notice.detail, Detail::AsgTermination { .. });
        let mut sought = SoughtHook { is_open: is_hint && self.interrupter.policy.node_hook().is_some(), told: None };
        if sought.is_open {
            let found = timeout(FIRST_SEARCH, self.search(notice, &mut sought, about)).await;
            sought.is_open = !matches!(found, Ok(Some(HookSearch::Found(_) | HookSearch::Nowhere(_))));
            notice.detail = match found {
                Ok(Some(HookSearch::Found(hook))) => Detail::AsgTerminate(hook),
                _ => Detail::AsgTermination { sought: sought.is_open },
            };
        }
        sought
    }

    /// Waits until it shows whether the instance waits at the hook, if it did not at first. Without that, forever.
    pub(super) async fn hook_shows(&self, notice: &Notice, sought: &mut SoughtHook, about: &NoticeRef<'_>) {
        while sought.is_open {
            sleep(SEARCH_INTERVAL).await;
            if let Some(HookSearch::Found(_) | HookSearch::Nowhere(_)) = self.search(notice, sought, about).await {
                return;
            }
        }
        pending::<()>().await;
    }

    /// Waits, after the drain, until the instance waits at the hook, and returns whether it does: not if it will wait at none, or if
    /// its Node no longer says that it goes.
    pub(super) async fn hook_follows(&self, notice: &Notice, sought: &mut SoughtHook, about: &NoticeRef<'_>) -> bool {
        let index = &self.interrupter.index;
        while sought.is_open {
            match self.search(notice, sought, about).await {
                Some(HookSearch::Found(_)) => return true,
                Some(HookSearch::Nowhere(_) | HookSearch::InService) => break,
                _ => {}
            }
            sleep(SEARCH_INTERVAL).await;
            let node = index.get(&notice.instance);
            sought.is_open = node.is_some_and(|node| says(&node, &notice.identity));
        }
        false
    }

    /// Searches once. A failure is told once, until it fails differently.
    async fn search(&self, notice: &Notice, sought: &mut SoughtHook, about: &NoticeRef<'_>) -> Option<HookSearch> {
        let Interrupter { hooks, policy, .. } = &*self.interrupter;
        match hooks.search(policy.node_hook()?, &notice.instance).await {
            Ok(found) => {
                if let HookSearch::Nowhere(why) = &found {
                    self.facts.emit(&Fact::HookNotFound { about: *about, hook: policy.node_hook()?, why });
                }
                Some(found)
            }
            Err(error) => {
                let category = error.category();
                if sought.told.replace(category) != Some(category) {
                    self.facts.emit(&Fact::HookSearchFailed { about: *about, error: &error });
                }
                None
            }
        }
    }
}
