//! The first line of a status: is all well, in words.

use super::report::{Basis, Health, HeldDrain, Last, RecordedDrain, State as Word};
use super::state::State;
use crate::fact::Category;
use jiff::Timestamp;

/// Number of Nodes that a sentence names.
const MAX_NAMED: usize = 3;

/// The phases of the service's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Starting,
    Ready,
    Stopping,
}

/// Returns what the first line of one replica is made of.
pub(super) fn basis(
    state: &State,
    condition: Condition,
    (failing, unwatched): (Option<Category>, bool),
    now: Timestamp,
) -> Basis {
    let drains = state.drains().filter(|drain| drain.outcome.is_none());
    let mut blocked = drains.clone().filter(|drain| drain.is_blocked);
    let (failed, last_failed) = state.failures.recent(now);
    Basis {
        replicas: 1,
        starting: usize::from(condition == Condition::Starting),
        stopping: usize::from(condition == Condition::Stopping),
        silent: 0,
        unasked: true,
        unwatched: usize::from(unwatched),
        recorded: state.recorded(now),
        queue: failing.map(|category| category.to_string()),
        acted: state.running(),
        troubled: state.troubled(),
        denied: state.denied(),
        draining: drains.count(),
        blocked: blocked.clone().count(),
        held: blocked.find_map(|drain| {
            let (pod, by) = drain.held()?;
            Some(HeldDrain { node: drain.node().to_owned(), pod: pod.to_owned(), by: by.to_owned() })
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
    let Basis { replicas, starting, stopping, silent, queue, acted, troubled, draining, blocked, recorded, .. } = basis;
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
    if let Some((drain, held)) = recorded.iter().find_map(|drain| Some((drain, drain.blocked.as_deref()?))) {
        let may_be_elsewhere = basis.unasked || *silent > 0;
        let who = if may_be_elsewhere { "another replica acts on it, or did" } else { "no replica acts on it" };
        let held = held.trim_end_matches(['.', '…']);
        let text = format!("The drain of {} is blocked; {who}. {held}.", drain.node);
        return (Word::Blocked, text);
    }
    if basis.denied > 0 {
        let number = are(basis.denied, "notice");
        let text = format!("{number} not confirmed by AWS. Until it confirms them, their nodes are not drained.");
        return (Word::Blocked, text);
    }
    if let Some(category) = queue {
        return (Word::Failed, format!("The queue can't be read. New notices are not seen ({category})."));
    }
    if basis.unwatched > 0 {
        return (Word::Failed, "The Nodes can't be watched. What others do with them is not seen.".to_owned());
    }
    if *silent > 0 {
        let do_not = if *silent == 1 { "does not answer" } else { "do not answer" };
        let known = match recorded.len() {
            0 => String::new(),
            number => format!(" By the records on the Nodes, {} being drained.", are(number, "other node")),
        };
        let text = format!("{silent} of {replicas} replicas {do_not}. What they hold is not shown.{known}");
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
    match (acted, recorded.len()) {
        (1.., others) => {
            let (number, noun, done) =
                if *draining > 0 { (draining, "node", "drained") } else { (acted, "notice", "acted on") };
            let others = if others > 0 && basis.unasked {
                format!(" {} drained by other replicas.", are(others, "other node"))
            } else {
                String::new()
            };
            (Word::Working, format!("{} being {done}. {goes}{others}", are(*number, noun)))
        }
        (0, others @ 1..) if basis.unasked => {
            let text = format!(
                "This replica drains nothing; {} drained by other replicas, by the records on the Nodes.",
                are(others, "node")
            );
            (Word::Working, text)
        }
        (0, 1..) => (Word::Working, unowned(recorded)),
        (0, 0) => (Word::Ok, well(basis)),
    }
}

/// Describes drains that no replica acts on.
fn unowned(recorded: &[RecordedDrain]) -> String {
    let named = recorded.iter().take(MAX_NAMED).map(|drain| &*drain.node).collect::<Vec<_>>().join(", ");
    let more = match recorded.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "No replica acts on a drain on record: {named}{more}. It ended before a restart, or continues when its notice is received again."
    )
}

/// Describes that nothing is done.
fn well(basis: &Basis) -> String {
    let last = basis.last_end.as_ref().map_or_else(String::new, |Last { name, at, .. }| {
        format!("; the last interruption, that of {name}, ended {}", at.strftime("%Y-%m-%d %H:%M UTC"))
    });
    if basis.unasked {
        return format!(
            "No node is being drained{last}. What other replicas wait for, and what has failed there, is not known here."
        );
    }
    format!("All is well. Nothing is being drained{last}.")
}

/// Returns the number with the noun, and the verb that fits.
fn are(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun} is") } else { format!("{number} {noun}s are") }
}
