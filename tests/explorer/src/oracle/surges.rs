//! Rules about Deployments that are restarted before their last ready pods leave: docs/workloads.md, "Single replicas".

use super::{Oracle, Seen, asks, numbered, s};
use crate::plan::{Kind, Plan, Trouble};
use ebbtide_sim::calls::Call;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

/// Time for a new pod, without which nothing is restarted.
const NEW_POD: i64 = s(15);

/// Time that is kept free before the node's end, besides the old pod's grace period.
const KEPT_FREE: i64 = s(12);

/// Minimum time between two restarts of a Deployment.
const INTERVAL: i64 = s(30);

/// Maximum number of Deployments that one process restarts at once.
const AT_ONCE: usize = 20;

/// Maximum time from the end of a pod's wait to its first eviction, if nothing fails.
const EVICTED_WITHIN: i64 = s(10);

impl Oracle {
    /// Judges a change of a Deployment.
    pub(super) fn restarts(&self, seen: &mut Seen, call: &Call) {
        let (now, name) = (self.now(), call.subject.trim_start_matches("default/"));
        let Some((number, found)) = Plan::deployment_of(name).zip(self.world.kube.deployment("default", name)) else {
            return;
        };
        let so_far = seen.restarts.entry(number).or_default();
        // Each change of its spec makes another generation. Nobody else changes it.
        let generation = usize::try_from(found.metadata.generation.unwrap_or_default()).unwrap_or_default();
        if generation <= so_far.len() + 1 {
            return;
        }
        let annotations = found.spec.and_then(|spec| spec.template.metadata?.annotations).unwrap_or_default();
        let noted = annotations.get("kubectl.kubernetes.io/restartedAt").and_then(|at| at.parse::<Timestamp>().ok());
        let Some(noted) = noted else {
            return self.broke(seen, "no change of a Deployment but its restart", name);
        };
        let before = so_far.last().map(|(_, at)| *at);
        so_far.push((now, noted));
        if before.is_some_and(|before| noted.duration_since(before).as_secs() * 1000 + self.slack() < INTERVAL) {
            let text = format!("{name} at {before:?} and {noted}");
            return self.broke(seen, "no Deployment is restarted twice within half a minute", text);
        }
        if let Some(why) = self.is_needless_restart(seen, number) {
            let text = format!("{name}: {why}");
            return self.broke(seen, "no Deployment is restarted where that leaves no fewer gaps", text);
        }
        let plan = &self.plan.deployments[number];
        let nodes: Vec<usize> = self.ready(number).into_iter().filter_map(|(_, node)| node).collect();
        let latest = |node: &usize| self.latest_end(seen, *node).saturating_sub(self.grace(&plan.pod) + KEPT_FREE);
        let is_late = |node: &usize| now > latest(node).saturating_sub(NEW_POD).saturating_add(self.slack());
        if self.plan.faults.is_empty() && !nodes.is_empty() && nodes.iter().all(is_late) {
            let text = format!("{name} on {nodes:?}");
            return self.broke(seen, "no Deployment is restarted in the last seconds of its nodes", text);
        }
        let at_once = seen.restarts.keys().filter(|number| !self.waiting(seen, **number).is_empty()).count();
        if self.plan.faults.is_empty() && at_once > AT_ONCE * usize::try_from(seen.starts).unwrap_or(usize::MAX) {
            self.broke(seen, "no more Deployments are restarted at once than twenty", at_once.to_string());
        }
    }

    /// Returns why the restart of a Deployment serves nothing that the settings ask for.
    fn is_needless_restart(&self, seen: &Seen, number: usize) -> Option<String> {
        let plan = &self.plan.deployments[number];
        // A node counts as long as the record of its drain stays.
        let is_drained = |node: usize| !self.plan.nodes[node].ignored && self.told_drains(seen, node).next().is_some();
        let elsewhere = self.ready(number).into_iter().find(|(_, node)| !node.is_some_and(is_drained));
        // The list of its pods may come from the cache.
        let is_stale = self.plan.faults.iter().any(|span| matches!(span.trouble, Trouble::StaleCache));
        let elsewhere = elsewhere.filter(|_| !is_stale);
        let reasons = [
            (self.plan.flags.surge.is_none(), "--surge is not set"),
            (!plan.has_room(), "its strategy has no room"),
            (asks(&plan.pod, &self.plan.flags), "its pods ask not to be disturbed"),
        ];
        let reason = reasons.into_iter().find(|(stands, _)| *stands).map(|(_, why)| why.to_owned());
        reason.or_else(|| elsewhere.map(|(pod, _)| format!("{pod} is on a node that stays")))
    }

    /// Returns why the only ready pod of a Deployment should not be evicted yet: it may wait for its new pod. Judged without faults, because
    /// who can't read or restart a Deployment does not wait.
    pub(super) fn leaves_gap(&self, seen: &Seen, node: usize, name: &str) -> Option<String> {
        let (number, surge) = Plan::deployment_of(name).zip(self.plan.flags.surge)?;
        let plan = self.plan.deployments.get(number)?;
        let may_wait = plan.nodes.len() == 1 && plan.has_room() && !asks(&plan.pod, &self.plan.flags);
        let is_last = || self.ready(number).iter().all(|(ready, _)| ready == name);
        let is_first = self.placed.lock().contains_key(name);
        let (begun, end) = self.earliest(seen, node).filter(|_| may_wait && is_first && is_last())?;
        let until = (begun + s(surge)).min(end - self.grace(&plan.pod) - KEPT_FREE - NEW_POD);
        (self.now() + self.slack() < until).then(|| format!("{name} before {until}, {plan:?}"))
    }

    /// A pod waits for its new pod no longer than the settings and its node's end allow, whether or not that comes. Judged where nothing fails
    /// and one notice alone has the node drained.
    pub fn judge_waits(&self) {
        let seen = &mut self.seen();
        let (Some(surge), now) = (self.plan.flags.surge, self.now()) else { return };
        let is_calm = self.plan.faults.is_empty() && self.plan.replicas.iter().all(Vec::is_empty);
        if !is_calm || !self.plan.flags.tiers.is_empty() {
            return;
        }
        for (number, restarts) in seen.restarts.clone() {
            let plan = &self.plan.deployments[number];
            // The first tier waits for no other.
            let ([node], [(restarted, _), ..], 0) = (&plan.nodes[..], &restarts[..], plan.pod.priority) else {
                continue;
            };
            let until = self.latest_end(seen, *node).saturating_sub(self.grace(&plan.pod) + KEPT_FREE);
            let until = until.min(restarted + s(surge));
            let waiting = self.waiting(seen, number);
            if now > until + EVICTED_WITHIN + self.slack() && self.is_being_drained(seen, *node) && !waiting.is_empty()
            {
                let text = format!("{waiting:?}, {plan:?}, since {restarted}, until {until}");
                return self.broke(seen, "no pod waits for its new pod for longer than it may", text);
            }
        }
    }

    /// Whether one notice has the Node drained, and nothing may have ended that.
    fn is_being_drained(&self, seen: &Seen, node: usize) -> bool {
        let told: Vec<_> = self.told_drains(seen, node).collect();
        let [sent] = told[..] else { return false };
        let is_free =
            self.plan.nodes[node].ignored || seen.let_go.contains_key(&node) || seen.booted.contains_key(&node);
        let is_over = self.is_taken_back(seen, sent) || self.is_late(seen, sent, node) || self.is_lost(node);
        !is_free && !is_over && !self.may_be_over(seen, sent, node) && !self.may_be_refused(sent)
    }

    /// Returns the latest end of the Node's drains; that of the world, if they are not all of kinds with a fixed end.
    fn latest_end(&self, seen: &Seen, node: usize) -> i64 {
        let ends = self.told_drains(seen, node).map(|sent| match self.plan.notices[sent.notice].kind {
            Kind::Spot(_) | Kind::Reservation(_) => self.ends(seen, sent).hard,
            _ => None,
        });
        ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max()).unwrap_or(i64::MAX)
    }

    /// Returns the ready pods of a Deployment, with the numbers of their nodes.
    fn ready(&self, number: usize) -> Vec<(String, Option<usize>)> {
        let ready = self.world.kube.pods().into_iter().filter(is_ready);
        let named = ready.filter_map(|pod| Some((pod.metadata.name?, pod.spec?.node_name?)));
        let of_it = named.filter(|(name, _)| Plan::deployment_of(name) == Some(number));
        of_it.map(|(name, node)| (name, numbered(&node))).collect()
    }

    /// Returns the first pods of a Deployment that nobody has tried to evict.
    fn waiting(&self, seen: &Seen, number: usize) -> Vec<String> {
        let placed = self.placed.lock();
        let of_it = placed.keys().filter(|name| Plan::deployment_of(name) == Some(number));
        let is_there = |name: &str| {
            self.world.kube.pod("default", name).is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
        };
        of_it.filter(|name| !seen.tried.contains_key(*name) && is_there(name)).cloned().collect()
    }
}

/// Whether a pod is ready, and does not terminate.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}
