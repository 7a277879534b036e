//! EC2's own events: a spot instance interrupted or at risk, a change of state, a capacity reservation's end, a fleet that shrinks.

use super::wire::{At, Head, Text, detail, quote};
use super::{
    CapacityBlock, Detail, Identity, IgnoreReason, InstanceAction, InstanceState, Malformed, Notice, NoticeTime, Parsed,
};
use jiff::Timestamp;
use serde::Deserialize;
use std::time::Duration;

/// The fields of the details. Each detail has the instance or the reservation, and some of the other fields.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Fields<'a> {
    #[serde(borrow)]
    instance_id: Text<'a>,
    #[serde(borrow)]
    instance_action: Text<'a>,
    #[serde(borrow)]
    state: Text<'a>,
    #[serde(borrow)]
    instance_termination_time: Text<'a>,
    #[serde(borrow)]
    sub_type: Text<'a>,
    #[serde(borrow)]
    capacity_reservation_id: Text<'a>,
    #[serde(borrow)]
    end_date: Text<'a>,
}

/// Times before the end of a Capacity Block at which EC2 starts to terminate its instances: those of `UltraServers`, and the others.
const BLOCK_LEADS: [Duration; 2] = [Duration::from_hours(1), Duration::from_mins(30)];

/// Time between the warning of a Capacity Block's end and the first terminations.
const BLOCK_WARNING: Duration = Duration::from_mins(10);

/// Prefixes of the instance types of `UltraServers`.
const ULTRA_SERVERS: [&str; 2] = ["p6e-", "trn2u."];

/// `EC2 Spot Instance Interruption Warning`.
pub(super) fn spot(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    let action = match fields.instance_action.get() {
        Some("hibernate") => InstanceAction::Hibernate,
        Some("stop") => InstanceAction::Stop,
        // The instance is interrupted in two minutes, whatever the action is. Termination is the worst case, and its drain suits every other
        // action.
        _ => InstanceAction::Terminate,
    };
    fields.notice(head, Detail::Spot { action })
}

/// `EC2 Fleet Instance Change` and `EC2 Spot Fleet Instance Change`: the fleet interrupts a spot instance because it needs fewer.
pub(super) fn fleet(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    match fields.sub_type.text(At("detail.", "sub-type"))? {
        "termination_notified" => fields.notice(head, Detail::Spot { action: InstanceAction::Terminate }),
        // Launches and terminations that are over.
        _ => Ok(Parsed::Ignored(IgnoreReason::OtherFleetChange)),
    }
}

/// `EC2 Instance Rebalance Recommendation`.
pub(super) fn rebalance(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    detail::<Fields<'_>>(body)?.notice(head, Detail::Rebalance)
}

/// `EC2 Instance State-change Notification`.
pub(super) fn state_change(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    let at = At("detail.", "state");
    let state = match fields.state.text(at)? {
        "pending" | "running" => return Ok(Parsed::Ignored(IgnoreReason::HarmlessState)),
        "stopping" => InstanceState::Stopping,
        "stopped" => InstanceState::Stopped,
        "shutting-down" => InstanceState::ShuttingDown,
        "terminated" => InstanceState::Terminated,
        other => return Err(at.bad(format!("{} is not an instance state", quote(other)))),
    };
    fields.notice(head, Detail::StateChange { state })
}

/// `EC2 Capacity Reservation Instance Interruption Warning`.
pub(super) fn capacity_reservation(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    // Best effort: without this time the notice's time + 120 s counts. One AWS page documents the field as the end, another one, for
    // capacity blocks, as the current time. A time that is not after the notice would be a missed deadline.
    let terminates_at = fields.instance_termination_time.time_if_any().filter(|end| *end > head.at);
    fields.notice(head, Detail::CapacityReservation { terminates_at })
}

/// `Capacity Block Expiration Warning`.
pub(super) fn capacity_block(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    let at = At("detail.", "capacity-reservation-id");
    let reservation = fields.capacity_reservation_id.name(at)?.to_owned();
    // It becomes part of an identity: a forged one must not match other notices' marks.
    if !reservation.starts_with("cr-") || reservation.contains('/') {
        return Err(at.bad(format!("{} is not the id of a reservation", quote(&reservation))));
    }
    let ends = fields.end_date.time_if_any();
    // The event does not show whether the block has UltraServers, but it comes before the terminations.
    let begins = |lead: Duration| ends?.checked_sub(lead).ok().filter(|begins| *begins > head.at);
    let terminates_at = BLOCK_LEADS.into_iter().find_map(begins);
    let terminates_at = terminates_at.or_else(|| head.at.checked_add(BLOCK_WARNING).ok()).unwrap_or(head.at);
    Ok(Parsed::Block(CapacityBlock { reservation, ends, terminates_at, time: NoticeTime::Announced(head.at) }))
}

impl CapacityBlock {
    /// Returns the end of a block that EC2 lists, with instances of this type.
    #[must_use]
    pub fn listed(reservation: &str, instance_type: &str, ends: Timestamp, at: Timestamp) -> Self {
        let [ultra, other] = BLOCK_LEADS;
        let lead = if ULTRA_SERVERS.iter().any(|prefix| instance_type.starts_with(prefix)) { ultra } else { other };
        let terminates_at = ends.checked_sub(lead).unwrap_or(ends);
        Self { reservation: reservation.to_owned(), ends: Some(ends), terminates_at, time: NoticeTime::Seen(at) }
    }

    /// Returns the time at which AWS warns of the end.
    #[must_use]
    pub fn warned_at(&self) -> Timestamp {
        warned_before(self.terminates_at)
    }

    /// Returns the time at which AWS warns of the end of the notice's block; `None` if the notice is not about a block.
    #[must_use]
    pub fn warned_of(notice: &Notice) -> Option<Timestamp> {
        match (&notice.identity, &notice.detail) {
            (Identity::Block { .. }, Detail::CapacityReservation { terminates_at }) => terminates_at.map(warned_before),
            _ => None,
        }
    }
}

fn warned_before(terminates_at: Timestamp) -> Timestamp {
    terminates_at.checked_sub(BLOCK_WARNING).unwrap_or(terminates_at)
}

impl Fields<'_> {
    fn notice(&self, head: &Head<'_>, detail: Detail) -> Result<Parsed, Malformed> {
        let instance = self.instance_id.instance(At("detail.", "instance-id"))?;
        let identity = head.identity(detail.kind())?;
        Ok(Parsed::Notices(Notice::new(identity, instance, NoticeTime::Announced(head.at), detail).into()))
    }
}
