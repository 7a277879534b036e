//! The first line of a status: is all well, in words.

use super::report::{Health, State as Word};
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

/// Says the worst that is so: a short sentence, and then others.
pub(super) fn health(state: &State, condition: Condition, failing: Option<Category>, now: Timestamp) -> Health {
    let (word, text) = said(state, condition, failing, now);
    Health { state: word, text }
}

fn said(state: &State, condition: Condition, failing: Option<Category>, now: Timestamp) -> (Word, String) {
    let drains = state.drains().filter(|drain| drain.outcome.is_none());
    let number = drains.clone().count();
    // Most budgets allow an eviction as soon as another pod is Ready: that is no news.
    let then = now.checked_sub(MIN_BLOCKED_TIME).unwrap_or(now);
    let mut blocked = drains.filter_map(|drain| drain.held_since(then).map(|held| (drain, held)));
    if let Some((drain, (pod, by))) = blocked.next() {
        let (others, node, by) = (blocked.count(), drain.node(), by.trim_end_matches('.'));
        let goes_on = match number - 1 - others {
            0 => String::new(),
            1 => " 1 other drain goes on.".to_owned(),
            more => format!(" {more} other drains go on."),
        };
        let text = match others {
            0 => format!("The drain of {node} is blocked. {pod} is held back: {by}.{goes_on}"),
            others => format!("{} drains are blocked. {pod} on {node} is held back: {by}.{goes_on}", others + 1),
        };
        return (Word::Blocked, text);
    }
    if let Some(category) = failing {
        return (Word::Failed, format!("The queue can't be read. New notices are not seen ({category})."));
    }
    match condition {
        Condition::Starting => {
            let text = "Starting. The Nodes are not listed yet, or the queue has not answered yet.";
            return (Word::Unready, text.to_owned());
        }
        Condition::Stopping => {
            return (Word::Unready, "Shutting down. What is not done yet goes to another replica.".to_owned());
        }
        Condition::Ready => {}
    }
    if let (failed @ 1.., Some((name, outcome))) = state.failures(now) {
        let failed = if failed == 1 { "1 interruption".to_owned() } else { format!("{failed} interruptions") };
        let drained = if number > 0 { format!(" {} being drained.", are(number, "node")) } else { String::new() };
        let text = format!("{failed} failed in the last hour. The last was that of {name} ({outcome}).{drained}");
        return (Word::Failed, text);
    }
    let goes = "All goes as it should.";
    match (state.running(), state.last_end()) {
        (1.., _) if number > 0 => (Word::Working, format!("{} being drained. {goes}", are(number, "node"))),
        (running @ 1.., _) => (Word::Working, format!("{} acted on. {goes}", are(running, "notice"))),
        (0, Some(entry)) => {
            let end = entry.end().map(|end| end.at.strftime("%Y-%m-%d %H:%M UTC").to_string()).unwrap_or_default();
            let text = format!(
                "All is well. Nothing is being drained; the last interruption, that of {}, ended {end}.",
                entry.name()
            );
            (Word::Ok, text)
        }
        (0, None) => (Word::Ok, "All is well. Nothing is being drained.".to_owned()),
    }
}

/// Returns the number with the noun, and the verb that fits.
fn are(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun} is") } else { format!("{number} {noun}s are") }
}
