//! The answer for people: aligned, within a hundred columns.

use super::reasons::span;
use super::view::{
    Hold, HookView, MarksView, MessageClass, Moment, NodeView, NoticeView, Place, PlannedWaitView, PodView, Simulation,
    TargetGroupView, Turn, ZONAL_SHIFT,
};
use crate::cli::text::{push_hanging, push_table};
use crate::fact::NoticeKind;
use std::fmt::Write;
use std::time::Duration;

/// Number of columns of a line's label.
const LABEL: usize = 10;

/// The answer.
pub(super) fn of(simulation: &Simulation) -> String {
    let mut text = Text(String::new());
    let message = &simulation.message;
    if message.is == MessageClass::Ignored {
        let (what, reason) = (message.what.as_deref().unwrap_or_default(), message.reason.unwrap_or_default());
        if reason == ZONAL_SHIFT {
            text.line("Message", &format!("zonal shift: {what}"));
            text.line("Then", "it is noted on up to three Nodes, and deleted");
        } else if reason == NoticeKind::NodeCondition.as_str() {
            text.line("Notice", &format!("none: {what}"));
        } else {
            text.line("Message", &format!("ignored ({reason}): {what}"));
            text.line("Then", "it is counted and deleted");
        }
        return text.0;
    }
    if message.made.is_some() {
        text.line("Message", "created as AWS would send it now; ebbtide send puts one on a queue");
    }
    if simulation.dry_run {
        text.line("Dry run", "the API server only checks patches and evictions; hooks are not touched");
    }
    for (n, notice) in simulation.notices.iter().enumerate() {
        if simulation.notices.len() > 1 {
            let _ =
                writeln!(text.0, "{}Notice {} of {}", if n > 0 { "\n" } else { "" }, n + 1, simulation.notices.len());
        }
        text.notice(notice);
    }
    text.0
}

struct Text(String);

impl Text {
    /// A line that begins with its subject; further lines are indented.
    fn line(&mut self, label: &str, text: &str) {
        let _ = write!(self.0, "{label:<LABEL$}");
        push_hanging(&mut self.0, LABEL, text);
    }

    /// A table below its title.
    fn table(&mut self, title: &str, rows: &[Vec<String>]) {
        let _ = writeln!(self.0, "\n{title}");
        push_table(&mut self.0, 2, rows);
    }

    fn notice(&mut self, notice: &NoticeView) {
        let test = if notice.test { " (a test)" } else { "" };
        self.line("Notice", &format!("{} about {}{test}: {}", notice.kind, notice.instance, notice.summary));
        if let Some(time) = notice.time {
            self.line("Time", &format!("{}, by AWS's clock", when(time)));
        }
        let node = notice.node.as_ref().map_or_else(|| "no Node of this cluster has this instance".to_owned(), node);
        self.line("Node", &node);
        if let Some(owner) = &notice.owner {
            let whose = match owner.ours {
                Some(true) => "ours",
                Some(false) => "not ours",
                None => "not known",
            };
            self.line("Owner", &format!("{whose}: {}", owner.why));
        }
        self.line("Action", &format!("{} ({})", notice.action, notice.setting));
        if let Some(deadline) = &notice.deadline {
            let hard = if deadline.hard { "hard, the capacity ends then" } else { "soft, our patience ends then" };
            self.line("Deadline", &format!("{}, {hard}: {}", when(deadline.moment), deadline.why));
        }
        if let Some(waits) = &notice.waits {
            let until = when(waits.until);
            self.line("Waits", &format!("until {}, {until} at the latest; else {}", waits.what, waits.then));
        }
        if let Some(end) = &notice.ends {
            self.line("Ends", &format!("{}: {}", end.outcome, end.why));
        }
        if let Some(hook) = &notice.hook {
            self.hook(hook);
        }
        if let Some(begin) = &notice.evictions_begin {
            self.line("Evictions", &format!("begin {} ({})", when(begin.moment), begin.why));
        }
        for note in &notice.notes {
            self.line("Note", note);
        }
        if let Some(marks) = &notice.marks {
            self.marks(marks);
        }
        self.pods(notice);
        self.planned_waits(&notice.planned_waits);
        self.target_groups(&notice.target_groups);
    }

    fn planned_waits(&mut self, waits: &[PlannedWaitView]) {
        let row = |view: &PlannedWaitView| {
            let place = match view.place {
                Place::BeforeEvictions => "before evictions",
                Place::BeforeCompletion => "before the completion",
                Place::AfterDrain => "after the drain",
            };
            let state = match (&view.not_because, view.at_most_seconds) {
                (Some(why), _) => format!("not made: {why}"),
                (None, at_most) => {
                    let at_most = span(Duration::from_secs(at_most.unwrap_or_default()));
                    format!("until {}, {at_most} at most ({})", view.until, view.setting)
                }
            };
            vec![place.to_owned(), view.wait.to_string(), state]
        };
        if !waits.is_empty() {
            self.table("Waits, side by side", &waits.iter().map(row).collect::<Vec<_>>());
        }
    }

    fn target_groups(&mut self, groups: &[TargetGroupView]) {
        let row = |group: &TargetGroupView| {
            let done = match (group.deregistered, group.awaited) {
                (true, true) => "deregistered, and awaited",
                (true, false) => "deregistered",
                (false, _) => "awaited",
            };
            vec![group.name.clone(), done.to_owned(), group.from.clone()]
        };
        if !groups.is_empty() {
            let rows: Vec<_> = groups.iter().map(row).collect();
            self.table(
                "Target groups, as far as they list the instance or its pods (--wait-for-load-balancers)",
                &rows,
            );
        }
    }

    fn hook(&mut self, hook: &HookView) {
        let timeout = span(Duration::from_secs(hook.heartbeat_timeout_seconds));
        let waits = match &hook.assumed_because {
            None => format!(" waits {timeout} for a heartbeat"),
            Some(why) => format!("; a heartbeat timeout of {timeout} is assumed: {why}"),
        };
        self.line("Hook", &format!("{} of group {}{waits}", hook.name, hook.group));
        let beats = match (hook.heartbeats, hook.first_heartbeats.as_slice()) {
            (0, _) => "none before the deadline".to_owned(),
            (all, first) => {
                let named: Vec<_> = first.iter().map(|moment| when(*moment)).collect();
                let more = if all > first.len() { ", …" } else { "" };
                format!(
                    "{all} if the work takes all of its time, each up to a tenth earlier: {}{more}",
                    named.join(", ")
                )
            }
        };
        self.line("Beats", &beats);
        let held = match hook.held_back_seconds {
            0 => String::new(),
            seconds => format!(", {} after the drain (--complete-after)", span(Duration::from_secs(seconds))),
        };
        let well = hook.after_success.unwrap_or("nothing");
        let completion = match hook.after_failure {
            Some(badly) if badly == well => {
                format!("with {well}{held}, whether or not the work is done by the deadline")
            }
            Some(badly) => {
                format!("with {well} when the work is done{held}; with {badly} if it is not by the deadline")
            }
            None => {
                format!("with {well} when the work is done{held}; left to its own timeout if it is not by the deadline")
            }
        };
        self.line("Complete", &completion);
    }

    fn marks(&mut self, marks: &MarksView) {
        let mut rows = Vec::new();
        let mut row = |what: &str, name: String| rows.push(vec![what.to_owned(), name]);
        if marks.cordon {
            row("cordon", "spec.unschedulable".to_owned());
        }
        for key in marks.annotations.keys() {
            row("annotation", key.clone());
        }
        for (key, value) in &marks.labels {
            row("label", format!("{key}={value}"));
        }
        for taint in &marks.taints {
            row("taint", taint.clone());
        }
        let back =
            marks.taken_back.map(|at| format!("; removed {} if no interruption follows", when(at))).unwrap_or_default();
        if rows.is_empty() {
            self.line("Marks", "all are on the Node already");
        } else {
            self.table(&format!("Marks on the Node, in one patch{back}"), &rows);
        }
    }

    fn pods(&mut self, notice: &NoticeView) {
        if !notice.pods.is_empty() {
            let head = ["tier", "evicted by", "grace", "or deleted", "pod"].map(str::to_owned).to_vec();
            let rows: Vec<_> = std::iter::once(head).chain(notice.pods.iter().map(pod)).collect();
            self.table(&format!("Pods that leave ({}), in this order", notice.pods.len()), &rows);
            for pod in notice.pods.iter().filter(|pod| !pod.held_back_by.is_empty()) {
                let by = pod.held_back_by.iter().map(Hold::to_string).collect::<Vec<_>>().join(", ");
                let _ = writeln!(self.0, "  ! {}/{} is held back now: {by}", pod.namespace, pod.name);
            }
        } else if notice.node.is_some() && notice.ends.is_none() && notice.action.drains() {
            self.line("Pods", "no pod has to go");
        }
        if !notice.stay.is_empty() {
            let rows: Vec<_> = notice
                .stay
                .iter()
                .map(|pod| vec![format!("{}/{}", pod.namespace, pod.name), pod.why.to_owned()])
                .collect();
            self.table(&format!("Pods that stay ({})", rows.len()), &rows);
        }
        if !notice.budgets.is_empty() {
            let count = |allows: i32, pods: usize| format!("allows {allows} now, {pods} to go");
            let rows = notice.budgets.iter().map(|budget| {
                let blocks = if budget.blocks { "blocks" } else { "" };
                vec![
                    blocks.to_owned(),
                    count(budget.allows, budget.pods),
                    format!("{}/{}", budget.namespace, budget.name),
                ]
            });
            self.table("Budgets", &rows.collect::<Vec<_>>());
        }
    }
}

fn node(node: &NodeView) -> String {
    let ready = if node.ready { "Ready" } else { "not Ready" };
    let cordoned = if node.cordoned { ", cordoned already" } else { "" };
    let pool = node.pool.as_ref().map(|pool| format!(", in the pool {pool}")).unwrap_or_default();
    format!("{}, {ready}{cordoned}{pool}", node.name)
}

fn pod(pod: &PodView) -> Vec<String> {
    let none = || "–".to_owned();
    let evicted = match (pod.tier, pod.evicted_by) {
        (Turn::Going, _) => "terminating".to_owned(),
        (_, None) => "never".to_owned(),
        (_, Some(moment)) if moment.in_seconds <= 0 => "at once".to_owned(),
        (_, Some(moment)) => when(moment),
    };
    vec![
        pod.tier.to_string(),
        evicted,
        span(Duration::from_secs(pod.grace_seconds)),
        pod.deleted_at.map_or_else(none, when),
        format!("{}/{}", pod.namespace, pod.name),
    ]
}

/// A time: `in 1m 52s (21:04:10Z)`, with its date where that is not near.
fn when(moment: Moment) -> String {
    let away = Duration::from_secs(moment.in_seconds.unsigned_abs());
    let form = if away < Duration::from_hours(12) { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" };
    let at = moment.at.strftime(form);
    match moment.in_seconds {
        0 => format!("now ({at})"),
        ahead if ahead > 0 => format!("in {} ({at})", span(away)),
        _ => format!("{} ago ({at})", span(away)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at: &str, in_seconds: i64) -> Moment {
        Moment { at: at.parse().unwrap(), in_seconds }
    }

    #[test]
    fn moments_are_told_by_both_clocks() {
        assert_eq!(when(moment("2026-11-21T21:04:10Z", 112)), "in 1m 52s (21:04:10Z)");
        assert_eq!(when(moment("2026-11-21T21:04:10Z", -8)), "8s ago (21:04:10Z)");
        assert_eq!(when(moment("2026-11-21T21:04:10Z", 0)), "now (21:04:10Z)");
        assert_eq!(when(moment("2026-12-05T18:30:00Z", 1_209_600)), "in 14d (2026-12-05 18:30:00Z)");
    }

    #[test]
    fn a_long_line_goes_on_under_itself() {
        let mut text = Text(String::new());
        text.line("Note", &["word"; 30].join(" "));
        let lines: Vec<_> = text.0.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.chars().count() <= crate::cli::text::WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("          word"), "{lines:?}");
    }
}
