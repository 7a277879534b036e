//! Agent notices: one annotation for each kind, which the agent on the node writes from the instance's metadata, and withdraws. Pure.
//!
//! An attacker who can patch a Node can write them, so they are parsed as strictly as messages. The annotation is the claim of its notice:
//! Ebbtide acts on the notice until the Node records that it needs nothing more, or until the annotation is gone.

pub use super::handled::NodeNotice;
pub use crate::fact::AgentNoticeKind;

use super::Node;
use super::conditions;
use super::confirmation::are_same;
use super::handled::{Standing, is_handled, standing};
use super::names::{AGENT_PREFIX, FROM_NODE, is_from_node};
use super::record::{NoticeRecord, Withdrawal, whole_seconds};
use super::release::NodeRelease;
use super::replacement::{is_asked, is_replaced};
use crate::pipeline::event::{Detail, Identity, InstanceAction, InstanceId, Notice, NoticeKind, NoticeTime};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of an annotation's value in bytes.
const MAX_LENGTH: usize = 1024;

/// Maximum length of a field in bytes.
const MAX_WORD: usize = 128;

/// Time between EC2's warning of a spot interruption and the time that the metadata give for the interruption.
const WARNING: Duration = Duration::from_mins(2);

/// Interval between the agent's writes of a notice that is still announced: a user may have removed the annotation, or the Node.
/// Recommendations and changes are announced for days, on many nodes.
pub const AGENT_REPEAT: Duration = Duration::from_mins(10);

/// Maximum time until the agent has written all announced notices on a Node that has registered again, even if some of its calls fail.
const REPORTED_AFTER: Duration = AGENT_REPEAT.saturating_add(Duration::from_mins(2));

/// Time from the announced end of a spot instance until its agent notice is stale: the instance was kept, and its agent is gone.
const STALE_AFTER: Duration = Duration::from_mins(15);

impl AgentNoticeKind {
    /// Returns the annotation's name.
    #[must_use]
    pub fn annotation(self) -> String {
        format!("{AGENT_PREFIX}{self}")
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
    /// When it happens; for a rebalance recommendation, when EC2 made it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<Timestamp>,
    /// EC2's id, if it has one.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub id: String,
}

/// Why an annotation is not a valid agent notice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAgentNotice {
    /// The annotation's name has no known kind.
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
    /// Parses the value of an annotation of this kind. Several changes are a list.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(kind: AgentNoticeKind, text: &str) -> Result<Vec<Self>, InvalidAgentNotice> {
        if text.len() > MAX_LENGTH {
            return Err(InvalidAgentNotice::TooLong(text.len()));
        }
        let notices = match kind {
            AgentNoticeKind::Maintenance if text.starts_with('[') => serde_json::from_str(text),
            _ => serde_json::from_str(text).map(|one| vec![one]),
        };
        // The parser's message gives the position, and repeats at most a field's name.
        let notices: Vec<Self> = notices.map_err(|error| InvalidAgentNotice::Malformed(clipped(&error)))?;
        notices.into_iter().map(|notice| notice.checked(kind)).collect()
    }

    /// Returns the notice, if its fields are valid for this kind.
    ///
    /// # Errors
    /// As [`AgentNotice::parse`].
    pub fn checked(self, kind: AgentNoticeKind) -> Result<Self, InvalidAgentNotice> {
        let is_word = |text: &str| {
            text.len() <= MAX_WORD && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let is_action = matches!(&*self.what, "terminate" | "stop" | "hibernate");
        if self.what.is_empty() || !is_word(&self.what) || kind == AgentNoticeKind::Spot && !is_action {
            return Err(InvalidAgentNotice::Field("what"));
        }
        if !is_word(&self.id) || self.id.is_empty() == (kind == AgentNoticeKind::Maintenance) {
            return Err(InvalidAgentNotice::Field("id"));
        }
        if self.at.is_none() && kind != AgentNoticeKind::Termination {
            return Err(InvalidAgentNotice::Field("at"));
        }
        Ok(self)
    }

    /// Whether this repeats `other`: only its time may differ a little.
    #[must_use]
    pub fn repeats(&self, other: &Self) -> bool {
        let is_near = match (self.at, other.at) {
            (Some(at), Some(other)) => are_same(at, other),
            (at, other) => at == other,
        };
        self.what == other.what && self.id == other.id && is_near
    }

    /// Returns the value of the annotation for all these notices, without the last ones if it would be too long.
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

    /// Returns the notice for this instance. `now` bounds the notice's time: a notice is never later than its annotation, whatever clock
    /// wrote it.
    ///
    /// # Errors
    /// If its time has long passed.
    fn notice(
        &self,
        kind: AgentNoticeKind,
        instance: &InstanceId,
        now: Timestamp,
    ) -> Result<NodeNotice, InvalidAgentNotice> {
        let reported = |detail, at: Option<Timestamp>| {
            let (kind, instance) = (kind.notice(), instance.clone());
            let identity = Identity::Agent { kind, at: self.at.filter(|_| at.is_some()), instance: instance.clone() };
            let time = at.map_or(NoticeTime::Seen(now), |at| NoticeTime::Announced(at.min(now)));
            Notice::new(identity, instance, time, detail)
        };
        let notice = match kind {
            AgentNoticeKind::Spot => {
                let ends = self.at.ok_or(InvalidAgentNotice::Field("at"))?;
                if now.duration_since(ends) > STALE_AFTER.try_into().unwrap_or_default() {
                    return Err(InvalidAgentNotice::Stale);
                }
                let action = match &*self.what {
                    "hibernate" => InstanceAction::Hibernate,
                    "stop" => InstanceAction::Stop,
                    _ => InstanceAction::Terminate,
                };
                reported(Detail::Spot { action }, ends.checked_sub(WARNING).ok())
            }
            AgentNoticeKind::Rebalance => reported(Detail::Rebalance, self.at),
            // Without a time: an agent that restarts can't know when the group decided.
            AgentNoticeKind::Termination => reported(Detail::AsgTermination { sought: false }, None),
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

/// Returns the JSON parser's message, on one short line.
fn clipped(error: &serde_json::Error) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    error.to_string().chars().take(120).map(printable).collect()
}

/// Returns the Node's agent notices, and the errors of invalid ones, each with the annotation's name.
pub fn notices_of(
    node: &Node,
    now: Timestamp,
) -> impl Iterator<Item = (&String, Result<NodeNotice, InvalidAgentNotice>)> {
    node.agent_annotations().flat_map(move |(name, text)| {
        let kind = kind_named(kind_in(name)).ok_or(InvalidAgentNotice::Unknown);
        let notices = match kind.and_then(|kind| Ok((kind, AgentNotice::parse(kind, text)?))) {
            Ok((kind, all)) => all.iter().map(|one| Ok(dated(node, one.notice(kind, &node.instance, now)?))).collect(),
            Err(error) => vec![Err(error)],
        };
        notices.into_iter().map(move |notice| (name, notice))
    })
}

/// Returns the notice of a change with the time of its mark on the Node: a message that cancels the change after that is newer, whichever
/// replica continues the drain.
fn dated(node: &Node, mut reported: NodeNotice) -> NodeNotice {
    if let Some(start) = reported.notice.start().map(whole_seconds) {
        let mark = node.record.notice(reported.notice.key()).filter(|mark| mark.start == Some(start));
        if let Some(since) = mark.and_then(|mark| mark.since) {
            reported.notice.time = reported.notice.time.not_after(since);
        }
    }
    reported
}

/// Returns the kind in the name of an annotation.
fn kind_in(annotation: &str) -> &str {
    annotation.strip_prefix(AGENT_PREFIX).unwrap_or_default()
}

fn kind_named(word: &str) -> Option<AgentNoticeKind> {
    AgentNoticeKind::ALL.into_iter().find(|kind| kind.as_str() == word)
}

/// Returns the id that stands for a message in a mark.
fn in_place_of_message(kind: &str, by: &str) -> String {
    format!("{FROM_NODE}{kind}/{by}")
}

/// Whether the Node's agent notices, its conditions or the note of its replacement differ from those `before`, if it was known then.
pub(super) fn differs(before: Option<&Node>, after: &Node) -> bool {
    let names = |node: &'_ Node| node.conditions.iter().map(|condition| condition.name.clone()).collect::<Vec<_>>();
    match before {
        Some(before) => {
            !before.agent_annotations().eq(after.agent_annotations())
                || names(before) != names(after)
                || is_asked(before) != is_asked(after)
        }
        None => after.agent_annotations().next().is_some() || !after.conditions.is_empty() || is_asked(after),
    }
}

impl Node {
    /// Returns the annotations that the agent writes.
    fn agent_annotations(&self) -> impl Iterator<Item = (&String, &String)> {
        self.record.with_prefix(AGENT_PREFIX)
    }

    /// Whether the Node has agent notices, conditions or the note of its replacement, or still records a notice of one of them.
    #[must_use]
    pub fn gives_notices(&self) -> bool {
        !self.conditions.is_empty()
            || self.agent_annotations().next().is_some()
            || is_asked(self)
            || from_node(self).next().is_some()
    }
}

/// Returns the ids that stand for a message in the records of notices that only the Node has reported, or has reported after others.
fn from_node(node: &Node) -> impl Iterator<Item = String> {
    let of = |record: &NoticeRecord| {
        let first = Some(&record.message).filter(|_| record.is_only_reported()).cloned();
        let later = record.also.iter().map(|(_, by)| by.to_owned()).filter(|by| is_from_node(by));
        first.into_iter().chain(later).collect::<Vec<_>>()
    };
    node.record.all().flat_map(move |(_, record)| of(record))
}

/// Returns the ids that stand for a message in marks that are older than the Node: it has registered again in the middle of a drain, and
/// the agent may not have written its notices again yet.
fn of_earlier_registration(node: &Node, now: Timestamp) -> impl Iterator<Item = String> {
    let created =
        node.created.filter(|created| now.duration_since(*created) < REPORTED_AFTER.try_into().unwrap_or_default());
    // Conditions belong to the Node itself.
    let is_older =
        move |mark: &NoticeRecord| mark.since < created && !mark.message.starts_with(&conditions::message(""));
    node.record.all().filter(move |(_, mark)| is_older(mark)).map(|(_, mark)| mark.message.clone())
}

/// Returns the withdrawals of the notices that the Node still records, but that neither the Node nor the `others` of its instance report
/// any longer. An annotation that can't be parsed withdraws nothing: an agent of another version may have written it. `rules` are those of
/// conditions: the work for a condition is not undone on a Node that its group replaces, because that Node is terminated.
#[must_use]
pub fn taken_back(node: &Node, others: &[Arc<Node>], now: Timestamp) -> Vec<NodeNotice> {
    let (mut messages, mut unreadable) = (BTreeSet::new(), Vec::new());
    // A stale notice is still reported. A Node that a renamed kubelet has left no longer has an agent.
    let with_agents = others.iter().map(|other| &**other).filter(|other| other.ready).chain([node]);
    let all = with_agents.flat_map(|node| notices_of(node, Timestamp::MIN));
    for (name, notice) in all {
        match notice {
            Ok(notice) => drop(messages.insert(notice.message)),
            Err(_) => unreadable.push(in_place_of_message(kind_in(name), "")),
        }
    }
    let nodes = others.iter().map(|other| &**other).chain([node]);
    let current = nodes.max_by_key(|node| (node.ready, node.ready_since)).unwrap_or(node);
    messages.extend(current.conditions.iter().map(|condition| conditions::message(&condition.name)));
    messages.extend(of_earlier_registration(node, now));
    messages.extend(terminated_by_request(node, now).map(|notice| notice.message));
    if is_replaced(node, now) {
        unreadable.push(conditions::message(""));
    }
    let is_kept =
        |message: &String| messages.contains(message) || unreadable.iter().any(|kind| message.starts_with(kind));
    let gone: BTreeSet<String> = from_node(node).filter(|message| !is_kept(message)).collect();
    gone.into_iter().filter_map(|message| withdrawal(node, message, now)).collect()
}

/// Returns the notice of the termination that follows when the Node's group was asked to replace it. The agent of an unhealthy node may be
/// silent; if it reports the termination, that is the same notice.
#[must_use]
pub fn terminated_by_request(node: &Node, now: Timestamp) -> Option<NodeNotice> {
    let NodeNotice { mut notice, message } = is_asked(node).then(|| termination(node))?;
    notice.time = NoticeTime::Seen(now);
    Some(NodeNotice { notice, message })
}

fn termination(node: &Node) -> NodeNotice {
    let (kind, instance) = (NoticeKind::AsgTerminate, node.instance.clone());
    let identity = Identity::Agent { kind, at: None, instance: instance.clone() };
    let notice =
        Notice::new(identity, instance, NoticeTime::Seen(Timestamp::MIN), Detail::AsgTermination { sought: false });
    NodeNotice { notice, message: in_place_of_message(AgentNoticeKind::Termination.as_str(), "") }
}

/// Returns the withdrawal of the notice whose mark has this id in place of a message.
fn withdrawal(node: &Node, message: String, now: Timestamp) -> Option<NodeNotice> {
    let (kind, by) = message.strip_prefix(FROM_NODE)?.split_once('/')?;
    if kind == conditions::CONDITION {
        return Some(conditions::gone(by, &node.instance, now));
    }
    let kind = kind_named(kind)?;
    let instance = node.instance.clone();
    let reported = |at| Identity::Agent { kind: kind.notice(), at, instance: instance.clone() };
    let identity = match kind {
        AgentNoticeKind::Maintenance => Identity::Ec2Event { id: by.to_owned(), instance: instance.clone() },
        AgentNoticeKind::Termination => reported(None),
        AgentNoticeKind::Spot | AgentNoticeKind::Rebalance => reported(Some(by.parse().ok()?)),
    };
    let notice = Notice::new(identity, instance, NoticeTime::Seen(now), Detail::TakenBack(kind.notice()));
    Some(NodeNotice { notice, message })
}

/// Returns the marks that the withdrawal of the notice with this identity removes: those that the agent notice has left, unless the Node
/// reports it again. No clock decides, because those of the Node, of this replica and of the one that wrote the marks may differ.
#[must_use]
pub fn taken_back_marks(node: &Node, identity: &Identity) -> Option<NodeRelease> {
    NodeRelease::of_taken_back(node, identity.key()).filter(|_| !is_reported(node, identity))
}

/// Returns the release of the change that this notice cancels. What the Node's agent still reports, only the agent ends.
#[must_use]
pub fn withdrawn_marks(node: &Node, notice: &Notice) -> Option<NodeRelease> {
    // What EC2 lists has no copies.
    let is_noted = matches!(notice.time, NoticeTime::Announced(_));
    let release = NodeRelease::of_withdrawn(node, notice.key(), Withdrawal::of(notice), is_noted)?;
    let record = |notice: &Notice| node.record.of(notice).map(|(key, _)| key);
    let cancelled = record(notice);
    let mut reported = notices_of(node, Timestamp::MIN).filter_map(|(_, notice)| notice.ok());
    let reported = reported.find(|reported| cancelled.is_some() && record(&reported.notice) == cancelled);
    // What EC2 and the metadata list is the same.
    Some(match reported.filter(|_| is_noted) {
        Some(NodeNotice { notice, message }) => release.leaving_to_agent(node, notice.key(), &message),
        None => release,
    })
}

/// Whether the Node has the agent notice with this identity, or the note of the request that leads to the termination that it announces.
#[must_use]
pub fn is_reported(node: &Node, identity: &Identity) -> bool {
    let by_request = terminated_by_request(node, Timestamp::MIN);
    has_agent_notice(node, identity) || by_request.is_some_and(|reported| reported.notice.identity == *identity)
}

/// Whether the Node's agent has reported the notice with this identity.
#[must_use]
pub fn has_agent_notice(node: &Node, identity: &Identity) -> bool {
    let mut reported = notices_of(node, Timestamp::MIN).filter_map(|(_, notice)| notice.ok());
    reported.any(|reported| reported.notice.identity == *identity)
}

/// Returns the standing of a notice that the Node reports.
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
    let is_same = |since: Option<Timestamp>| since.is_some_and(|since| are_same(since, notice.at()));
    let mut others = node.record.notices().filter(|(key, mark)| *key != notice.key() && mark.is_of(notice.kind()));
    let is_announced = match notice.detail {
        Detail::AsgTermination { .. } => node.record.is_termination_announced(),
        _ => others.any(|(_, mark)| !is_from_node(&mark.message) && is_same(mark.since)),
    };
    if is_announced { Standing::Announced } else { Standing::Open }
}

/// Returns the agent notice that announces the same as this notice of an event, which has no id in common with the metadata. `None` also
/// if the event's own mark is on the Node: its message then continues the work.
#[must_use]
pub fn reported_copy(node: &Node, notice: &Notice, now: Timestamp) -> Option<Notice> {
    let Identity::Event { .. } = &notice.identity else { return None };
    if node.record.notice(notice.key()).is_some() {
        return None;
    }
    let mut reported = notices_of(node, now).filter_map(|(_, notice)| notice.ok()).map(|reported| reported.notice);
    reported.find(|reported| reported.kind() == notice.kind() && are_same(reported.at(), notice.at()))
}

#[cfg(test)]
mod tests;
