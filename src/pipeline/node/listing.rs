//! What EC2 lists by itself of the notices that messages bring: scheduled changes, and the ends of Capacity Blocks.
//!
//! One question covers the whole account in its region, as the events do; its answer has only what is announced, so it is small.

use crate::clients::gate::{AwsError, CALL_TIMEOUT, Gate, LifecycleClass, Operation};
use crate::fact::Facts;
use crate::pipeline::event::{CapacityBlock, InstanceId, Notice};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{CapacityReservation, CapacityReservationType, EventCode, Filter, InstanceStatusEvent};
use jiff::Timestamp;
use tokio::time::Instant;

/// Number of entries asked for in one answer: the maximum that EC2 allows.
const PAGE: i32 = 1000;

const STATUS: Operation = Operation::new("ec2", "DescribeInstanceStatus");
const RESERVATIONS: Operation = Operation::new("ec2", "DescribeCapacityReservations");

/// Beginnings of the description of a change that needs no action any more. EC2 lists it for up to a week.
const OVER: [&str; 2] = ["[Completed]", "[Canceled]"];

/// Asks EC2 what it lists.
#[derive(Clone, Debug)]
pub struct Listing {
    client: Client,
    gate: Gate<LifecycleClass>,
}

impl Listing {
    /// Returns a listing through `client`.
    #[must_use]
    pub fn new(client: Client, facts: Facts) -> Self {
        Self { client, gate: Gate::new(facts) }
    }

    /// Returns the notices of the scheduled changes of all running instances; `now` becomes their time. One that is over is withdrawn.
    ///
    /// # Errors
    /// If EC2 did not answer, or answered in part.
    pub async fn changes(&self, now: Timestamp) -> Result<Vec<Notice>, AwsError> {
        let codes = EventCode::values().iter().map(ToString::to_string).collect();
        let filter = Filter::builder().name("event.code").set_values(Some(codes)).build();
        let mut notices = Vec::new();
        let mut page = None;
        loop {
            let request = self.client.describe_instance_status().filters(filter.clone()).max_results(PAGE);
            let request = request.set_next_token(page.take());
            let by = Instant::now() + CALL_TIMEOUT;
            let class = LifecycleClass::Describe;
            let answer = self.gate.aws(STATUS, "all instances", class, by, || request.send()).await?;
            for status in answer.instance_statuses.unwrap_or_default() {
                let Some(instance) = status.instance_id.as_deref().and_then(InstanceId::new) else { continue };
                let events = status.events.unwrap_or_default();
                notices.extend(events.iter().filter_map(|event| change(event, &instance, now)));
            }
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(notices);
            }
        }
    }

    /// Returns the Capacity Blocks that AWS warns of before `until`. The end of another reservation ends no instance.
    ///
    /// # Errors
    /// As [`Listing::changes`].
    pub async fn ending_blocks(&self, now: Timestamp, until: Timestamp) -> Result<Vec<CapacityBlock>, AwsError> {
        let filter = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
        let filters = [filter("state", "active"), filter("end-date-type", "limited")];
        let mut blocks = Vec::new();
        let mut page = None;
        loop {
            let request = self.client.describe_capacity_reservations().set_filters(Some(filters.to_vec()));
            let request = request.max_results(PAGE).set_next_token(page.take());
            let by = Instant::now() + CALL_TIMEOUT;
            let class = LifecycleClass::Describe;
            let answer = self.gate.aws(RESERVATIONS, "all reservations", class, by, || request.send()).await?;
            let found = answer.capacity_reservations.unwrap_or_default();
            let ending = found.iter().filter_map(|reservation| block(reservation, now));
            blocks.extend(ending.filter(|block| block.warned_at() < until && block.ends > Some(now)));
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(blocks);
            }
        }
    }
}

/// Returns the notice of one change. A change without an id or a code can't be told from others.
fn change(event: &InstanceStatusEvent, instance: &InstanceId, now: Timestamp) -> Option<Notice> {
    let (id, code) = (event.instance_event_id()?, event.code()?);
    let description = event.description().unwrap_or_default();
    let over = OVER.iter().any(|prefix| description.starts_with(prefix));
    let start = event.not_before().and_then(timestamp);
    Some(Notice::listed((id, code.as_str()), instance.clone(), start, over, now))
}

fn block(reservation: &CapacityReservation, now: Timestamp) -> Option<CapacityBlock> {
    let is_block = reservation.reservation_type() == Some(&CapacityReservationType::CapacityBlock);
    let ends = reservation.end_date().and_then(timestamp).filter(|_| is_block)?;
    let instance_type = reservation.instance_type().unwrap_or_default();
    Some(CapacityBlock::listed(reservation.capacity_reservation_id()?, instance_type, ends, now))
}

/// Returns the time in whole seconds, as in messages.
fn timestamp(at: &DateTime) -> Option<Timestamp> {
    Timestamp::from_second(at.secs()).ok()
}
