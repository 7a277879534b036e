//! State that an interruption shares with the messages that brought its notice.

use crate::pipeline::event::{Detail, Notice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The link between an interruption and the messages that brought its notice.
#[derive(Debug)]
pub struct MessageLink {
    /// The notice, by its newest copy.
    pub notice: watch::Sender<Arc<Notice>>,
    /// The visibility timeout that the interruption needs for the messages.
    pub visibility_timeout: watch::Sender<Duration>,
    /// Whether the work has failed and pauses until its next try. A message whose claim is lost leaves it then.
    pub pauses: watch::Sender<bool>,
    /// Whether a Node of this cluster reported the notice: then the instance is ours, even when that Node is gone.
    pub by_node: AtomicBool,
    /// Whether a message came from the hook itself. That decides the owner of an instance that could be another cluster's.
    pub direct: AtomicBool,
    /// Whether a message announced the notice: then the Node's agent can't withdraw it.
    pub confirmed: AtomicBool,
}

impl MessageLink {
    /// The link with the usual visibility timeout.
    #[must_use]
    pub fn new(notice: Arc<Notice>, visibility_timeout: Duration) -> Self {
        Self {
            notice: watch::Sender::new(notice),
            visibility_timeout: watch::Sender::new(visibility_timeout),
            pauses: watch::Sender::new(false),
            by_node: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            confirmed: AtomicBool::new(false),
        }
    }

    /// Passes on a copy that revises the notice: the interruption restarts with it.
    pub fn revise(&self, copy: &Arc<Notice>) {
        self.notice.send_if_modified(|known| {
            let is_confirmed = || self.confirmed.load(Ordering::Acquire);
            let newer = copy.revises(known) && !(matches!(copy.detail, Detail::TakenBack(_)) && is_confirmed());
            if newer {
                known.clone_from(copy);
            }
            newer
        });
    }
}
