//! What a Node says that its instance has been told: an annotation for each kind, which the agent on the node writes from the instance's
//! metadata, and takes back. Pure.
//!
//! Whoever may patch a Node may write them, so they are read as strictly as messages. A Node that says something is the claim of its
//! notice: it is acted on until the Node notes that it needs nothing any more, or until the annotation is gone.

pub use super::handled::NodeNotice;
pub use crate::fact::AgentNoticeKind;

use super::Node;
use super::condition::ConditionRule;
use super::conditions;
use super::confirmation::are_same;
use super::handled::{Standing, has_notes, is_handled, standing};
use super::mark::{is_told_to_terminate, name_of};
use super::names::{FROM_NODE, SAYS_PREFIX, is_from_node};
use super::record::{NoticeRecord, whole_seconds};
use super::release::NodeRelease;
use super::replacement::is_replaced;
use crate::pipeline::event::{Detail, Identity, InstanceAction, InstanceId, Notice, NoticeKind, NoticeTime};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of an annotation's value in bytes.
const MAX_LENGTH: usize = 1024;

/// Maximum length of a word or an id in bytes.
const MAX_WORD: usize = 128;

/// Time between EC2's warning of an interruption and the time that the metadata name for it.
const WARNING: Duration = Duration::from_mins(2);

/// Interval in which the agent says it again for as long as it is announced: somebody may have removed it, or the Node. Recommendations
/// and changes are announced for days, on many nodes.
pub const AGENT_REPEAT: Duration = Duration::from_mins(10);

/// Time after which the agent has told a Node that has registered again all that is announced, also if some of its calls fail.
const SAID_AFTER: Duration = AGENT_REPEAT.saturating_add(Duration::from_mins(2));

/// Time after the end that the metadata named for a spot instance, after which nothing is done for what its Node says: the instance was
/// kept, and its agent is gone.
const STALE_AFTER: Duration = Duration::from_mins(15);

impl AgentNoticeKind {
    /// Returns the annotation's name.
    #[must_use]
    pub fn annotation(self) -> String {
        format!("{SAYS_PREFIX}{self}")
    }

    /// Returns the kind of the notice.
    #[must_use]
    pub const fn notice(self) -> NoticeKind {
        match self {
            Self::Spot => NoticeKind::Spot,
            Self::Rebalance => NoticeKind::Rebalance,
            Self::Maintenance => NoticeKind::ScheduledChange,
            Self::Termination => NoticeKind::AsgTerminate,
        }
    }
}

/// The value of an annotation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AgentNotice {
    /// What happens: EC2's action on a spot instance, the code of a scheduled change; else a word for people.
    pub what: String,
    /// When it happens; for a rebalance recommendation, when it was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<Timestamp>,
    /// What EC2 calls it, if it has an id.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub id: String,
}

/// Why what a Node says is no notice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSaying {
    /// The annotation's name names no kind.
    #[error("it names none of the kinds {}", AgentNoticeKind::ALL.map(AgentNoticeKind::as_str).join(", "))]
    Unknown,
    /// The value is longer than the agent writes.
    #[error("{0} bytes, and at most {MAX_LENGTH} are read")]
    TooLong(usize),
    /// The value is not of the form that the agent writes.
    #[error("{0}")]
    Malformed(String),
    /// A field has an impossible value, or none.
    #[error("its field {0} is missing or impossible")]
    Field(&'static str),
    /// The time has long passed.
    #[error("its time has passed for more than {} minutes, and the node is still here", STALE_AFTER.as_secs() / 60)]
    Stale,
}

impl AgentNotice {
    /// Reads the value of an annotation of this kind: several, in a list, if there are several changes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(kind: AgentNoticeKind, text: &str) -> Result<Vec<Self>, BadSaying> {
        if text.len() > MAX_LENGTH {
            return Err(BadSaying::TooLong(text.len()));
        }
        let said = match kind {
            AgentNoticeKind::Maintenance if text.starts_with('[') => serde_json::from_str(text),
            _ => serde_json::from_str(text).map(|one| vec![one]),
        };
        // The reader's own words: they name the place, and repeat at most a field's name.
        let said: Vec<Self> = said.map_err(|error| BadSaying::Malformed(clipped(&error)))?;
        said.into_iter().map(|said| said.checked(kind)).collect()
    }

    /// Returns what is said, if a Node may say it.
    ///
    /// # Errors
    /// As [`AgentNotice::parse`].
    pub fn checked(self, kind: AgentNoticeKind) -> Result<Self, BadSaying> {
        let is_word = |text: &str| {
            text.len() <= MAX_WORD && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let is_action = matches!(&*self.what, "terminate" | "stop" | "hibernate");
        if self.what.is_empty() || !is_word(&self.what) || kind == AgentNoticeKind::Spot && !is_action {
            return Err(BadSaying::Field("what"));
        }
        if !is_word(&self.id) || self.id.is_empty() == (kind == AgentNoticeKind::Maintenance) {
            return Err(BadSaying::Field("id"));
        }
        if self.at.is_none() && kind != AgentNoticeKind::Termination {
            return Err(BadSaying::Field("at"));
        }
        Ok(self)
    }

    /// Whether this is what `other` says, told again: at most its time has moved a little.
    #[must_use]
    pub fn repeats(&self, other: &Self) -> bool {
        let is_near = match (self.at, other.at) {
            (Some(at), Some(other)) => are_same(at, other),
            (at, other) => at == other,
        };
        self.what == other.what && self.id == other.id && is_near
    }

    /// Returns the value of the annotation that says all of it, without the last ones if it would be too long.
    #[must_use]
    pub fn text(mut all: &[Self]) -> String {
        loop {
            let text = match all {
                [one] => super::record::text(one),
                all => super::record::text(&all),
            };
            match all {
                [first @ .., _] if text.len() > MAX_LENGTH => all = first,
                _ => return text,
            }
        }
    }

    /// Returns the notice for this instance. `now` bounds the notice's time: a notice is never later than the annotation that gives it,
    /// whatever clock wrote it.
    ///
    /// # Errors
    /// When its time has long passed.
    fn notice(&self, kind: AgentNoticeKind, instance: &InstanceId, now: Timestamp) -> Result<NodeNotice, BadSaying> {
        let said = |detail, at: Option<Timestamp>| {
            let (kind, instance) = (kind.notice(), instance.clone());
            let identity = Identity::Agent { kind, at: self.at.filter(|_| at.is_some()), instance: instance.clone() };
            let time = at.map_or(NoticeTime::Seen(now), |at| NoticeTime::Announced(at.min(now)));
            Notice::new(identity, instance, time, detail)
        };
        let notice = match kind {
            AgentNoticeKind::Spot => {
                let ends = self.at.ok_or(BadSaying::Field("at"))?;
                if now.duration_since(ends) > STALE_AFTER.try_into().unwrap_or_default() {
                    return Err(BadSaying::Stale);
                }
                let action = match &*self.what {
                    "hibernate" => InstanceAction::Hibernate,
                    "stop" => InstanceAction::Stop,
                    _ => InstanceAction::Terminate,
                };
                said(Detail::Spot { action }, ends.checked_sub(WARNING).ok())
            }
            AgentNoticeKind::Rebalance => said(Detail::Rebalance, self.at),
            // Without a time: the agent that starts again can't know when its group decided.
            AgentNoticeKind::Termination => said(Detail::AsgTermination { sought: false }, None),
            AgentNoticeKind::Maintenance => {
                Notice::listed((&self.id, &self.what), instance.clone(), self.at, false, now)
            }
        };
        let by = match &notice.identity {
            Identity::Agent { at: Some(at), .. } => at.to_string(),
            _ => self.id.clone(),
        };
        Ok(NodeNotice { notice, message: in_place_of_message(kind.as_str(), &by) })
    }
}

/// Returns what the reader of JSON says, on one short line.
fn clipped(error: &serde_json::Error) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    error.to_string().chars().take(120).map(printable).collect()
}

/// Returns what the Node says, by the annotation's name: the notices, and what is none.
pub fn said(node: &Node, now: Timestamp) -> impl Iterator<Item = (&String, Result<NodeNotice, BadSaying>)> {
    node.sayings().flat_map(move |(name, text)| {
        let kind = kind_named(kind_in(name)).ok_or(BadSaying::Unknown);
        let notices = match kind.and_then(|kind| Ok((kind, AgentNotice::parse(kind, text)?))) {
            Ok((kind, all)) => {
                all.iter().map(|said| Ok(dated(node, said.notice(kind, &node.instance, now)?))).collect()
            }
            Err(error) => vec![Err(error)],
        };
        notices.into_iter().map(move |notice| (name, notice))
    })
}

/// Returns the notice of a change with the time of the mark that it has left: a message that calls the change off after that is newer,
/// whichever replica goes on with the drain.
fn dated(node: &Node, mut said: NodeNotice) -> NodeNotice {
    if let Some(start) = said.notice.start().map(whole_seconds) {
        let mark = node.record.notice(said.notice.key()).filter(|mark| mark.start == Some(start));
        if let Some(since) = mark.and_then(|mark| mark.since) {
            said.notice.time = said.notice.time.not_after(since);
        }
    }
    said
}

/// Returns the word for the kind in the name of an annotation.
fn kind_in(annotation: &str) -> &str {
    annotation.strip_prefix(SAYS_PREFIX).unwrap_or_default()
}

fn kind_named(word: &str) -> Option<AgentNoticeKind> {
    AgentNoticeKind::ALL.into_iter().find(|kind| kind.as_str() == word)
}

/// Returns what a mark has in place of a message.
fn in_place_of_message(kind: &str, by: &str) -> String {
    format!("{FROM_NODE}{kind}/{by}")
}

/// Whether the Node says something else than it did `before`, if it was known then, or has other conditions.
pub(super) fn differs(before: Option<&Node>, after: &Node) -> bool {
    let names = |node: &'_ Node| node.conditions.iter().map(|condition| condition.name.clone()).collect::<Vec<_>>();
    match before {
        Some(before) => !before.sayings().eq(after.sayings()) || names(before) != names(after),
        None => after.sayings().next().is_some() || !after.conditions.is_empty(),
    }
}

impl Node {
    /// Returns the annotations in which the Node says something.
    fn sayings(&self) -> impl Iterator<Item = (&String, &String)> {
        self.record.with_prefix(SAYS_PREFIX)
    }

    /// Whether the Node says something or has a condition, or carries something of a notice that it gave.
    #[must_use]
    pub fn gives_notices(&self) -> bool {
        let is_carrying = || from_node(self).next().is_some() || has_notes(self);
        !self.conditions.is_empty() || self.sayings().next().is_some() || is_carrying()
    }
}

/// Returns the ids that stand for a message in the marks and plans on the Node whose notice only the Node's agent has reported.
fn from_node(node: &Node) -> impl Iterator<Item = String> {
    let marks = node.record.notices().filter(|(_, mark)| mark.is_only_reported()).map(|(_, mark)| &mark.message);
    let plans = node.record.plans().filter(|plan| plan.is_only_reported()).map(|plan| &plan.message);
    marks.chain(plans).cloned()
}

/// Returns what marks have in place of a message that are on a Node which has registered again in the middle of a drain, and to which the
/// agent has not spoken yet: its notices are older than the Node.
fn said_before(node: &Node, now: Timestamp) -> impl Iterator<Item = String> {
    let created =
        node.created.filter(|created| now.duration_since(*created) < SAID_AFTER.try_into().unwrap_or_default());
    // Conditions are of the Node itself.
    let is_older =
        move |mark: &NoticeRecord| mark.since < created && !mark.message.starts_with(&conditions::message(""));
    node.record.notices().filter(move |(_, mark)| is_older(mark)).map(|(_, mark)| mark.message.clone())
}

/// Returns the withdrawals of what neither the Node nor the `others` of its instance say any longer, and the Node still carries
/// something of. A saying that can't be read withdraws nothing: an agent of another version may have written it. `rules` are those of
/// conditions: what a condition had done to a Node that its group was asked to replace is not undone, because that Node goes.
#[must_use]
pub fn taken_back(node: &Node, others: &[Arc<Node>], rules: &[ConditionRule], now: Timestamp) -> Vec<NodeNotice> {
    let (mut messages, mut unreadable) = (BTreeSet::new(), Vec::new());
    // What is stale is still said. One that a renamed kubelet has left has no agent any more.
    let speaking = others.iter().map(|other| &**other).filter(|other| other.ready).chain([node]);
    let all = speaking.flat_map(|node| said(node, Timestamp::MIN));
    for (name, notice) in all {
        match notice {
            Ok(notice) => drop(messages.insert(notice.message)),
            Err(_) => unreadable.push(in_place_of_message(kind_in(name), "")),
        }
    }
    let nodes = others.iter().map(|other| &**other).chain([node]);
    let current = nodes.max_by_key(|node| (node.ready, node.ready_since)).unwrap_or(node);
    messages.extend(current.conditions.iter().map(|condition| conditions::message(&condition.name)));
    messages.extend(said_before(node, now));
    if is_replaced(node, now) {
        unreadable.push(conditions::message(""));
    }
    let is_said =
        |message: &String| messages.contains(message) || unreadable.iter().any(|kind| message.starts_with(kind));
    let termination = termination(node);
    let noted = is_handled(node, &termination.notice).then(|| termination.message.clone());
    let is_noted = |notice: &NodeNotice| is_handled(node, &notice.notice);
    let of_rules =
        rules.iter().filter(|_| has_notes(node)).map(|rule| conditions::gone(&rule.name, &node.instance, now));
    let noted = noted.into_iter().chain(of_rules.filter(is_noted).map(|notice| notice.message));
    let gone: BTreeSet<String> = from_node(node).chain(noted).filter(|message| !is_said(message)).collect();
    gone.into_iter().filter_map(|message| withdrawal(node, message, now)).collect()
}

fn termination(node: &Node) -> NodeNotice {
    let (kind, instance) = (NoticeKind::AsgTerminate, node.instance.clone());
    let identity = Identity::Agent { kind, at: None, instance: instance.clone() };
    let notice =
        Notice::new(identity, instance, NoticeTime::Seen(Timestamp::MIN), Detail::AsgTermination { sought: false });
    NodeNotice { notice, message: in_place_of_message(AgentNoticeKind::Termination.as_str(), "") }
}

/// Returns the withdrawal of the notice whose mark has this in place of a message.
fn withdrawal(node: &Node, message: String, now: Timestamp) -> Option<NodeNotice> {
    let (kind, by) = message.strip_prefix(FROM_NODE)?.split_once('/')?;
    if kind == conditions::CONDITION {
        return Some(conditions::gone(by, &node.instance, now));
    }
    let kind = kind_named(kind)?;
    let instance = node.instance.clone();
    let said = |at| Identity::Agent { kind: kind.notice(), at, instance: instance.clone() };
    let identity = match kind {
        AgentNoticeKind::Maintenance => Identity::Ec2Event { id: by.to_owned(), instance: instance.clone() },
        AgentNoticeKind::Termination => said(None),
        AgentNoticeKind::Spot | AgentNoticeKind::Rebalance => said(Some(by.parse().ok()?)),
    };
    let notice = Notice::new(identity, instance, NoticeTime::Seen(now), Detail::TakenBack(kind.notice()));
    Some(NodeNotice { notice, message })
}

/// Returns the marks that the withdrawal of the notice with this identity removes: those that the Node's word has left, unless the Node
/// says it again. No clock decides, because the Node's, that of the replica that left them and ours may differ.
#[must_use]
pub fn taken_back_marks(node: &Node, identity: &Identity) -> Option<NodeRelease> {
    NodeRelease::of_taken_back(node, identity.key()).filter(|_| !says(node, identity))
}

/// Whether the Node says the notice with this identity.
#[must_use]
pub fn says(node: &Node, identity: &Identity) -> bool {
    let mut said = said(node, Timestamp::MIN).filter_map(|(_, said)| said.ok());
    said.any(|said| said.notice.identity == *identity)
}

/// Returns how the Node stands to a notice that it gives.
#[must_use]
pub fn standing_of(node: &Node, NodeNotice { notice, message }: &NodeNotice) -> Standing {
    if notice.is_withdrawn() {
        return Standing::Open;
    }
    let is_condition = matches!(notice.identity, Identity::Condition { .. });
    if !is_condition && !matches!(notice.identity, Identity::Agent { .. }) {
        return standing(node, notice, Some(message));
    }
    if is_handled(node, notice) {
        return Standing::Settled;
    }
    if is_condition {
        return Standing::Open;
    }
    let own = name_of(notice.key());
    let is_same = |since: Option<Timestamp>| since.is_some_and(|since| are_same(since, notice.at()));
    let mut others = node.record.notices().filter(|(name, mark)| **name != own && mark.is_of(notice.kind()));
    let told = match notice.detail {
        Detail::AsgTermination { .. } => is_told_to_terminate(node),
        _ => others.any(|(_, mark)| !is_from_node(&mark.message) && is_same(mark.since)),
    };
    if told { Standing::Told } else { Standing::Open }
}

/// Returns the notice that the Node gives, if it is the same as that of an event, which has no id in common with the metadata. `None`
/// also if the event's own mark is on the Node: then the Node's notice is left to the message, which goes on with its work.
#[must_use]
pub fn same_as(node: &Node, notice: &Notice, now: Timestamp) -> Option<Notice> {
    let Identity::Event { .. } = &notice.identity else { return None };
    if node.record.notice(notice.key()).is_some() {
        return None;
    }
    let mut said = said(node, now).filter_map(|(_, said)| said.ok()).map(|said| said.notice);
    said.find(|said| said.kind() == notice.kind() && are_same(said.at(), notice.at()))
}

#[cfg(test)]
mod tests;
