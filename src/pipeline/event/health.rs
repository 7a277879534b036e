//! AWS Health's scheduled changes: maintenance, a reboot, a stop or a retirement, of one instance or of many. And the faults of instances.

use super::wire::{At, Head, List, Object, Text, detail, quote};
use super::{
    Detail, Identity, IgnoreReason, InstanceId, Malformed, Notice, NoticeTime, Notices, Parsed, ScheduledChange,
};
use jiff::Timestamp;
use serde::Deserialize;
use std::collections::HashMap;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    service: Text<'a>,
    #[serde(borrow)]
    event_type_category: Text<'a>,
    #[serde(borrow)]
    event_type_code: Text<'a>,
    #[serde(borrow)]
    event_arn: Text<'a>,
    #[serde(borrow)]
    status_code: Text<'a>,
    #[serde(borrow)]
    start_time: Text<'a>,
    #[serde(borrow)]
    affected_entities: List<Object<Entity<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entity<'a> {
    #[serde(borrow)]
    entity_value: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
}

/// The entities of an event that are instances.
struct AffectedInstances {
    /// The instances, each once, in the event's order, and whether the event no longer concerns them.
    instances: Vec<(InstanceId, bool)>,
    /// The first instance whose id can't be read.
    unreadable: Option<Malformed>,
}

/// Returns the id of the instance that an entity names: by its id, or since 2026 by its ARN
/// (`arn:PARTITION:ec2:REGION:ACCOUNT:instance/ID`). `None` for other resources.
fn named_instance(entity: &str) -> Option<&str> {
    let Some(arn) = entity.strip_prefix("arn:") else { return entity.starts_with("i-").then_some(entity) };
    let mut parts = arn.splitn(5, ':').skip(1);
    let (service, resource) = (parts.next()?, parts.nth(2)?);
    resource.strip_prefix("instance/").filter(|_| service == "ec2")
}

impl Entity<'_> {
    /// Whether the change no longer concerns the entity.
    fn is_settled(&self) -> bool {
        matches!(self.status.get(), Some("RESOLVED" | "UNIMPAIRED"))
    }
}

/// `AWS Health Event`.
pub(super) fn event(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    let fields: Fields<'_> = detail(body)?;
    let service = fields.service.text(At("detail.", "service"))?;
    let category = fields.event_type_category.text(At("detail.", "eventTypeCategory"))?;
    let is_issue = category == "issue";
    if service != "EC2" || !is_issue && category != "scheduledChange" {
        return Ok(Parsed::Ignored(IgnoreReason::NotScheduledChange));
    }
    let closed = fields.status_code.get() == Some("closed");
    let AffectedInstances { instances, unreadable } = fields.affected(closed)?;
    if instances.is_empty() {
        if let Some(unreadable) = unreadable {
            return Err(unreadable);
        }
        let why = if closed { IgnoreReason::Closed } else { IgnoreReason::NotScheduledChange };
        return Ok(Parsed::Ignored(why));
    }
    let at = At("detail.", "eventArn");
    let arn = fields.event_arn.arn(at)?;
    // Identities of other notices have none: a forged Health event must not match their marks.
    if !arn.starts_with("arn:") {
        return Err(at.bad(format!("{} is not an ARN", quote(arn))));
    }
    let code = fields.event_type_code.name(At("detail.", "eventTypeCode"))?;
    let arn = arn.to_owned();
    let identity = |arn, instance| {
        if is_issue { Identity::HealthIssue { arn, instance } } else { Identity::HealthEvent { arn, instance } }
    };
    let first = |instance: InstanceId, withdrawn| {
        let detail = Detail::ScheduledChange(ScheduledChange {
            code: code.to_owned(),
            // An announced change is worth a drain even if its time can't be read.
            // A fault's time has passed, and is no deadline.
            start: fields.start_time.time_if_any().filter(|_| !is_issue),
            hard: takes_capacity(code) && !is_issue,
            withdrawn,
            is_issue,
        });
        Notice::new(identity(arn, instance.clone()), instance, NoticeTime::Announced(head.at), detail)
    };
    Ok(Parsed::Notices(Notices { unreadable: unreadable.map(Box::new), ..Notices::new(instances, first) }))
}

impl Notice {
    /// Returns the notice of a change that EC2 lists for an instance, by its ID there and its code, such as `instance-retirement`.
    /// `withdrawn`: the change is over, or was called off.
    #[must_use]
    pub fn listed(
        (id, code): (&str, &str),
        instance: InstanceId,
        start: Option<Timestamp>,
        withdrawn: bool,
        at: Timestamp,
    ) -> Self {
        // In the form of Health's codes, which name the change's effect on the instance.
        let code = code.to_uppercase().replace('-', "_");
        let hard = takes_capacity(&code);
        let change = ScheduledChange { code, start, hard, withdrawn, is_issue: false };
        let identity = Identity::Ec2Event { id: id.to_owned(), instance: instance.clone() };
        Self::new(identity, instance, NoticeTime::Seen(at), Detail::ScheduledChange(change))
    }
}

impl Fields<'_> {
    /// Returns the affected instances. The event may be `closed`. Dedicated hosts, volumes and accounts are entities too.
    fn affected(&self, closed: bool) -> Result<AffectedInstances, Malformed> {
        let entities = match &self.affected_entities {
            List::Is(entities) => entities.as_slice(),
            // The list is optional in the schema: an event may concern the whole account.
            List::Missing => &[],
            List::Other(found) => {
                return Err(At("detail.", "affectedEntities").bad(format!("{found} where a list is expected")));
            }
        };
        let mut places = HashMap::with_capacity(entities.len());
        let mut unreadable = None;
        let mut instances: Vec<(InstanceId, bool)> = Vec::with_capacity(entities.len());
        for entity in entities {
            let Object::Is(entity) = entity else { continue };
            let Some(id) = entity.entity_value.get().and_then(named_instance) else { continue };
            let Some(instance) = InstanceId::new(id) else {
                let at = At("detail.", "affectedEntities.entityValue");
                unreadable.get_or_insert_with(|| at.bad(format!("{} is not an instance ID", quote(id))));
                continue;
            };
            let settled = closed || entity.is_settled();
            let place = *places.entry(id).or_insert(instances.len());
            match instances.get_mut(place) {
                // If two contradict each other, the one that announces the change counts.
                Some((_, both)) => *both &= settled,
                None => instances.push((instance, settled)),
            }
        }
        Ok(AffectedInstances { instances, unreadable })
    }
}

/// Whether an event with this code ends the instance's capacity when it starts.
///
/// AWS's codes consist of words: `AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED`, `AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED`,
/// `AWS_EC2_INSTANCE_STOP_SCHEDULED`, `AWS_EC2_INSTANCE_TERMINATION_SCHEDULED`, `AWS_EC2_DEDICATED_HOST_RETIREMENT_SCHEDULED`.
/// The others are reboots and maintenance of power, network or system. An unknown code counts as one of those, because a hard deadline
/// overrides disruption budgets.
fn takes_capacity(code: &str) -> bool {
    code.split('_').any(|word| matches!(word, "RETIREMENT" | "STOP" | "TERMINATION"))
}
