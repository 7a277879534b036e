//! Finds the lifecycle hook of a termination that the Node's agent reports, or that follows because the group was asked to replace the
//! Node. The instance metadata don't name it, so it is searched by instance.

use super::offers::{Offer, Offers, Origin};
use crate::fact::{Category, Fact, HookLack, NoticeRef};
use crate::pipeline::event::{Detail, InstanceId, Notice};
use crate::pipeline::interruption::HookSearch;
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::{has_agent_notice, is_reported};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum time for which a drain waits for the first search.
const FIRST_SEARCH: Duration = Duration::from_secs(2);

/// Interval of the searches: a third of the shortest timeout of a hook.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// Time after the notice from which Auto Scaling's answers are expected to show the current state.
const CURRENT_AFTER: Duration = Duration::from_mins(1);

/// State of the search for the hook of one notice.
pub(super) struct HookSearchState {
    /// Whether the hook may still be found.
    pub is_open: bool,
    /// Whether only a request for a replacement leads to the termination: the group keeps the instance until it has launched another.
    pub is_by_request: bool,
    started: Instant,
    /// Time of the next search.
    next: Instant,
    /// Last failure that was reported.
    reported: Option<Category>,
}

impl Offers {
    /// Reports the offer, and adds the hook to a termination that the agent reports, if the settings name one and the instance waits at it. If only the note of a
    /// request for a replacement announces the termination, first waits until the group terminates the instance; `None` if the agent reports
    /// it before, or if the request is no longer noted.
    pub(super) async fn seek_hook(
        &self,
        offer: &Offer,
        notice: &mut Notice,
        about: &NoticeRef<'_>,
    ) -> Option<HookSearchState> {
        let node = &*offer.node;
        let (identity, instance) = (notice.identity.clone(), notice.instance.clone());
        let is_by_request =
            matches!(notice.detail, Detail::AsgTermination { .. }) && !has_agent_notice(node, &identity);
        let now = Instant::now();
        let mut state =
            HookSearchState { is_open: self.seeks(notice), is_by_request, started: now, next: now, reported: None };
        if !is_by_request {
            match offer.origin {
                Origin::Node => self.interrupter.facts.emit(&Fact::NoticeAnnotated { about: *about }),
                Origin::Ec2 if !notice.is_withdrawn() => {
                    self.interrupter.facts.emit(&Fact::NoticeListed { about: *about });
                }
                Origin::Ec2 | Origin::Plan(_) => {}
            }
            if state.is_open {
                // A search that takes longer is restarted at once, and runs while the drain does.
                let found = timeout(FIRST_SEARCH, self.search(&instance, &mut state, about)).await;
                notice.detail = found.unwrap_or(Detail::AsgTermination { sought: false });
            }
            return Some(state);
        }
        let is_same = |known: &Arc<Node>| is_reported(known, &identity) && !has_agent_notice(known, &identity);
        let is_other = |known: Option<&Arc<Node>>| (!known.is_some_and(is_same)).then_some(());
        tokio::select! {
            biased;
            () = self.interrupter.index.until_node(node, is_other) => return None,
            detail = self.search_ended(&instance, &mut state, about) => notice.detail = detail,
        }
        Some(state)
    }

    /// Waits until the search is over, and returns the notice's detail with the hook, or without one. Without a search, waits forever.
    pub(super) async fn search_ended(
        &self,
        instance: &InstanceId,
        state: &mut HookSearchState,
        about: &NoticeRef<'_>,
    ) -> Detail {
        while state.is_open {
            sleep_until(state.next).await;
            let found = self.search(instance, state, about).await;
            if !state.is_open {
                return found;
            }
        }
        pending().await
    }

    /// Whether a hook is searched for the notice.
    pub(super) fn seeks(&self, notice: &Notice) -> bool {
        let is_hint = matches!(notice.detail, Detail::AsgTermination { .. });
        is_hint && self.interrupter.policy().node_hook().is_some()
    }

    /// Waits until the Node no longer reports its notice.
    pub(super) async fn withdrawn_by_node(&self, node: &Node, notice: &Notice) {
        let is_withdrawn =
            |node: Option<&Arc<Node>>| (!node.is_some_and(|node| is_reported(node, &notice.identity))).then_some(());
        self.interrupter.index.until_node(node, is_withdrawn).await;
    }

    /// Searches once, and returns the notice's detail as far as it is known. A failure is reported once, until the search fails differently.
    async fn search(&self, instance: &InstanceId, state: &mut HookSearchState, about: &NoticeRef<'_>) -> Detail {
        let (hooks, policy) = (&self.interrupter.hooks, self.interrupter.policy());
        let without = |sought| Detail::AsgTermination { sought };
        let Some(name) = policy.node_hook() else { return without(false) };
        let found = hooks.search(name, instance).await;
        state.next = Instant::now() + SEARCH_INTERVAL;
        let is_current = state.started.elapsed() >= CURRENT_AFTER;
        match found {
            Ok(HookSearch::Found(hook)) => {
                state.is_open = false;
                self.interrupter.facts.emit(&Fact::HookFound { about: *about, group: &hook.group, hook: &hook.name });
                Detail::AsgTerminate(hook)
            }
            Ok(HookSearch::NotYet) => without(true),
            Ok(HookSearch::InService | HookSearch::Returning) if state.is_by_request || !is_current => without(true),
            // The agent reports that a group terminates the instance: an answer without a group may come from another region.
            Ok(HookSearch::NoGroup) if !is_current => without(false),
            Ok(
                shown @ (HookSearch::InService | HookSearch::Returning | HookSearch::NoGroup | HookSearch::Nowhere(_)),
            ) => {
                state.is_open = false;
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
                    self.interrupter.facts.emit(&Fact::HookNotFound { about: *about, hook: name, why });
                }
                without(false)
            }
            Err(error) => {
                let category = error.category;
                if state.reported.replace(category) != Some(category) {
                    self.interrupter.facts.emit(&Fact::HookSearchFailed { about: *about, error: &error });
                }
                without(false)
            }
        }
    }
}
