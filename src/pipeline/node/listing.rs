//! What EC2 lists: scheduled changes and the ends of Capacity Blocks, as messages announce them, and failing status checks.
//!
//! One query covers the account in its region, as the events do. The answer is small, because it has only what is announced.

use super::Node;
use super::replacement::is_replaced;
use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::event::{
    CapacityBlock, Detail, Identity, InstanceId, Notice, NoticeKind, NoticeTime, STATUS_CHECKS,
};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{
    CapacityReservation, CapacityReservationType, EventCode, Filter, InstanceStatus, InstanceStatusEvent,
    InstanceStatusSummary, SummaryStatus,
};
use jiff::{SignedDuration, Timestamp};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::Instant;

/// Number of entries asked for in one answer: the maximum that EC2 allows.
const PAGE: i32 = 1000;

const STATUS: Operation = Operation::new("ec2", "DescribeInstanceStatus");
const RESERVATIONS: Operation = Operation::new("ec2", "DescribeCapacityReservations");

/// Prefixes of the description of a change that needs no more action. EC2 lists it for up to a week.
const OVER: [&str; 2] = ["[Completed]", "[Canceled]"];

/// Statuses of a check that fails or that EC2 cannot judge. One that is not applicable counts as passed.
const NOT_PASSING: [SummaryStatus; 3] =
    [SummaryStatus::Impaired, SummaryStatus::InsufficientData, SummaryStatus::Initializing];

/// The status checks of all running instances that do not pass.
#[derive(Debug, Default)]
pub struct StatusChecks {
    /// A notice of each check that has failed for a while.
    pub notices: Vec<Notice>,
    /// The instances with a failing check, for however short a time.
    pub failing: HashSet<InstanceId>,
    /// The checks without a result: EC2 has no data, or they have not failed for long enough.
    unclear: HashSet<(InstanceId, &'static str)>,
}

/// Minimum time for which a check must fail: during a reboot it fails for some minutes.
const FAILING_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Minimum age of a mark that an answer of EC2 may withdraw: the answer may be older than another replica's.
const MARK_AGE: SignedDuration = SignedDuration::from_mins(1);

/// Asks EC2 what it lists.
#[derive(Clone, Debug)]
pub struct Listing {
    client: Client,
    gate: Gate<AwsClass>,
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
        let each = |status: InstanceStatus, instance: InstanceId| {
            let events = status.events.unwrap_or_default();
            notices.extend(events.iter().filter_map(|event| change(event, &instance, now)));
        };
        self.statuses(filter, each).await?;
        Ok(notices)
    }

    /// Returns the status checks of all running instances that do not pass; `now` becomes the time of their notices.
    ///
    /// # Errors
    /// As [`Listing::changes`].
    pub async fn status_checks(&self, now: Timestamp) -> Result<StatusChecks, AwsError> {
        let mut checks = StatusChecks::default();
        for which in STATUS_CHECKS {
            // An instance must match all filters of a call.
            let filter = Filter::builder().name(format!("{which}-status.status"));
            let words = NOT_PASSING.map(|status| status.as_str().to_owned());
            let filter = filter.set_values(Some(words.into())).build();
            let each = |status: InstanceStatus, instance: InstanceId| {
                let since = failing_since(&status, which);
                let is_old = since.is_none_or(|since| now.duration_since(since) >= FAILING_FOR);
                let fails = summary(&status, which) == Some(&SummaryStatus::Impaired);
                if fails {
                    checks.failing.insert(instance.clone());
                }
                if fails && is_old {
                    let identity = Identity::StatusCheck { check: which, since, instance: instance.clone() };
                    checks.notices.push(Notice::new(
                        identity,
                        instance,
                        NoticeTime::Seen(now),
                        Detail::StatusCheck(which),
                    ));
                } else {
                    checks.unclear.insert((instance, which));
                }
            };
            self.statuses(filter, each).await?;
        }
        Ok(checks)
    }

    /// Passes each status of a running instance that the filter matches to `each`.
    async fn statuses(&self, filter: Filter, mut each: impl FnMut(InstanceStatus, InstanceId)) -> Result<(), AwsError> {
        let mut page = None;
        loop {
            let request = self.client.describe_instance_status().filters(filter.clone()).max_results(PAGE);
            let request = request.set_next_token(page.take());
            let by = Instant::now() + CALL_TIMEOUT;
            let class = AwsClass::Describe;
            let answer = self.gate.aws(STATUS, "all instances", class, by, || request.send()).await?;
            for status in answer.instance_statuses.unwrap_or_default() {
                if let Some(instance) = status.instance_id.as_deref().and_then(InstanceId::new) {
                    each(status, instance);
                }
            }
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(());
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
            let class = AwsClass::Describe;
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

/// Returns the notice of one change; `None` without an id and a code, which identify it.
fn change(event: &InstanceStatusEvent, instance: &InstanceId, now: Timestamp) -> Option<Notice> {
    let (id, code) = (event.instance_event_id()?, event.code()?);
    let description = event.description().unwrap_or_default();
    let over = OVER.iter().any(|prefix| description.starts_with(prefix));
    let start = event.not_before().and_then(timestamp);
    Some(Notice::listed((id, code.as_str()), instance.clone(), start, over, now))
}

/// Returns the status of the check.
fn summary<'a>(status: &'a InstanceStatus, which: &str) -> Option<&'a SummaryStatus> {
    match which {
        "system" => status.system_status()?.status(),
        "instance" => status.instance_status()?.status(),
        _ => status.attached_ebs_status()?.status(),
    }
}

/// Returns since when the check has failed, in whole seconds.
fn failing_since(status: &InstanceStatus, which: &str) -> Option<Timestamp> {
    let of =
        |summary: &InstanceStatusSummary| summary.details().iter().find_map(|detail| detail.impaired_since().copied());
    let since = match which {
        "system" => status.system_status().and_then(of),
        "instance" => status.instance_status().and_then(of),
        _ => {
            let volumes = status.attached_ebs_status()?;
            volumes.details().iter().find_map(|detail| detail.impaired_since().copied())
        }
    };
    since.as_ref().and_then(timestamp)
}

/// Returns the withdrawals of the checks that have left marks on these Nodes, and that were not among `checks` when EC2 was queried at
/// `asked`. A Node that its group replaces is terminated, whatever its checks report.
#[must_use]
pub fn passing_checks(nodes: &[Arc<Node>], checks: &StatusChecks, asked: Timestamp) -> Vec<Notice> {
    let mut passing = Vec::new();
    for node in nodes.iter().filter(|node| !is_replaced(node, asked)) {
        let is_old = |since: Option<Timestamp>| since.is_some_and(|since| asked.duration_since(since) >= MARK_AGE);
        for (_, mark) in node.record.notices().filter(|(_, mark)| is_old(mark.since)) {
            let Some(identity) = Identity::of_check(&mark.message, &node.instance) else { continue };
            let Identity::StatusCheck { check, .. } = identity else { continue };
            let is_unclear = checks.unclear.contains(&(node.instance.clone(), check));
            if !is_unclear && checks.notices.iter().all(|failing| failing.identity != identity) {
                let withdrawn = Detail::TakenBack(NoticeKind::StatusCheck);
                passing.push(Notice::new(identity, node.instance.clone(), NoticeTime::Seen(asked), withdrawn));
            }
        }
    }
    passing
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
