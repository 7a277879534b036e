//! The first line of a status: is all well, in words.

use super::report::{Basis, Health, HeldDrain, Last, State as Word};
use super::state::State;
use crate::fact::Category;
use crate::telemetry::kube_events::MIN_BLOCKED_TIME;
use jiff::Timestamp;

/// The phases of the service's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Starting,
    Ready,
    Stopping,
}

/// Returns what the first line of one replica is made of.
pub(super) fn basis(state: &State, condition: Condition, failing: Option<Category>, now: Timestamp) -> Basis {
    // Most budgets allow an eviction as soon as another pod is Ready: that is no news.
    let then = now.checked_sub(MIN_BLOCKED_TIME).unwrap_or(now);
    let drains = state.drains().filter(|drain| drain.outcome.is_none());
    let mut blocked = drains.clone().filter_map(|drain| Some((drain, drain.held_since(then)?)));
    let (failed, last_failed) = state.failures.recent(now);
    Basis {
        replicas: 1,
        starting: usize::from(condition == Condition::Starting),
        stopping: usize::from(condition == Condition::Stopping),
        silent: 0,
        queue: failing.map(|category| category.to_string()),
        acted: state.running(),
        troubled: state.troubled(),
        draining: drains.count(),
        blocked: blocked.clone().count(),
        held: blocked.next().map(|(drain, (pod, by))| HeldDrain {
            node: drain.node().to_owned(),
            pod: pod.to_owned(),
            by: by.to_owned(),
        }),
        failed,
        last_failed,
        last_end: state.last_end().and_then(|entry| {
            let end = entry.end()?;
            Some(Last { name: entry.name().to_owned(), outcome: end.outcome.to_string(), at: end.at })
        }),
    }
}

/// Returns the worst state, and one or two sentences about it.
pub(super) fn health(basis: Basis) -> Health {
    let (state, text) = assess(&basis);
    Health { state, text, basis }
}

fn assess(basis: &Basis) -> (Word, String) {
    let Basis { replicas, starting, stopping, silent, queue, acted, troubled, draining, blocked, .. } = basis;
    if let (1.., Some(HeldDrain { node, pod, by })) = (blocked, &basis.held) {
        let by = by.trim_end_matches('.');
        let others = match draining.saturating_sub(*blocked) {
            0 => String::new(),
            1 => " 1 other drain continues.".to_owned(),
            more => format!(" {more} other drains continue."),
        };
        let text = match blocked {
            1 => format!("The drain of {node} is blocked. {pod} is held back: {by}.{others}"),
            _ => format!("{blocked} drains are blocked. {pod} on {node} is held back: {by}.{others}"),
        };
        return (Word::Blocked, text);
    }
    if let Some(category) = queue {
        return (Word::Failed, format!("The queue can't be read. New notices are not seen ({category})."));
    }
    if *silent > 0 {
        let do_not = if *silent == 1 { "does not answer" } else { "do not answer" };
        let text = format!("{silent} of {replicas} replicas {do_not}. What they hold is not shown.");
        return (Word::Unready, text);
    }
    if let 1.. = starting + stopping {
        let text = match (replicas, starting) {
            (0 | 1, 1..) => "Starting. The Nodes are not listed yet, or the queue has not answered yet.".to_owned(),
            (0 | 1, _) => "Shutting down. What is not done yet goes to another replica.".to_owned(),
            _ => format!("{} of {replicas} replicas start or shut down.", starting + stopping),
        };
        return (Word::Unready, text);
    }
    if let (failed @ 1.., Some(Last { name, outcome, .. })) = (basis.failed, &basis.last_failed) {
        let failed = if failed == 1 { "1 interruption".to_owned() } else { format!("{failed} interruptions") };
        let drained = if *draining > 0 { format!(" {} being drained.", are(*draining, "node")) } else { String::new() };
        let text = format!("{failed} failed in the last hour. The last was that of {name} ({outcome}).{drained}");
        return (Word::Failed, text);
    }
    let goes = match troubled {
        0 => "All goes as it should.".to_owned(),
        1 => "1 interruption has trouble, which its row names.".to_owned(),
        _ => format!("{troubled} interruptions have trouble, which their rows name."),
    };
    match (acted, &basis.last_end) {
        (1.., _) if *draining > 0 => (Word::Working, format!("{} being drained. {goes}", are(*draining, "node"))),
        (1.., _) => (Word::Working, format!("{} acted on. {goes}", are(*acted, "notice"))),
        (0, Some(Last { name, at, .. })) => {
            let at = at.strftime("%Y-%m-%d %H:%M UTC");
            let text =
                format!("All is well. Nothing is being drained; the last interruption, that of {name}, ended {at}.");
            (Word::Ok, text)
        }
        (0, None) => (Word::Ok, "All is well. Nothing is being drained.".to_owned()),
    }
}

/// Returns the number with the noun, and the verb that fits.
fn are(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun} is") } else { format!("{number} {noun}s are") }
}
