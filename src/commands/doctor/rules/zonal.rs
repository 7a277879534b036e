//! The rule for zonal shifts, which are no notices.

use super::{commands, event, may_come, sns_may_send};
use crate::cli::settings::Settings;
use crate::commands::doctor::arn::queue_arn;
use crate::commands::doctor::check::{Area, Check, few};
use crate::commands::doctor::readings::{EventRules, Readings};
use crate::pipeline::event::{SHIFT_BEGINS, SHIFT_ENDS, SHIFT_SOURCE};
use crate::pipeline::interruption::ShiftedResources;
use serde_json::{Value, json};

const NAME: &str = "zonal-shift";

/// Returns the names of the events, if the settings ask for them.
fn names(settings: &Settings) -> impl Iterator<Item = &'static str> {
    let wanted = settings.policy().waits.zonal_shift != ShiftedResources::None;
    SHIFT_BEGINS.into_iter().chain(SHIFT_ENDS).filter(move |_| wanted)
}

/// Returns the events, if the settings ask for them.
pub(super) fn events(settings: &Settings) -> impl Iterator<Item = Value> {
    names(settings).map(|name| event(SHIFT_SOURCE, name, &json!({})))
}

/// Judges whether the events reach the queue, if the settings ask for them.
pub(super) fn judge(settings: &Settings, readings: &Readings, rules: &EventRules) -> Option<Check> {
    names(settings).next()?;
    let comes = |name: &&str| may_come(rules, &event(SHIFT_SOURCE, name, &json!({})));
    let missing: Vec<&str> = names(settings).filter(|name| !comes(name)).collect();
    let arn = queue_arn(readings.queue.as_ref().ok(), &settings.queue_url).unwrap_or_default();
    Some(if missing.is_empty() {
        Area::Rules.ok(NAME, "rules send the events of zonal shifts")
    } else if !rules.complete || sns_may_send(readings, &arn) {
        Area::Rules.skipped(NAME, "None of the rules that could be read sends all events of zonal shifts.")
    } else {
        let pattern = json!({ "source": [SHIFT_SOURCE], "detail-type": missing }).to_string();
        Area::Rules.warning(
            NAME,
            format!("No rule sends: {}. Drains in other zones don't wait, or wait for six hours.", few(&missing)),
            format!(
                "Set ZonalShift of the stack or zonal_shift of the module to true, create a rule, or remove --zonal-shift:\n{}",
                commands(NAME, &pattern, &arn)
            ),
        )
    })
}
