//! The agent's notice of a termination is a hint: it knows neither the lifecycle hook nor its timeout. The record of the hook's message,
//! which is about the same end, takes the place of the hint's, whichever came first.

use super::{Mark, Node, NoticeRecord};
use crate::pipeline::event::NoticeKind;
use crate::pipeline::node::names::is_from_node;
use serde_json::Value;

/// Whether a message has announced that a group terminates the Node's instance, as its record shows.
#[must_use]
pub fn is_termination_announced(node: &Node) -> bool {
    node.record.notices().any(|(_, notice)| notice.is_of(NoticeKind::AsgTerminate) && !is_from_node(&notice.message))
}

fn is_hint(notice: &NoticeRecord) -> bool {
    notice.is_of(NoticeKind::AsgTerminate) && is_from_node(&notice.message)
}

impl Mark {
    /// Whether this is the mark of a hint, and the Node has that of a hook's message.
    pub(super) fn is_needless(&self, node: &Node) -> bool {
        is_hint(&self.notice) && is_termination_announced(node)
    }

    /// Returns the id of the message that has confirmed the agent's notice, by its record or by the plan that is carried out now.
    pub(super) fn confirmed_by<'a>(&self, node: &'a Node) -> &'a str {
        let mut known = node.record.notice_and_plan(self.key).map(|known| &*known.confirmed_by);
        known.find(|message| !message.is_empty()).unwrap_or_default()
    }

    /// Has `annotations` remove the mark of a hint, if this is the mark of a hook's message. What is `written` continues in the hint's place
    /// in the wave.
    pub(super) fn adopt(&self, node: &Node, annotations: &mut Value, written: &mut NoticeRecord) {
        let adopts = self.notice.is_of(NoticeKind::AsgTerminate) && !is_hint(&self.notice);
        if let Some((name, hint)) = node.record.notices().find(|(_, notice)| adopts && is_hint(notice)) {
            annotations[name] = Value::Null;
            written.place = hint.place.or(written.place);
        }
    }
}
