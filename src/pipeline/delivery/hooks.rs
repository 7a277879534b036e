//! The lifecycle hook of a termination that a Node tells of: searched by the instance, because the metadata do not name it.

use super::Deliverer;
use crate::fact::{Category, Fact, HookLack, NoticeRef};
use crate::pipeline::event::{Detail, InstanceId, Notice};
use crate::pipeline::interruption::{HookSearch, Interrupter};
use crate::pipeline::node::Node;
use crate::pipeline::node::says::says;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum time for which a drain waits for the first search.
const FIRST_SEARCH: Duration = Duration::from_secs(2);

/// Interval of the searches: a third of the shortest timeout of a hook.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// Time after the notice from which Auto Scaling's answer is no longer expected to show an older state.
const SHOWN_AFTER: Duration = Duration::from_mins(1);

/// The search for the hook of one notice.
pub(super) struct SoughtHook {
    /// Whether the hook may still be found.
    pub is_open: bool,
    begun: Instant,
    /// When to search next.
    next: Instant,
    /// The last failure that was told.
    told: Option<Category>,
}

impl Deliverer {
    /// Makes the termination that a Node tells of one with a hook, if the settings name one and the instance waits at it.
    pub(super) async fn seek_hook(&self, notice: &mut Notice, about: &NoticeRef<'_>) -> SoughtHook {
        let is_open = self.seeks(notice);
        let now = Instant::now();
        let mut sought = SoughtHook { is_open, begun: now, next: now, told: None };
        if is_open {
            // A search that takes longer is begun again at once, beside the drain.
            let found = timeout(FIRST_SEARCH, self.search(&notice.instance, &mut sought, about)).await;
            notice.detail = found.unwrap_or(Detail::AsgTermination { sought: false });
        }
        sought
    }

    /// Waits until the search is over, and returns what it has found: the notice with the hook, or without one. Without a search, waits
    /// forever.
    pub(super) async fn hook_shows(
        &self,
        instance: &InstanceId,
        sought: &mut SoughtHook,
        about: &NoticeRef<'_>,
    ) -> Detail {
        while sought.is_open {
            sleep_until(sought.next).await;
            let found = self.search(instance, sought, about).await;
            if !sought.is_open {
                return found;
            }
        }
        pending().await
    }

    /// Whether a hook is sought for the notice.
    pub(super) fn seeks(&self, notice: &Notice) -> bool {
        let is_hint = matches!(notice.detail, Detail::AsgTermination { .. });
        is_hint && self.interrupter.policy.node_hook().is_some()
    }

    /// Waits until the Node, which gave the notice, no longer says it.
    pub(super) async fn unsaid(&self, node: &Node, notice: &Notice) {
        let unsaid = |node: Option<&Arc<Node>>| {
            let is_said = node.is_some_and(|node| says(node, &notice.identity));
            (!is_said).then_some(())
        };
        self.interrupter.index.until_node(node, unsaid).await;
    }

    /// Searches once, and returns what the notice is as far as is known now. A failure is told once, until it fails differently.
    async fn search(&self, instance: &InstanceId, sought: &mut SoughtHook, about: &NoticeRef<'_>) -> Detail {
        let Interrupter { hooks, policy, .. } = &*self.interrupter;
        let without = |sought| Detail::AsgTermination { sought };
        let Some(name) = policy.node_hook() else { return without(false) };
        let found = hooks.search(name, instance).await;
        sought.next = Instant::now() + SEARCH_INTERVAL;
        let is_shown = sought.begun.elapsed() >= SHOWN_AFTER;
        match found {
            Ok(HookSearch::Found(hook)) => {
                sought.is_open = false;
                self.facts.emit(&Fact::HookFound { about: *about, group: &hook.group, hook: &hook.name });
                Detail::AsgTerminate(hook)
            }
            Ok(HookSearch::NotYet) => without(true),
            Ok(HookSearch::InService) if !is_shown => without(true),
            // Its Node says that a group terminates it: an answer without that group may be one of another region.
            Ok(HookSearch::NoGroup) if !is_shown => without(false),
            Ok(shown @ (HookSearch::InService | HookSearch::NoGroup | HookSearch::Nowhere(_))) => {
                sought.is_open = false;
                let why = match shown {
                    HookSearch::NoGroup => Some(HookLack::NoGroup),
                    HookSearch::Nowhere(HookLack::NoHook { group, others }) => {
                        let is_theirs = |other: &String| policy.ignored_hooks.contains(other);
                        Some(match others.first() {
                            Some(hook) if others.iter().all(is_theirs) => {
                                HookLack::LeftToOthers { group, hook: hook.clone() }
                            }
                            _ => HookLack::NoHook { group, others },
                        })
                    }
                    HookSearch::Nowhere(why) => Some(why),
                    _ => None,
                };
                if let Some(why) = &why {
                    self.facts.emit(&Fact::HookNotFound { about: *about, hook: name, why });
                }
                without(false)
            }
            Err(error) => {
                let category = error.category;
                if sought.told.replace(category) != Some(category) {
                    self.facts.emit(&Fact::HookSearchFailed { about: *about, error: &error });
                }
                without(false)
            }
        }
    }
}
