//! What a Node says of its termination is a hint: it knows neither the lifecycle hook nor its timeout. The mark of the hook's message,
//! which is about the same end, takes the place of the hint's, whichever came first.

use super::{Mark, NOTICE_PREFIX, Node, NoticeAnnotation, PLAN_PREFIX, notices, read};
use crate::pipeline::event::NoticeKind;
use crate::pipeline::node::names::is_from_node;
use serde_json::Value;

/// Whether a message has told that a group terminates the Node's instance, as its mark says.
#[must_use]
pub fn is_told_to_terminate(node: &Node) -> bool {
    notices(node).any(|(_, mark)| is_termination(&mark) && !is_from_node(&mark.message))
}

fn is_termination(mark: &NoticeAnnotation) -> bool {
    mark.kind == NoticeKind::AsgTerminate.as_str()
}

fn is_hint(mark: &NoticeAnnotation) -> bool {
    is_termination(mark) && is_from_node(&mark.message)
}

impl Mark {
    /// Whether this is the mark of a hint, and the Node has that of a hook's message.
    pub(super) fn is_needless(&self, node: &Node) -> bool {
        is_hint(&self.notice) && is_told_to_terminate(node)
    }

    /// Returns the message that has told what the Node had said before, by the mark that was `known`, or by the plan that is carried out now.
    pub(super) fn told(&self, node: &Node, known: Option<NoticeAnnotation>) -> String {
        let plan = node.annotations.get(&self.key.replacen(NOTICE_PREFIX, PLAN_PREFIX, 1)).map(|plan| read(plan));
        let mut told = known.into_iter().chain(plan).map(|mark| mark.told);
        told.find(|message| !message.is_empty()).unwrap_or_default()
    }

    /// Has `annotations` remove the mark of a hint, if this is the mark of a hook's message. What is `written` goes on where the hint has
    /// come to, in the same place of a wave.
    pub(super) fn adopt(&self, node: &Node, annotations: &mut Value, written: &mut NoticeAnnotation) {
        let adopts = is_termination(&self.notice) && !is_hint(&self.notice);
        if let Some((name, hint)) = notices(node).find(|(_, mark)| adopts && is_hint(mark)) {
            annotations[name] = Value::Null;
            if !hint.wave.is_empty() {
                written.wave = hint.wave;
            }
        }
    }
}
