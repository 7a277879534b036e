//! What the documents promise of outages: an API server that is away moves the end of a hook, and neither it nor a dead SQS nor expired
//! credentials cost a hook.

use super::{Oracle, Seen, Sent, asks, s};
use crate::plan::{Budget, Kind, Span, Target, Teller, Trouble};
use ebbtide_sim::fault::Fault;
use std::time::Duration;

/// Maximum time in milliseconds that an absence of the API server lasts for longer than it counts: until its end is noticed, and while a call hangs.
const UNCOUNTED: i64 = 15_000;

/// Calls that show a drain that the API server is away.
const OF_DRAINS: [&str; 5] = ["patch nodes", "get nodes", "list pods", "create pods/eviction", "delete pods"];

/// Maximum time in milliseconds from the end of an outage of SQS to the next receive, which waits between its tries, and whose calls may
/// hang.
const RECEIVES_AGAIN: i64 = 45_000;

/// Maximum time in milliseconds from the end of all that held a pod to its eviction, of a drain that has begun.
const EVICTED_WITHIN: i64 = 60_000;

/// The same for the API server, and the watch of the Nodes.
pub(super) const SEES_AGAIN: i64 = 60_000;

/// Minimum interval in seconds between two loads of credentials: docs/faq.md.
const LOAD_INTERVAL: u64 = 5;

impl Oracle {
    /// Returns by how many milliseconds an API server that was away has moved the end of the notice's hook, at least: docs/draining.md,
    /// "Lifecycle hooks". Judged where nothing else fails and one process does all: another one counts from its own beginning.
    pub(super) fn moved(&self, seen: &Seen, sent: &Sent) -> i64 {
        let (plan, notice) = (&self.plan, &self.plan.notices[sent.notice]);
        let (Kind::Terminate(timeout, ..), Target::Node(node)) = (notice.kind, notice.target) else { return 0 };
        let is_absence =
            |span: &Span| matches!(span.trouble, Trouble::Away(..) | Trouble::Calls(_, Fault::Refuse(..), _));
        let is_known = plan.faults.iter().all(is_absence) && plan.has_only_outages() && plan.replicas.len() == 1;
        let is_put_off =
            plan.flags.heartbeat != Some("off") && plan.flags.drain_timeout.is_none_or(|time| time >= timeout);
        let is_plain = notice.teller == Teller::Queue && notice.hook.is_none() && plan.nodes[node].joins.is_none();
        if !is_known || !is_put_off || !is_plain || plan.flags.limit.is_some() || plan.clock_ahead > 0 {
            return 0;
        }
        let mut absences: Vec<_> =
            plan.faults.iter().filter(|span| matches!(span.trouble, Trouble::Away(..))).collect();
        absences.sort_by_key(|span| span.from);
        let (mut counted, mut moved) = (sent.at, 0);
        for span in absences {
            let (from, to) = (s(span.from).max(counted), s(span.to).min(self.now()));
            // A drain that only waits for pods to end calls nobody, and loses no time.
            let noticed = seen.called_away.iter().find(|at| (from..to).contains(*at));
            moved += noticed.map_or(0, |noticed| (to - noticed - UNCOUNTED).max(0));
            counted = counted.max(to);
        }
        moved
    }

    /// Notes that a drain has called the API server while this is away.
    pub(super) fn notes_absence(&self, seen: &mut Seen, operation: &str) {
        let now = self.now();
        let is_now = |span: &&Span| s(span.from) <= now && now < s(span.to);
        let mut spans = self.plan.faults.iter().filter(is_now);
        if OF_DRAINS.contains(&operation) && spans.any(|span| matches!(span.trouble, Trouble::Away(..))) {
            seen.called_away.push(now);
        }
    }

    /// A pod that nobody holds any more is told to stop before its node's hook is completed: whatever was refused or failed is tried again.
    pub(super) fn leaves_nobody(&self, seen: &mut Seen, sent: &Sent) {
        let notice = &self.plan.notices[sent.notice];
        let (Kind::Terminate(..), Target::Node(node)) = (notice.kind, notice.target) else { return };
        let since = self.now() - EVICTED_WITHIN;
        let plan = &self.plan.nodes[node];
        let is_judged = self.plan.has_only_outages()
            && self.plan.faults.iter().all(|span| s(span.to) < since)
            && (sent.at < since && notice.age == 0 && plan.joins.is_none())
            && !(plan.ignored || seen.let_go.contains_key(&node) || self.is_taken_back(seen, sent));
        if !is_judged || self.ended(sent).is_some() || self.may_be_refused(sent) || self.is_late(seen, sent, node) {
            return;
        }
        for name in self.left(node) {
            let Some((_, pod)) = self.pod(&name) else { continue };
            let was_held = match pod.budget {
                Budget::Free => false,
                Budget::Opens(at) => s(at) >= since,
                Budget::Never | Budget::Shared | Budget::Several => true,
            };
            let ends = self.world.kube.pod("default", &name).and_then(|pod| pod.metadata.deletion_timestamp);
            if !was_held && !asks(pod, &self.plan.flags) && pod.comes.is_none_or(|at| s(at) < since) && ends.is_none() {
                let text = format!("{name} {pod:?}, {notice:?}");
                return self.broke(seen, "no hook completed while a pod is left that nobody holds", text);
            }
        }
    }

    /// Whether an outage may cost the notice's hook: its message can't be received, or no heartbeat is accepted for half of its timeout.
    pub(super) fn may_expire(&self, sent: &Sent) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let Kind::Terminate(timeout, ..) = notice.kind else { return true };
        // A Node that registers while the API server is away is not seen.
        let joins_late = |node: usize| self.plan.nodes[node].joins.is_some();
        let is_missed = |span: &Span, later: i64| sent.at + s(3) > s(span.from) && sent.at < s(span.to) + later;
        let is_unreceived = |span: &Span| notice.teller != Teller::Node && is_missed(span, RECEIVES_AGAIN);
        self.plan.faults.iter().any(|span| match span.trouble {
            Trouble::Sqs(_) => is_unreceived(span),
            Trouble::Away(..) => match notice.target {
                // What a Node says while nobody can read it, or be elected to act on it, is read later.
                Target::Node(node) => joins_late(node) || notice.teller == Teller::Node && is_missed(span, SEES_AGAIN),
                // Whether an instance has a Node only the watch of the Nodes says: docs/settings.md, `--on-failed-drain`.
                _ => self.plan.flags.on_failed == Some("leave"),
            },
            Trouble::Expired => {
                let bears = self.plan.flags.heartbeat != Some("off") && timeout / 2 > span.to - span.from + 20;
                is_unreceived(span) || !bears
            }
            _ => false,
        })
    }

    /// Credentials that AWS calls expired are loaded anew, but not in a loop: docs/faq.md. `starts` is the number of processes that had been
    /// started before.
    pub fn judge_loads(&self, loads: usize, within: Duration, starts: u32) {
        let begun = u64::from(self.seen().starts - starts);
        let replicas = u64::try_from(self.plan.replicas.len()).unwrap_or(u64::MAX);
        let most = (within.as_secs() / LOAD_INTERVAL + 2) * replicas + 2 * begun;
        if u64::try_from(loads).unwrap_or(u64::MAX) > most {
            self.breaks("credentials are not loaded in a loop", format!("{loads} times in {within:?}, not {most}"));
        }
    }
}
