//! Rules about notices that are acted on later than they are told: changes that `--when` puts off, and conditions that are tolerated.

use super::{Oracle, Seen, Sent, drains, s};
use crate::plan::{Kind, Notice, Target, Teller};
use ebbtide_sim::calls::Call;
use std::collections::BTreeSet;

/// Maximum time in milliseconds from when a notice is due until its Node is cordoned, if nothing fails: docs/marks.md, "Marks on the
/// Node".
const BEGINS_WITHIN: i64 = 100_000;

impl Oracle {
    /// Returns from when on a notice is acted on: docs/settings.md, `--when`; docs/repair.md, "Conditions".
    pub(super) fn begins(&self, sent: &Sent) -> i64 {
        let notice = &self.plan.notices[sent.notice];
        let flags = &self.plan.flags;
        match (notice.kind, flags.before) {
            (Kind::Condition, _) => sent.at + s(flags.condition.map_or(0, |(toleration, _)| toleration)),
            (Kind::Change(code, after), Some(before)) if !code.contains("RETIREMENT") => {
                sent.at.max(sent.at - s(notice.age) + after * 1000 - s(before))
            }
            _ => sent.at,
        }
    }

    /// Whether the notice may have been acted on.
    pub(super) fn is_due(&self, seen: &Seen, sent: &Sent) -> bool {
        let begins = self.begins(sent);
        let is_over = || self.plan.faults.is_empty() && self.over_since(seen, sent).is_some_and(|at| at < begins);
        self.now() + self.slack() >= begins && (begins == sent.at || !is_over())
    }

    /// Returns since when nobody tells of the notice any longer: what AWS calls off ends with the deletion of the message that says so.
    fn over_since(&self, seen: &Seen, sent: &Sent) -> Option<i64> {
        // A replica that starts learns of it a little later, and a copy of the announcement may be on its way.
        let Notice { kind, teller, .. } = self.plan.notices[sent.notice];
        let late = match (kind, teller) {
            (Kind::Condition, _) => self.slack(),
            // Replicas look once in a minute.
            (_, Teller::Looks) => s(100),
            _ => s(15),
        };
        let by_node = seen.taken_back.get(&sent.notice).map(|at| at + late);
        let by_message = seen.done.get(&sent.notice).copied();
        match teller {
            Teller::Queue => by_message,
            Teller::Node | Teller::Looks => by_node,
            Teller::Both => by_node.zip(by_message).map(|(node, message)| node.max(message)),
        }
    }

    /// Returns the notices that the Node keeps as plans: docs/marks.md, "Marks on the Node".
    fn kept(&self, node: usize) -> BTreeSet<usize> {
        let node = self.world.kube.node(&format!("node-{node}"));
        let annotations = node.and_then(|node| node.metadata.annotations).unwrap_or_default();
        let plans = annotations.iter().filter(|(key, _)| key.starts_with("ebbtide/notice."));
        let told = |text: &str| text.split_once("\"kept\"")?.1.split_once("event-")?.1.split('"').next()?.parse().ok();
        plans.filter_map(|(_, text)| told(text)).collect()
    }

    /// Whether a message may be deleted because its Node keeps its notice until it is due.
    pub(super) fn is_planned(&self, sent: &Sent) -> bool {
        let Target::Node(node) = self.plan.notices[sent.notice].target else { return false };
        self.begins(sent) > sent.at && self.kept(node).contains(&sent.notice)
    }

    /// A plan stays until its drain has ended, or whoever told of it has taken it back; and no node is cordoned before.
    pub(super) fn plans(&self, seen: &mut Seen, call: &Call) {
        let name = call.subject.trim_start_matches("node-").split('/').next().and_then(|n| n.parse().ok());
        let Some(node): Option<usize> = name.filter(|n| *n < self.plan.nodes.len()) else { return };
        let kept = self.kept(node);
        let before = seen.plans.insert(node, kept.clone()).unwrap_or_default();
        for gone in before.difference(&kept) {
            let Some(sent) = seen.sent.iter().find(|sent| sent.notice == *gone).cloned() else { continue };
            let is_taken_back = self.may_be_taken_back(seen, &sent);
            if let (false, Some(why)) = (is_taken_back, self.not_over(seen, &sent)) {
                self.broke(seen, "no plan removed before its drain ended", why);
            }
        }
        let of_node = |sent: &&Sent| self.plan.notices[sent.notice].target == Target::Node(node);
        let waits = |sent: &Sent| self.now() + self.slack() < self.begins(sent);
        let Some(object) = self.world.kube.node(&format!("node-{node}")) else {
            seen.cordoned.remove(&node);
            return;
        };
        let cordoned = object.spec.and_then(|spec| spec.unschedulable);
        let is_told = seen.sent.iter().any(|sent| of_node(&sent));
        if cordoned == Some(true) {
            let is_ours = !self.plan.nodes[node].cordoned && is_told;
            if is_ours && seen.sent.iter().filter(of_node).all(waits) {
                self.broke(seen, "no cordon before a notice is due", format!("node-{node}"));
            }
            seen.cordoned.insert(node);
        } else if seen.cordoned.remove(&node)
            && let Some(sent) = seen.sent.iter().find(|sent| of_node(sent) && self.stays(seen, sent, node)).cloned()
        {
            let text = format!("{:?}", self.plan.notices[sent.notice]);
            self.broke(seen, "no uncordon of a change that stands, by its Node's word or a restart before it", text);
        }
    }

    /// Whether a message or the Node tells what the other has taken back (docs/agent.md, "What a Node says"), or a message announces a change before whose start
    /// the Node has restarted (docs/marks.md, "A restart before a change").
    fn stays(&self, seen: &Seen, sent: &Sent, node: usize) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let restarted = seen.booted.get(&node).is_some_and(|at| self.restart_ends(seen, sent, *at));
        let is_free = seen.let_go.contains_key(&node) || restarted;
        let is_told = sent.messages.len() > sent.open.len() && !self.may_be_taken_back(seen, sent);
        let is_by_one = seen.taken_back.contains_key(&sent.notice) || seen.called_off.contains_key(&sent.notice);
        let by_one = notice.teller == Teller::Both && is_by_one;
        // The mark of a recommendation expires.
        let lasts = drains(notice.kind, &self.plan.flags) && notice.kind != Kind::Rebalance;
        let is_change = matches!(notice.kind, Kind::Change(..)) && !self.is_taken_back(seen, sent);
        let restarted_early = is_change && seen.booted.contains_key(&node) && !self.may_be_refused(sent);
        // A plan holds no cordon: that was another notice's, and has expired. A replica that has just started looks at plans a little later.
        let begins = self.begins(sent);
        let is_calm = self.plan.replicas.iter().all(Vec::is_empty);
        let is_begun = begins == sent.at || is_calm && begins + BEGINS_WITHIN <= self.now();
        self.plan.faults.is_empty() && (by_one || restarted_early) && is_told && lasts && is_begun && !is_free
    }

    /// Whether every source that reported the notice has withdrawn it: docs/agent.md, "Agent notices".
    fn may_be_taken_back(&self, seen: &Seen, sent: &Sent) -> bool {
        let is_told = sent.messages.len() > sent.open.len() && self.plan.faults.is_empty();
        let by_message = seen.called_off.contains_key(&sent.notice);
        let by_node = seen.taken_back.contains_key(&sent.notice);
        match self.plan.notices[sent.notice].teller {
            Teller::Both => by_node && (by_message || !is_told) || by_message && !self.plan.faults.is_empty(),
            _ => by_message || !is_told && by_node,
        }
    }

    /// Returns the plans that Nodes keep, and that are not over.
    pub(super) fn plans_left(&self, seen: &Seen) -> Vec<String> {
        let nodes = (0..self.plan.nodes.len()).filter(|n| !self.plan.nodes[*n].ignored && !seen.let_go.contains_key(n));
        nodes
            .flat_map(|n| self.kept(n).into_iter().map(move |notice| format!("node-{n} keeps notice {notice}")))
            .collect()
    }

    /// Returns when the work on a notice of the plan must have begun, if it waits and nothing fails.
    pub fn begins_by(&self, notice: usize) -> Option<std::time::Duration> {
        let seen = self.seen();
        let sent = seen.sent.iter().find(|sent| sent.notice == notice)?;
        let waits = self.begins(sent) > sent.at && drains(self.plan.notices[notice].kind, &self.plan.flags);
        let is_calm = self.plan.faults.is_empty() && self.plan.replicas.iter().all(Vec::is_empty);
        let is_calm = is_calm && !self.may_be_refused(sent);
        let look = if self.plan.flags.looks { s(70) } else { 0 };
        let by = u64::try_from(self.begins(sent) + BEGINS_WITHIN + look).ok()?;
        (waits && is_calm).then(|| std::time::Duration::from_millis(by))
    }

    /// Judges whether the work on a notice that had to wait has begun.
    pub fn judge_begun(&self, notice: usize) {
        let seen = &mut self.seen();
        let Some(sent) = seen.sent.iter().find(|sent| sent.notice == notice).cloned() else { return };
        let Target::Node(node) = self.plan.notices[notice].target else { return };
        let told = self.may_be_taken_back(seen, &sent);
        let is_free = self.plan.nodes[node].ignored || seen.let_go.contains_key(&node);
        let is_free = is_free || self.plan.notices[notice].kind == Kind::Condition && self.may_be_left(seen, node);
        let restarted = seen.booted.get(&node).is_some_and(|at| self.restart_ends(seen, &sent, *at));
        let cordoned =
            self.world.kube.node(&format!("node-{node}")).map(|node| node.spec.and_then(|it| it.unschedulable));
        // One that joins late is waited for by the message.
        let is_late = seen.started.contains_key(&node);
        if let (Some(None | Some(false)), false) = (cordoned, told || is_free || restarted || is_late) {
            self.broke(
                seen,
                "what waits begins in time",
                format!("{:?}, told at {}", self.plan.notices[notice], sent.at),
            );
        }
    }
}
