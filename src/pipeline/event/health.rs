//! AWS Health's scheduled changes: maintenance, a reboot, a stop or a retirement, of one instance or of many. And the faults of instances.

use super::wire::{At, Head, List, Object, Text, detail, quote};
use super::{Detail, Identity, IgnoreReason, InstanceId, Malformed, Notice, Notices, Parsed, ScheduledChange};
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
    let instances = fields.instances(closed)?;
    if instances.is_empty() {
        let why = if closed { IgnoreReason::Closed } else { IgnoreReason::NotScheduledChange };
        return Ok(Parsed::Ignored(why));
    }
    let at = At("detail.", "eventArn");
    let arn = fields.event_arn.arn(at)?;
    // Other notices have identities without: who forges one of Health's must not meet their marks.
    if !arn.starts_with("arn:") {
        return Err(at.bad(format!("{} is not an ARN", quote(arn))));
    }
    let code = fields.event_type_code.name(At("detail.", "eventTypeCode"))?;
    let arn = arn.to_owned();
    let identity = |arn, instance| {
        if is_issue { Identity::Fault { arn, instance } } else { Identity::Health { arn, instance } }
    };
    let first = |instance: InstanceId, withdrawn| Notice {
        identity: identity(arn, instance.clone()),
        instance,
        at: head.at,
        detail: Detail::ScheduledChange(ScheduledChange {
            code: code.to_owned(),
            // An announced change is worth a drain even if its time can't be read.
            // A fault's time has passed, and is no deadline.
            start: fields.start_time.time_if_any().filter(|_| !is_issue),
            hard: takes_capacity(code) && !is_issue,
            withdrawn,
            is_issue,
        }),
    };
    Ok(Parsed::Notices(Notices::new(instances, first)))
}

impl Notice {
    /// Returns the notice of a change that EC2 itself lists for an instance, by its id there and its code, such as `instance-retirement`.
    /// `withdrawn` says that the change is over, or was called off.
    #[must_use]
    pub fn listed(
        (id, code): (&str, &str),
        instance: InstanceId,
        start: Option<Timestamp>,
        withdrawn: bool,
        at: Timestamp,
    ) -> Self {
        // In the words of Health's codes, which say what the change does to the instance.
        let code = code.to_uppercase().replace('-', "_");
        let hard = takes_capacity(&code);
        let change = ScheduledChange { code, start, hard, withdrawn, is_issue: false };
        let identity = Identity::Health { arn: id.to_owned(), instance: instance.clone() };
        Self { identity, instance, at, detail: Detail::ScheduledChange(change) }
    }
}

impl Fields<'_> {
    /// Returns the affected instances, each once, in the event's order, and whether the event, which may be `closed`, no longer concerns
    /// them. Dedicated hosts, volumes and accounts are entities, too.
    fn instances(&self, closed: bool) -> Result<Vec<(InstanceId, bool)>, Malformed> {
        let entities = match &self.affected_entities {
            List::Is(entities) => entities.as_slice(),
            // The list is optional in the schema: an event may concern the whole account.
            List::Missing => &[],
            List::Other(found) => {
                return Err(At("detail.", "affectedEntities").bad(format!("{found} where a list is expected")));
            }
        };
        let mut places = HashMap::with_capacity(entities.len());
        let mut instances: Vec<(InstanceId, bool)> = Vec::with_capacity(entities.len());
        for entity in entities {
            let Object::Is(entity) = entity else { continue };
            let Some(id) = entity.entity_value.get() else { continue };
            let Some(instance) = InstanceId::new(id) else { continue };
            let settled = closed || entity.is_settled();
            let place = *places.entry(id).or_insert(instances.len());
            match instances.get_mut(place) {
                // Of two that contradict each other, the one that announces a change counts.
                Some((_, both)) => *both &= settled,
                None => instances.push((instance, settled)),
            }
        }
        Ok(instances)
    }
}

/// Whether an event with this code takes the instance's capacity away when it begins.
///
/// AWS builds its codes of words: `AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED`, `AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED`,
/// `AWS_EC2_INSTANCE_STOP_SCHEDULED`, `AWS_EC2_INSTANCE_TERMINATION_SCHEDULED`, `AWS_EC2_DEDICATED_HOST_RETIREMENT_SCHEDULED`.
/// The others are reboots and maintenance of power, network or system. An unknown code counts as one of those, because a hard deadline
/// overrides disruption budgets.
fn takes_capacity(code: &str) -> bool {
    code.split('_').any(|word| matches!(word, "RETIREMENT" | "STOP" | "TERMINATION"))
}
