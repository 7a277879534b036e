//! AWS Health's scheduled changes: maintenance, a reboot, a stop or a retirement, of one instance or of many.

use super::wire::{At, Head, List, Object, Text, detail};
use super::{Detail, Identity, IgnoreReason, InstanceId, Malformed, Notice, Parsed, ScheduledChange};
use serde::Deserialize;
use std::collections::HashSet;

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
    if service != "EC2" || category != "scheduledChange" {
        return Ok(Parsed::Ignored(IgnoreReason::NotScheduledChange));
    }
    if fields.status_code.get() == Some("closed") {
        return Ok(Parsed::Ignored(IgnoreReason::Closed));
    }
    let instances = match fields.instances()? {
        Affected::Instances(instances) => instances,
        Affected::None => return Ok(Parsed::Ignored(IgnoreReason::NotScheduledChange)),
        Affected::Settled => return Ok(Parsed::Ignored(IgnoreReason::Closed)),
    };
    let arn = fields.event_arn.name(At("detail.", "eventArn"))?;
    let code = fields.event_type_code.name(At("detail.", "eventTypeCode"))?;
    let change = ScheduledChange {
        code: code.to_owned(),
        // An announced change is worth a drain even if its time can't be read.
        start: fields.start_time.time_if_any(),
        hard: takes_capacity(code),
    };
    let notice = |instance: InstanceId| Notice {
        identity: Identity::Health { arn: arn.to_owned(), instance: instance.clone() },
        instance,
        at: head.at,
        detail: Detail::ScheduledChange(change.clone()),
    };
    Ok(Parsed::Notices(instances.into_iter().map(notice).collect()))
}

/// The instances that an event is about.
enum Affected {
    /// Instances that it still concerns, each once, in the event's order.
    Instances(Vec<InstanceId>),
    /// Instances that it no longer concerns, alone.
    Settled,
    /// No instance.
    None,
}

impl Fields<'_> {
    /// Returns the affected instances. Dedicated hosts, volumes and accounts are entities, too.
    fn instances(&self) -> Result<Affected, Malformed> {
        let entities = match &self.affected_entities {
            List::Is(entities) => entities.as_slice(),
            // The list is optional in the schema: an event may concern the whole account.
            List::Missing => &[],
            List::Other(found) => {
                return Err(At("detail.", "affectedEntities").bad(format!("{found} where a list is expected")));
            }
        };
        let mut seen = HashSet::new();
        let mut settled = false;
        let mut instances = Vec::new();
        for entity in entities {
            let Object::Is(entity) = entity else { continue };
            let Some(instance) = entity.entity_value.get().and_then(InstanceId::new) else { continue };
            if entity.is_settled() {
                settled = true;
            } else if seen.insert(instance.clone()) {
                instances.push(instance);
            }
        }
        Ok(match (instances.is_empty(), settled) {
            (false, _) => Affected::Instances(instances),
            (true, true) => Affected::Settled,
            (true, false) => Affected::None,
        })
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
