//! What an interruption shares with the messages that brought its notice, and with the heartbeat of its hook.

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
    /// The visibility timeout that the interruption wants for the messages.
    pub visibility_timeout: watch::Sender<Duration>,
    /// Whether a Node of this cluster has given the notice: then the instance is ours, also when that Node is gone.
    pub by_node: AtomicBool,
    /// Whether a message came from the hook itself, whatever the other copies say: that settles whose an instance is that other clusters'
    /// could be.
    pub direct: AtomicBool,
    /// Whether a message has brought it: then no Node takes it back.
    pub told: AtomicBool,
    /// Whether AWS has accepted a heartbeat for a hook of which no message has told, or only an old one. That proves that the instance
    /// waits at it.
    pub(super) proven: AtomicBool,
    /// Whether such a hook is being completed: what AWS says of it from now on may be our own doing.
    pub(super) completes: AtomicBool,
}

impl MessageLink {
    /// The link with the usual visibility timeout.
    #[must_use]
    pub fn new(notice: Arc<Notice>, visibility_timeout: Duration) -> Self {
        Self {
            notice: watch::Sender::new(notice),
            visibility_timeout: watch::Sender::new(visibility_timeout),
            by_node: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            told: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            completes: AtomicBool::new(false),
        }
    }

    /// Passes on a copy that revises the notice: the interruption begins again with it.
    pub fn revise(&self, copy: &Arc<Notice>) {
        self.notice.send_if_modified(|known| {
            let is_told = || self.told.load(Ordering::Acquire);
            let newer = copy.revises(known) && !(matches!(copy.detail, Detail::TakenBack(_)) && is_told());
            if newer {
                known.clone_from(copy);
            }
            newer
        });
    }

    /// Has the interruption of a termination begin again without the hook, at which the instance does not wait.
    pub(super) fn disown_hook(&self) {
        self.notice.send_if_modified(|known| {
            let has_hook = matches!(known.detail, Detail::AsgTerminate(_));
            if has_hook {
                let detail = Detail::AsgTermination { sought: false };
                *known = Arc::new(known.revised(known.time, detail));
            }
            has_hook
        });
    }
}
