//! One lifecycle action: calls about it, and what the Node of its instance records of it.

use super::{HookReply, Hooks};
use crate::clients::gate::{AwsError, Backoff, Category, Class, LAST_CALL};
use crate::fact::{Fact, Facts, HeartbeatResult, NoticeRef};
use crate::pipeline::event::{Hook, Notice, NoticeKey};
use crate::pipeline::interruption::late::may_be_over;
use crate::pipeline::node::record::NoticeRecord;
use crate::pipeline::node::{Index, Marker, Node};
use crate::runtime::clock::Clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Retry interval of denied calls about a lifecycle action: the permission may be granted later.
pub const DENIED_RETRY: Duration = Duration::from_mins(1);

/// A lifecycle action, for the calls that keep it alive.
pub struct LifecycleAction {
    /// The hook.
    pub hook: Arc<Hook>,
    /// The notice that the action waits for.
    pub notice: Arc<Notice>,
    /// The id of the notice's message.
    pub message: Arc<str>,
    /// The Node of the instance, if it is known.
    pub node: Option<Arc<Node>>,
    /// Makes the calls.
    pub hooks: Hooks,
    /// The Nodes.
    pub index: Index,
    /// Records on the Node that the hook waits.
    pub marker: Marker,
    /// Wall time.
    pub clock: Clock,
    /// Takes facts.
    pub facts: Facts,
}

impl LifecycleAction {
    /// Returns the notice, for facts.
    pub fn about(&self) -> NoticeRef<'_> {
        NoticeRef {
            kind: self.notice.kind(),
            instance: self.notice.instance.as_str(),
            node: self.node.as_ref().map(|node| &*node.name),
            message: &self.message,
        }
    }

    /// Emits a fact.
    pub fn emit(&self, fact: &Fact<'_>) {
        self.facts.emit(fact);
    }

    /// Whether the instance may have come back from the action, and its Node shows no later announcement.
    pub fn may_be_back(&self) -> bool {
        let waited = self.hooks.last_beat(&self.hook).map(|at| self.clock.timestamp_of(at));
        let is_back =
            |node: &Node| may_be_over(&self.notice, node, waited) && !node.has_notice_since_boot(self.notice.key());
        self.index.get(&self.notice.instance).is_some_and(|node| is_back(&node))
    }

    /// Sends one heartbeat. If AWS accepts it for a Node that restarted before, records on the Node that the hook still waits.
    ///
    /// # Errors
    /// When AWS did not accept it, unless the action is over.
    pub async fn beat(&self, by: Instant) -> Result<HookReply, AwsError> {
        let key = self.notice.key();
        let restarted = self.node.as_ref().and_then(|node| restarted(&self.index, node, key));
        let reply = self.hooks.beat(&self.hook, self.notice.instance.as_str(), by).await?;
        if let Some(node) = restarted.filter(|_| reply == HookReply::Done) {
            let by = (Class::List, Instant::now() + LAST_CALL);
            // If the write fails, the next heartbeat repeats it.
            let waits = |known: &NoticeRecord, current: &Node| {
                let waited = known.has_hook() && known.boot.is_before(&node.boot) && current.boot == node.boot;
                waited.then(|| known.in_boot(&node.boot))
            };
            let _ = self.marker.revise(&node, key, by, waits).await;
        }
        Ok(reply)
    }

    /// Sends heartbeats to find out whether the action waits or is over. `None` without an answer in time.
    pub async fn ask(&self, mut backoff: Backoff, by: Instant) -> Option<HookReply> {
        loop {
            let error = match self.beat(by).await {
                Ok(reply) => return Some(reply),
                Err(error) => error,
            };
            let (about, result) = (self.about(), HeartbeatResult::Failed(error.category));
            self.emit(&Fact::Heartbeat { about, result, error: Some(&error) });
            let wait = if error.category == Category::Denied { DENIED_RETRY } else { backoff.step() };
            match error.category {
                Category::Invalid | Category::NotFound => return None,
                _ if Instant::now() + wait >= by => return None,
                _ => sleep(wait).await,
            }
        }
    }
}

/// Returns the Node as it is now, if it has restarted since the notice's mark and its instance can return. Whether it has returned is not
/// known yet.
pub fn restarted(index: &Index, node: &Node, key: NoticeKey) -> Option<Arc<Node>> {
    index.newest(node).filter(|known| known.may_be_back(key))
}
