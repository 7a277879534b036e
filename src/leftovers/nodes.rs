//! Deletes the Nodes of instances that have ended, for `--collect-nodes`. A cloud controller does that at once; where there is none, such a
//! Node stays for good, and its pods keep their volumes.
//!
//! ```text
//! the kubelet is silent ─ EC2 shows the end ─▶ Confirming ─ minutes later, again ─▶ deleted
//!                                                  │ volumes are attached              ▲
//!                                                  └────────────▶ Detaching ───────────┘
//! ```
//!
//! Three witnesses must agree, or the Node stays: Kubernetes, for which the kubelet has been silent for minutes; EC2, twice, with `terminated`
//! or, after an hour, an id that it does not know; and the instances of Ready Nodes in the same answer, which EC2 must know, or it was asked
//! in another account or region. A part of the Nodes is deleted at a time, because even so all three may be wrong.

use super::collector::{CollectError, Leftovers};
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Call, Category, Class, KubeError};
use crate::fact::{CollectionStop, Fact, InstanceEnd, NoticeKind};
use crate::pipeline::event::{Detail, Identity, InstanceState, Notice, NoticeTime};
use crate::pipeline::interruption::{Interrupter, WatchShare, out_of_service_mark};
use crate::pipeline::node::mark::out_of_service;
use crate::pipeline::node::record::{NoticeRecord, ReturnSign, Work};
use crate::pipeline::node::{CordonOutcome, InstanceRecord, MAX_ASKED, Membership, Node};
use crate::runtime::random;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Preconditions};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Interval between scans. A scan without a silent kubelet makes no call.
const SCAN_INTERVAL: Duration = Duration::from_mins(1);

/// Minimum silence of the kubelet of a Node that is deleted.
const MIN_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// Minimum silence if the Node is drained, from the start of the drain on. A drain gives up the pods of a silent kubelet within ten minutes.
const MIN_SILENCE_IN_DRAIN: SignedDuration = SignedDuration::from_mins(15);

/// Minimum silence, and age of the Node, if EC2 does not know the instance: EC2 shows a terminated one for about an hour, and may not know yet
/// one that was launched just now.
const MIN_SILENCE_UNKNOWN: SignedDuration = SignedDuration::from_hours(1);

/// Minimum time between two answers of EC2 about an instance that has ended.
const CONFIRMATION_TIME: Duration = Duration::from_mins(2);

/// Maximum time between the out-of-service taint and the deletion of the Node, for its volumes to be detached.
const MAX_DETACH_TIME: Duration = Duration::from_mins(10);

/// Time in which a limited number of Nodes is deleted.
const LIMIT_TIME: Duration = Duration::from_mins(10);

/// Divisor of the share of Nodes that are deleted in [`LIMIT_TIME`]: a fifth, rounded up.
const ONE_OF: usize = 5;

/// Maximum number of Ready Nodes about whose instances EC2 is asked in a call.
const WITNESSES: usize = 20;

/// Maximum time for which a scan waits for a server's time: with a clock that is ahead, a silence would seem to last.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Timeout for the attachments of volumes.
const ATTACHMENTS_TIMEOUT: Duration = Duration::from_secs(30);

/// The Nodes of instances that have ended.
pub struct Nodes {
    interrupter: Arc<Interrupter>,
    /// The Nodes whose instances have ended by EC2's last answer, by UID.
    known: HashMap<Arc<str>, EndedNode>,
    /// When the deletions of [`LIMIT_TIME`] began.
    begun: Vec<Instant>,
    /// From when on those are all: what the holder before has deleted is not known.
    counted_from: Instant,
    /// Number of Nodes that are left for now, by reason, as last reported.
    left: BTreeMap<CollectionStop, usize>,
    /// The attachments of volumes, while Nodes have some.
    attachments: Option<WatchShare>,
    /// The Nodes that a dry run has reported, by UID.
    reported: HashSet<Arc<str>>,
}

/// A Node whose instance has ended.
#[derive(Clone, Copy, Debug)]
struct EndedNode {
    /// Start of the kubelet's silence. After another one everything begins anew.
    silent_since: Option<Timestamp>,
    progress: Progress,
}

/// How far the collection of a Node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// EC2 has shown the end first at this time.
    Confirming(Instant),
    /// The Node has the out-of-service taint since this time, with which Kubernetes detaches its volumes.
    Detaching(Instant),
}

/// The next step for a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// Wait, because enough Nodes were deleted, or may have been.
    Leave,
    /// Set the out-of-service taint.
    Detach,
    Delete,
}

impl Progress {
    fn next(self, has_volumes: bool, has_room: bool, now: Instant) -> Step {
        match self {
            Self::Confirming(since) if now < since + CONFIRMATION_TIME => Step::Wait,
            Self::Confirming(_) if !has_room => Step::Leave,
            Self::Confirming(_) if has_volumes => Step::Detach,
            Self::Detaching(since) if has_volumes && now < since + MAX_DETACH_TIME => Step::Wait,
            Self::Confirming(_) | Self::Detaching(_) => Step::Delete,
        }
    }
}

impl Leftovers for Nodes {
    fn interval(&self) -> Duration {
        SCAN_INTERVAL
    }

    fn scan(&mut self) -> BoxFuture<'_, Result<(), CollectError>> {
        Box::pin(self.collect())
    }

    fn forget(&mut self) {
        self.known.clear();
        self.attachments = None;
        self.counted_from = Instant::now() + LIMIT_TIME;
    }
}

impl Nodes {
    /// Returns the Nodes that the interrupter knows.
    #[must_use]
    pub fn new(interrupter: Arc<Interrupter>) -> Self {
        Self {
            interrupter,
            known: HashMap::new(),
            begun: Vec::new(),
            counted_from: Instant::now(),
            left: BTreeMap::new(),
            attachments: None,
            reported: HashSet::new(),
        }
    }

    /// Takes the next step for each Node whose instance has ended.
    async fn collect(&mut self) -> Result<(), CollectError> {
        let interrupter = Arc::clone(&self.interrupter);
        // An outdated index may show a silence that is over.
        interrupter.index.live().await;
        interrupter.clock.trusted(FIRST_ANSWER_TIMEOUT).await;
        let now = interrupter.clock.now();
        let mut silent = interrupter.index.all_that(|node| is_silent(node, now));
        // An instance with a Ready Node runs.
        silent.retain(|node| interrupter.index.others(node).iter().all(|other| !other.ready));
        let (mut ended, mut left) = (Vec::new(), BTreeMap::new());
        for nodes in silent.chunks(MAX_ASKED - WITNESSES) {
            ended.extend(self.ended(nodes, now, &mut left).await?);
        }
        let by_uid: HashMap<_, _> = ended.iter().map(|(node, _)| (&node.uid, node.ready_since)).collect();
        self.known.retain(|uid, known| by_uid.get(uid) == Some(&known.silent_since));
        self.reported.retain(|uid| by_uid.contains_key(uid));
        let mut failed = None;
        for (node, end) in &ended {
            match self.advance(node, *end, now, &mut left).await {
                Ok(()) => {}
                // The server is busy or does not answer, so the others wait for the next scan.
                Err(error) if error.category.is_away() => return Err(error.into()),
                // A Node that can't be deleted does not stop the scan, and one error stands for all.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if !ended.iter().any(|(node, _)| node.has_volumes && self.known.contains_key(&node.uid)) {
            self.attachments = None;
        }
        self.report_left(&left);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Asks EC2 about the instances of these Nodes and, in the same call, of Ready ones. Returns those that have ended, and adds to `left` the
    /// number of those for which the Ready ones contradict.
    async fn ended(
        &self,
        silent: &[Arc<Node>],
        now: Timestamp,
        left: &mut BTreeMap<CollectionStop, usize>,
    ) -> Result<Vec<(Arc<Node>, InstanceEnd)>, AwsError> {
        let (owner, policy) = (&self.interrupter.owner, self.interrupter.policy());
        let ready = self.witnesses(silent);
        let instances: Vec<_> = silent.iter().chain(&ready).map(|node| node.instance.clone()).collect();
        let records = owner.ask_together(instances).await?;
        let (of_silent, of_ready) = records.split_at(silent.len());
        let mut ended = Vec::new();
        for (node, record) in silent.iter().zip(of_silent) {
            let age = node.created.map_or(SignedDuration::ZERO, |created| now.duration_since(created));
            let Some(end) = end_of(*record, silence(node, now).min(age), policy.require_tag) else { continue };
            match contradiction(end, of_ready) {
                Some(why) => *left.entry(why).or_default() += 1,
                None => ended.push((Arc::clone(node), end)),
            }
        }
        Ok(ended)
    }

    /// Returns Ready Nodes: first those of the same groups, whose instances are in the same account.
    fn witnesses(&self, silent: &[Arc<Node>]) -> Vec<Arc<Node>> {
        let groups: HashSet<&str> = silent.iter().map(|node| node.pool.named().group).collect();
        let mut ready = self.interrupter.index.all_that(|node| node.ready);
        ready.sort_by_cached_key(|node| (!groups.contains(node.pool.named().group), random::u64()));
        ready.truncate(WITNESSES);
        ready
    }

    /// Takes the next step for a Node.
    async fn advance(
        &mut self,
        node: &Arc<Node>,
        end: InstanceEnd,
        at: Timestamp,
        left: &mut BTreeMap<CollectionStop, usize>,
    ) -> Result<(), KubeError> {
        if self.reported.contains(&node.uid) {
            return Ok(());
        }
        let (now, dry_run, silent_since) = (Instant::now(), self.interrupter.policy().dry_run, node.ready_since);
        let first = EndedNode { silent_since, progress: Progress::Confirming(now) };
        let progress = self.known.entry(Arc::clone(&node.uid)).or_insert(first).progress;
        let has_volumes = !dry_run && self.has_volumes(node).await;
        let step = progress.next(has_volumes, self.has_room(now), now);
        match step {
            Step::Wait => return Ok(()),
            Step::Leave => {
                *left.entry(CollectionStop::Limit).or_default() += 1;
                return Ok(());
            }
            Step::Detach | Step::Delete => {}
        }
        let before = self.begun.len();
        if matches!(progress, Progress::Confirming(_)) {
            self.begun.push(now);
        }
        let done = if step == Step::Detach { self.taint(node, at).await } else { self.delete(node, end, at).await };
        // One whose answer was lost counts.
        if !done.as_ref().map_or_else(|error| error.category.is_away(), |is_done| *is_done) {
            self.begun.truncate(before);
        }
        if !done? {
            return Ok(());
        }
        if step == Step::Detach {
            self.known.insert(Arc::clone(&node.uid), EndedNode { silent_since, progress: Progress::Detaching(now) });
        } else {
            self.known.remove(&node.uid);
            self.reported.extend(dry_run.then(|| Arc::clone(&node.uid)));
        }
        Ok(())
    }

    /// Whether the deletion of another Node may begin.
    fn has_room(&mut self, now: Instant) -> bool {
        self.begun.retain(|begun| now < *begun + LIMIT_TIME);
        now >= self.counted_from && self.begun.len() < self.interrupter.index.len().div_ceil(ONE_OF)
    }

    /// Whether volumes are attached to the Node. Without the permission to read attachments none are known.
    async fn has_volumes(&mut self, node: &Node) -> bool {
        if !node.has_volumes {
            return false;
        }
        if self.attachments.is_none() {
            self.attachments = self.interrupter.attachments.join();
        }
        let Some(attachments) = &self.attachments else { return false };
        // Without an answer, the Node keeps them for now.
        let attached = timeout(ATTACHMENTS_TIMEOUT, attachments.of(&node.name)).await;
        attached.map_or(true, |attached| attached.is_some_and(|attached| !attached.is_empty()))
    }

    /// Sets the out-of-service taint, with a record for its removal if the Node becomes Ready. Returns whether the Node has it.
    async fn taint(&self, node: &Arc<Node>, at: Timestamp) -> Result<bool, KubeError> {
        let Interrupter { marker, facts, .. } = &*self.interrupter;
        if node.taints.iter().any(|taint| taint.key == out_of_service().key) {
            return Ok(true);
        }
        // No message announced it; EC2's answer stands for one.
        let id = format!("terminated-{}", node.instance);
        let identity = Identity::Event { kind: NoticeKind::StateChange, id: id.clone() };
        let detail = Detail::StateChange { state: InstanceState::Terminated };
        let notice = Notice::new(identity, node.instance.clone(), NoticeTime::Seen(at), detail);
        let mark = out_of_service_mark(&notice, &id).with_return_sign(Some(ReturnSign::Ready));
        let by = Instant::now() + CALL_TIMEOUT;
        match marker.cordon(node, &mark, by, |current| !is_silent(current, at)).await? {
            CordonOutcome::Cordoned { denied, .. } => {
                if let Some(denied) = &denied {
                    denied.report(node, |fact| facts.emit(fact));
                }
                if !denied.is_some_and(|denied| denied.has_out_of_service()) {
                    facts.emit(&Fact::NodeOutOfService { about: notice.about(Some(&node.name), &id) });
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Deletes the Node, if it is as the index shows it; in a dry run the API server only checks that. Returns whether it was deleted.
    async fn delete(&self, node: &Node, end: InstanceEnd, at: Timestamp) -> Result<bool, KubeError> {
        let (Interrupter { drainer, facts, .. }, policy) = (&*self.interrupter, self.interrupter.policy());
        // The status of a kubelet that returns is another version.
        let (uid, version) = (node.uid.to_string(), node.resource_version.to_string());
        let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
        let dry_run = policy.dry_run;
        let params = DeleteParams { dry_run, preconditions: Some(preconditions), ..DeleteParams::default() };
        let call = Call { verb: "delete", resource: "nodes", subject: &node.name };
        let by = Instant::now() + CALL_TIMEOUT;
        match drainer.gate.kube(call, Class::Background, by, || drainer.nodes.delete(&node.name, &params)).await {
            Ok(answer) => {
                // One with finalizers stays until their controllers remove them.
                let (silent, has_finalizers) = (silence(node, at).unsigned_abs(), answer.is_left());
                facts.emit(&Fact::NodeCollected { on: node.named(), end, silent, has_finalizers, dry_run });
                Ok(true)
            }
            // It was changed or deleted: the next scan shows.
            Err(error) if matches!(error.category, Category::Conflict | Category::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reports the numbers of Nodes that are left for now, if they have changed.
    fn report_left(&mut self, left: &BTreeMap<CollectionStop, usize>) {
        for why in CollectionStop::ALL {
            let nodes = left.get(&why).copied().unwrap_or_default();
            let before = self.left.insert(why, nodes).unwrap_or_default();
            if nodes != before {
                self.interrupter.facts.emit(&Fact::CollectionHeld { why, nodes, before });
            }
        }
    }
}

/// Returns how long the kubelet has been silent.
fn silence(node: &Node, now: Timestamp) -> SignedDuration {
    node.ready_since.map_or(SignedDuration::ZERO, |since| now.duration_since(since))
}

/// Whether the kubelet of a Node that Ebbtide may delete has been silent for long enough to ask EC2 about the instance.
fn is_silent(node: &Node, now: Timestamp) -> bool {
    let is_drained = |notice: &NoticeRecord| notice.work == Work::Open && notice.end() > Some(now);
    let mut drains = node.record.notices().map(|(_, notice)| notice).filter(|notice| is_drained(notice));
    let is_over = |notice: &NoticeRecord| {
        let begun = notice.since.max(node.ready_since);
        begun.is_some_and(|begun| now.duration_since(begun) >= MIN_SILENCE_IN_DRAIN)
    };
    node.silent && !node.deleting && !node.is_excluded() && silence(node, now) >= MIN_SILENCE && drains.all(is_over)
}

/// Returns the end of an instance of ours by EC2's record, if it has ended. `silence`: how long its Node has existed with a silent kubelet.
fn end_of(record: InstanceRecord, silence: SignedDuration, require_tag: bool) -> Option<InstanceEnd> {
    let is_ours = |membership| match membership {
        Membership::ThisCluster | Membership::Unproven { .. } => true,
        Membership::NotManaged => !require_tag,
        Membership::OtherCluster => false,
    };
    match record {
        InstanceRecord::Terminated { membership } if is_ours(membership) => Some(InstanceEnd::Terminated),
        InstanceRecord::Unknown if !require_tag && silence >= MIN_SILENCE_UNKNOWN => Some(InstanceEnd::Unknown),
        _ => None,
    }
}

/// Returns why this end of an instance is not believed, by EC2's records of the instances of Ready Nodes in the same answer.
fn contradiction(end: InstanceEnd, ready: &[InstanceRecord]) -> Option<CollectionStop> {
    let mut has_unknown = false;
    let mut has_known = false;
    for record in ready {
        has_unknown |= *record == InstanceRecord::Unknown;
        has_known |= matches!(record, InstanceRecord::Known { .. });
    }
    match end {
        _ if !has_known => Some(CollectionStop::NoWitness),
        InstanceEnd::Unknown if has_unknown => Some(CollectionStop::Account),
        InstanceEnd::Unknown | InstanceEnd::Terminated => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 60 * minutes).unwrap()
    }

    /// Returns a Node whose kubelet became silent at this minute.
    fn node(silent: i64) -> Node {
        Node { ready: false, silent: true, ready_since: Some(at(silent)), ..Node::for_tests("node-1") }
    }

    #[test]
    fn only_a_kubelet_that_has_been_silent_for_minutes_is_asked_about() {
        let after = |node: &Node, minutes: i64| {
            (is_silent(node, at(minutes) - Duration::from_secs(1)), is_silent(node, at(minutes)))
        };
        assert_eq!(after(&node(100), 105), (false, true));
        assert_eq!(after(&Node { ready_since: None, ..node(100) }, 1000), (false, false));
        // A kubelet that reports that its Node is not Ready runs.
        assert_eq!(after(&Node { silent: false, ..node(100) }, 1000), (false, false));
        for changed in [
            Node { deleting: true, ..node(100) },
            Node { ignored: true, ..node(100) },
            Node { selected: false, ..node(100) },
        ] {
            assert_eq!(after(&changed, 1000), (false, false));
        }
    }

    #[test]
    fn a_drain_ends_first() {
        let recorded = |text: &str| {
            let mut node = node(100);
            node.record.insert("ebbtide/notice.0123456789abcdef", text);
            node
        };
        let record = |work: &str, since: i64, deadline: i64| {
            let (since, deadline) = (at(since), at(deadline));
            format!(r#"{{"v":1,"kind":"asg-terminate","since":"{since}","deadline":"{deadline}","work":"{work}"}}"#)
        };
        let after = |text: &str, minutes: i64| {
            let node = recorded(text);
            (is_silent(&node, at(minutes) - Duration::from_secs(1)), is_silent(&node, at(minutes)))
        };
        assert_eq!(after(&record("open", 50, 1000), 115), (false, true), "it gives up a silent kubelet's pods");
        assert_eq!(after(&record("open", 200, 1000), 215), (false, true), "it began later");
        assert_eq!(after(&record("open", 99, 108), 108), (false, true), "its deadline");
        assert_eq!(after(&record("ended", 99, 1000), 105), (false, true));
        assert_eq!(after(&record("planned", 99, 1000), 105), (false, true));
    }

    #[test]
    fn an_instance_has_ended_if_it_is_terminated_or_long_unknown() {
        let minutes = SignedDuration::from_mins;
        let known = |stopped| InstanceRecord::Known { membership: Membership::ThisCluster, stopped };
        let terminated = |membership| InstanceRecord::Terminated { membership };
        let (ours, other) = (Membership::ThisCluster, Membership::OtherCluster);
        let table = [
            (known(false), 1000, None, None),
            (known(true), 1000, None, None),
            (terminated(ours), 5, Some(InstanceEnd::Terminated), Some(InstanceEnd::Terminated)),
            (terminated(Membership::NotManaged), 5, Some(InstanceEnd::Terminated), None),
            (terminated(other), 1000, None, None),
            (InstanceRecord::Unknown, 59, None, None),
            (InstanceRecord::Unknown, 60, Some(InstanceEnd::Unknown), None),
        ];
        for (record, silence, expected, with_tag) in table {
            assert_eq!(end_of(record, minutes(silence), false), expected, "{record:?} after {silence} minutes");
            assert_eq!(end_of(record, minutes(silence), true), with_tag, "{record:?} with --require-tag");
        }
    }

    #[test]
    fn ec2_must_know_the_instances_of_ready_nodes() {
        let known = InstanceRecord::Known { membership: Membership::NotManaged, stopped: false };
        let terminated = InstanceRecord::Terminated { membership: Membership::NotManaged };
        let unknown = InstanceRecord::Unknown;
        let (no_witness, account) = (Some(CollectionStop::NoWitness), Some(CollectionStop::Account));
        for (ready, of_terminated, of_unknown) in [
            (&[][..], no_witness, no_witness),
            (&[unknown, unknown], no_witness, no_witness),
            // It is terminated since a second ago, and its kubelet is not missed yet.
            (&[terminated], no_witness, no_witness),
            (&[known, terminated], None, None),
            (&[known, unknown], None, account),
        ] {
            assert_eq!(contradiction(InstanceEnd::Terminated, ready), of_terminated, "{ready:?}");
            assert_eq!(contradiction(InstanceEnd::Unknown, ready), of_unknown, "{ready:?}");
        }
    }

    #[test]
    fn each_step_has_its_time() {
        let start = Instant::now();
        let (confirming, detaching) = (Progress::Confirming(start), Progress::Detaching(start));
        let (early, late) = (start + CONFIRMATION_TIME - Duration::from_millis(1), start + CONFIRMATION_TIME);
        for has_volumes in [false, true] {
            assert_eq!(confirming.next(has_volumes, true, early), Step::Wait);
            assert_eq!(confirming.next(has_volumes, false, late), Step::Leave);
        }
        assert_eq!(confirming.next(false, true, late), Step::Delete);
        assert_eq!(confirming.next(true, true, late), Step::Detach);
        let (early, late) = (start + MAX_DETACH_TIME - Duration::from_millis(1), start + MAX_DETACH_TIME);
        // A deletion that has begun needs no more room.
        for has_room in [false, true] {
            assert_eq!(detaching.next(true, has_room, early), Step::Wait);
            assert_eq!(detaching.next(false, has_room, early), Step::Delete);
            assert_eq!(detaching.next(true, has_room, late), Step::Delete);
        }
    }
}
