//! What the interruption waits for between the drain and the hook's completion, side by side. A wait ends as met, not needed or over;
//! it never fails the drain, and never outlasts the deadline.
//!
//! ```text
//! volumes      until the volumes of the drained pods are detached
//! attachments  the watch of all attachments, for as long as somebody waits
//! ```

mod attachments;
mod volumes;

pub use attachments::Attachments;

use super::Case;
use super::step::{Finding, Waits};
use crate::fact::{Fact, Wait, WaitOutcome};
use futures_util::future::join;
use tokio::time::{Instant, sleep_until, timeout_at};

impl Case {
    /// Waits for all of it.
    pub(super) async fn wait(&self, waits: Waits) -> Finding {
        let hold_back = async {
            if let Some(until) = waits.hold_back {
                let by = until.saturating_duration_since(Instant::now());
                self.tell(&Fact::CompletionHeld { about: self.about(), by });
                sleep_until(until).await;
            }
        };
        let volumes = async {
            if let Some(until) = waits.volumes {
                self.wait_for(Wait::Volumes, until, self.volumes_detached()).await;
            }
        };
        join(hold_back, volumes).await;
        Finding::Waited
    }

    /// Waits for one thing, until its time is over, and tells how that ended.
    async fn wait_for(&self, wait: Wait, until: Instant, thing: impl Future<Output = WaitOutcome>) {
        let begun = Instant::now();
        let outcome = timeout_at(until, thing).await.unwrap_or(WaitOutcome::TimeOver);
        self.tell(&Fact::WaitEnded { about: self.about(), wait, outcome, took: begun.elapsed() });
    }
}
