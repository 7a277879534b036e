//! Rules about lifecycle hooks and messages.

use super::outages::SEES_AGAIN;
use super::{Oracle, Seen, Sent, drains, s};
use crate::harness::instance;
use crate::plan::{Kind, Notice, Owner, Target, Trouble};
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::calls::Call;

/// Time in seconds after which a message is given back while the API server is away.
const GIVEN_BACK_AFTER: u64 = 120;

impl Oracle {
    /// Returns the notice of the lifecycle action that a call names: by its token or, if no message has told it, by its instance.
    pub(super) fn sent_for<'a>(&self, seen: &'a Seen, named: &str) -> Option<&'a Sent> {
        let by_instance = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            notice.hook.is_some() && matches!(notice.target, Target::Node(node) if instance(node) == named)
        };
        seen.sent.iter().find(|sent| sent.token.as_deref() == Some(named) || by_instance(sent))
    }

    /// Returns why a hook is not ours to touch: docs/settings.md, "Notices"; docs/developers/design.md, rule 6.
    pub(super) fn not_ours(&self, seen: &Seen, sent: Option<&Sent>) -> Option<&'static str> {
        let Some(sent) = sent else { return Some("nobody told of it") };
        let notice = &self.plan.notices[sent.notice];
        match (notice.kind, notice.target) {
            (_, Target::OtherCluster) => Some("it is of another cluster"),
            (_, Target::Untagged) => Some("nothing shows that it is ours"),
            (Kind::Terminate(_, _, Owner::Others), _) => Some("others complete it"),
            (Kind::Launch(_), _) if !self.plan.flags.ready => Some("launches are ignored"),
            // An instance without a Node is not excluded: docs/draining.md, "By hand". A Node that joins later may not be seen yet.
            (_, Target::Node(node))
                if self.ignored_since(node).is_some_and(|at| at <= sent.at) && self.stands(notice.target) =>
            {
                Some("its Node is ignored")
            }
            (_, Target::Node(_)) if notice.hook.is_some() => {
                // Others may not have seen it yet.
                let is_over = |at: &i64| self.plan.faults.is_empty() && at + s(5) < self.now();
                seen.taken_back.get(&sent.notice).filter(|at| is_over(at)).map(|_| "its Node has taken it back")
            }
            _ if sent.open.is_empty() && !self.is_shared(sent) => Some("its messages have been deleted"),
            _ => None,
        }
    }

    /// Whether two replicas may work on the notice, of which one has deleted the message: SQS has delivered that twice, its lease was lost
    /// while the work went on, or it was given back because the API server was away for two minutes (docs/lifecycle-hooks.md, "Lifecycle hooks").
    /// In the last two cases the other may touch only an action that has ended, whoever has ended it, or that a forged message has made up:
    /// AWS refuses both.
    fn is_shared(&self, sent: &Sent) -> bool {
        let any = |is: fn(&Trouble) -> bool| self.plan.faults.iter().any(|span| is(&span.trouble));
        let action = sent.token.as_ref().and_then(|token| self.world.aws.autoscaling.action(token));
        any(|trouble| matches!(trouble, Trouble::Duplicates))
            || (any(|trouble| trouble.meets("ChangeMessageVisibilityBatch")) || self.is_given_back())
                && action.is_none_or(|action| !matches!(action.state, ActionState::Waiting { .. }))
    }

    /// Whether messages may have been given back because the API server was away.
    fn is_given_back(&self) -> bool {
        let absences = self.plan.faults.iter().filter(|span| matches!(span.trouble, Trouble::Away(..)));
        absences.map(|span| span.to - span.from).sum::<u64>() >= GIVEN_BACK_AFTER
    }

    /// Whether two replicas work on the notice because its message was given back, and not both may have seen yet that a user has let the
    /// Node go meanwhile: the first to see that leaves the hook waiting, and deletes the message.
    fn is_unseen(&self, seen: &Seen, sent: &Sent) -> bool {
        let Target::Node(node) = self.plan.notices[sent.notice].target else { return false };
        let absences = || self.plan.faults.iter().filter(|span| matches!(span.trouble, Trouble::Away(..)));
        let ends = absences().map(|span| s(span.to)).max().unwrap_or_default();
        // Before the notice, too, if the API server was away already.
        let is_hidden = |at: i64| absences().any(|span| s(span.from) <= at);
        let is_let_go = seen.let_go.get(&node).is_some_and(|at| (*at > sent.at || is_hidden(*at)) && *at < ends);
        self.is_given_back() && is_let_go && self.now() < ends + SEES_AGAIN
    }

    /// docs/developers/design.md, rule 1: a heartbeat has an owner, which holds a message.
    pub(super) fn beats(&self, seen: &mut Seen, call: &Call) {
        let sent = self.sent_for(seen, &call.subject);
        let is_unseen = sent.is_some_and(|sent| sent.open.is_empty() && self.is_unseen(seen, sent));
        if let Some(why) = self.not_ours(seen, sent).filter(|_| !is_unseen) {
            self.broke(seen, "no heartbeat without an owner", format!("{} {why}", call.subject));
        }
        if self.plan.flags.heartbeat == Some("off") {
            self.broke(seen, "no heartbeat without an owner", "--heartbeat off");
        }
    }

    /// A heartbeat after the end of its action is refused, and whoever was told so sends no other.
    pub(super) fn refused(&self, seen: &mut Seen, call: &Call) {
        let Some(sent) = self.sent_for(seen, &call.subject) else { return };
        let received = sent.messages.iter().map(|message| self.world.aws.sqs.receives(message)).sum();
        let told: u32 = if self.plan.notices[sent.notice].hook.is_some() { seen.starts } else { received };
        let refused = seen.refused.entry(call.subject.clone()).or_default();
        *refused += 1;
        if *refused > told {
            let text = format!("{}: {refused} were refused, and processes were told {told} times", call.subject);
            self.broke(seen, "no heartbeat after the action's end", text);
        }
    }

    /// docs/lifecycle-hooks.md, "Lifecycle hooks"; docs/settings.md, "Lifecycle hooks".
    pub(super) fn completes(&self, seen: &mut Seen, call: &Call) {
        let sent = self.sent_for(seen, &call.subject).cloned();
        if let Some(why) = self.not_ours(seen, sent.as_ref()) {
            return self.broke(seen, "no completion of a hook that is not ours", format!("{} {why}", call.subject));
        }
        let Some(sent) = sent else { return };
        let Notice { kind, target, .. } = self.plan.notices[sent.notice];
        let first = *seen.completing.entry(call.subject.clone()).or_insert(self.now());
        self.leaves_nobody(seen, &sent);
        // Its Node may join while the call is repeated.
        let joined_later =
            matches!(target, Target::Node(node) if seen.started.get(&node).is_some_and(|at| *at > first));
        if let (Kind::Terminate(..), Some(why), false) = (kind, self.not_over(seen, &sent), joined_later) {
            self.broke(seen, "no completion while a pod could be evicted", why);
        }
    }

    /// docs/settings.md, "Lifecycle hooks": `--on-failed-drain`, `asg-launch=ready`.
    pub(super) fn completed(&self, seen: &mut Seen, call: &Call) {
        let Some(sent) = self.sent_for(seen, &call.subject).cloned() else { return };
        let token = sent.token.as_deref().unwrap_or_default();
        let Some(action) = self.world.aws.autoscaling.action(token) else { return };
        let Some((_, result)) = action.completions.last() else { return };
        let notice = &self.plan.notices[sent.notice];
        let Target::Node(node) = notice.target else { return };
        let on_failed = self.plan.flags.on_failed;
        let mut left = self.left(node);
        // A pod may come while the call is repeated.
        let first = seen.completing.get(&call.subject).copied().unwrap_or_default();
        left.retain(|name| self.pod(name).is_some_and(|(_, pod)| pod.comes.is_none_or(|at| s(at) < first)));
        let wrong = match notice.kind {
            Kind::Terminate(..) if result == "ABANDON" => on_failed != Some("abandon"),
            // An action whose own time is over: as late as that, it may also be one of a node that has come back.
            Kind::Terminate(timeout, ..) if notice.age >= timeout => false,
            Kind::Terminate(..) if self.is_late(seen, &sent, node) => false,
            // A Node that joins after its notice is not seen while the watch fails.
            Kind::Terminate(..)
                if self.may_fail("watch nodes") && seen.started.get(&node).is_some_and(|at| *at > sent.at) =>
            {
                false
            }
            // Its Node may join while the call is on its way, or repeated.
            Kind::Terminate(..) if seen.started.get(&node).is_some_and(|at| *at + self.slack() >= first) => false,
            Kind::Terminate(..) => {
                !left.is_empty() && on_failed.is_some() && self.ended(&sent).is_none_or(|at| at == self.now())
            }
            // It had its effect before, and the answer was lost.
            Kind::Launch(_) if self.ended(&sent).is_some_and(|at| at < self.now()) => false,
            Kind::Launch(_) => {
                let known = self.world.kube.node(&format!("node-{node}"));
                let conditions = known.and_then(|node| node.status?.conditions).unwrap_or_default();
                let ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
                // Its instance may end, or its kubelet fall silent, while the call is on its way.
                let just_gone = seen.gone.get(&node).is_some_and(|at| at + self.slack() >= self.now());
                let just_gone = just_gone || self.is_lost(node);
                result != "CONTINUE" || !ready && !just_gone
            }
            _ => true,
        };
        if wrong {
            let text = format!("{result} for {notice:?}, pods left {left:?}");
            self.broke(seen, "a hook gets the result that the settings say", text);
        }
    }

    /// docs/developers/design.md, rule 5, and docs/events.md: a message is deleted when all its notices have ended.
    pub(super) fn deletes(&self, seen: &mut Seen) {
        let deleted = self.world.aws.sqs.deleted();
        for message in &deleted[seen.deleted..] {
            let Some(place) = seen.sent.iter().position(|sent| sent.open.contains(message)) else { continue };
            let sent = seen.sent[place].clone();
            let kind = self.plan.notices[sent.notice].kind;
            let calls_off = seen.called_off.get(&sent.notice);
            if calls_off == Some(message) {
                seen.done.insert(sent.notice, self.now());
            }
            if matches!(kind, Kind::Shift(..)) {
                seen.noted.entry(sent.notice).or_insert(self.now());
            }
            // A copy of what AWS has called off is late.
            let waits = drains(kind, &self.plan.flags) && calls_off.is_none() && !self.is_planned(&sent);
            if let (true, Some(why)) = (waits, self.not_over(seen, &sent)) {
                self.broke(seen, "no message deleted before its drain ended", why);
            } else if let Some(why) = self.hook_left(seen, &sent) {
                self.broke(seen, "no message deleted before its hook was completed", why);
            }
            seen.sent[place].open.remove(message);
        }
        seen.deleted = deleted.len();
    }

    /// Returns why a hook that we should have completed waits on, if it does.
    pub(super) fn hook_left(&self, seen: &Seen, sent: &Sent) -> Option<String> {
        let notice = &self.plan.notices[sent.notice];
        let waits = sent.token.is_some() && self.ended(sent).is_none();
        let ours = matches!(notice.kind, Kind::Terminate(..)) && self.not_ours(seen, Some(sent)).is_none();
        let is_blind = self.plan.flags.on_failed == Some("leave") && self.may_fail("watch nodes");
        let left = match notice.target {
            Target::Node(node) => {
                let let_go = self.plan.nodes[node].ignored || seen.let_go.contains_key(&node);
                let let_go = let_go || notice.hook.is_some() && self.is_taken_back(seen, sent);
                // While EC2 does not answer, the times of the hook are not known, and the shortest is assumed.
                let is_unknown = notice.age > 0 && !self.stands(notice.target);
                let_go || is_unknown || self.plan.flags.on_failed == Some("leave") && self.may_be_over(seen, sent, node)
            }
            // Whose the instance is, only EC2 says; and whether it has a Node, only the watch.
            _ => notice.age > 0 || self.may_fail("DescribeInstances") || is_blind,
        };
        let left = left || self.may_be_refused(sent);
        (waits && ours && !left).then(|| format!("{notice:?}"))
    }
}
