//! Events of Amazon Application Recovery Controller: traffic is shifted away from an Availability Zone, or no longer.

use super::wire::{At, Head, List, Object, Text, quote, root};
use super::{IgnoreReason, Malformed, Parsed, ZonalShift};
use serde::Deserialize;

/// Source of the events.
pub const SHIFT_SOURCE: &str = "aws.arc-zonal-shift";

/// Events that start or continue a shift. Practice runs are left out, because they only test a shift.
pub const SHIFT_BEGINS: [&str; 4] =
    ["Autoshift In Progress", "FIS Experiment Autoshift In Progress", "Manual Shift Started", "Manual Shift Updated"];

/// Events that end a shift.
pub const SHIFT_ENDS: [&str; 4] = [
    "Autoshift Completed",
    "FIS Experiment Autoshift Completed",
    "FIS Experiment Autoshift Canceled",
    "Manual Shift Canceled",
];

/// Maximum length of a zone's id in bytes, as in the API.
const MAX_ZONE: usize = 20;

/// Maximum number of resources that are read: an event names one.
const MAX_RESOURCES: usize = 10;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    resources: List<Text<'a>>,
    #[serde(borrow)]
    detail: Object<Fields<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    metadata: Object<Metadata<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    away_from: Text<'a>,
}

/// One of [`SHIFT_BEGINS`].
pub(super) fn begins(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    read(body, head, true)
}

/// One of [`SHIFT_ENDS`].
pub(super) fn ends(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    read(body, head, false)
}

fn read(body: &str, head: &Head<'_>, begins: bool) -> Result<Parsed, Malformed> {
    let event: Event<'_> = root(body)?;
    let resources = match &event.resources {
        List::Is(resources) => resources.as_slice(),
        List::Missing => &[],
        List::Other(found) => return Err(At("", "resources").bad(format!("{found} where a list is expected"))),
    };
    if resources.is_empty() {
        // A notification for observers of all of AWS's shifts: no resource of the account is shifted.
        return Ok(Parsed::Ignored(IgnoreReason::OtherShift));
    }
    let names = resources.iter().take(MAX_RESOURCES).map(|name| name.arn(At("", "resources")).map(str::to_owned));
    let resources = names.collect::<Result<Vec<_>, _>>()?;
    let metadata = event.detail.required(At("", "detail"))?.metadata.required(At("detail.", "metadata"))?;
    let at = At("detail.metadata.", "awayFrom");
    let away_from = metadata.away_from.name(at)?;
    let is_id = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if away_from.len() > MAX_ZONE || !away_from.bytes().all(is_id) {
        return Err(at.bad(format!("{} is not the id of an Availability Zone", quote(away_from))));
    }
    Ok(Parsed::Shift(ZonalShift { away_from: away_from.to_owned(), resources, at: head.at, begins }))
}
