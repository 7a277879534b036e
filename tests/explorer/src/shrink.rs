//! Makes a story short: of all plans with one thing less, the first that breaks the same rule is the next.

use crate::plan::Plan;
use crate::world::{self, Outcome};
use std::fmt::Write;

/// Maximum number of worlds that are tried.
const MAX_TRIES: usize = 600;

/// Returns the smallest plan found that breaks the same rule, and what it shows.
#[must_use]
pub fn shrink(plan: &Plan) -> (Plan, Outcome) {
    let (mut plan, mut outcome) = (plan.clone(), world::run(plan));
    let rule = outcome.broken.as_ref().map(|broken| broken.rule);
    let mut tries = 0;
    'smaller: while rule.is_some() {
        for next in plan.smaller() {
            if next.size() >= plan.size() || tries == MAX_TRIES {
                continue;
            }
            tries += 1;
            let shown = world::run(&next);
            if shown.broken.as_ref().map(|broken| broken.rule) == rule {
                (plan, outcome) = (next, shown);
                continue 'smaller;
            }
        }
        break;
    }
    (plan, outcome)
}

/// Returns the report of a plan that breaks a rule, after shrinking it.
#[must_use]
pub fn report(plan: &Plan) -> String {
    let (plan, outcome) = shrink(plan);
    told(&plan, &outcome)
}

/// Returns the story of a world, the plan, and the rule that was broken.
#[must_use]
pub fn told(plan: &Plan, outcome: &Outcome) -> String {
    let (seed, story, flags) = (plan.seed, &outcome.story, plan.flags.args().join(" "));
    let mut text = format!("{story}\nflags: {flags}\n{plan}\n");
    if let Some(broken) = &outcome.broken {
        let _ = writeln!(text, "seed {seed} breaks \"{}\": {}", broken.rule, broken.text);
    }
    text
}
