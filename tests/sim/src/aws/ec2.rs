//! EC2's instances, for DescribeInstances; and what it lists about them.

mod listing;

use super::query::{Form, Xml, answer_flat, refuse_flat};
use super::refusal::{Refusal, Words};
use super::{ACCOUNT, REGION};
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use jiff::Timestamp;
use listing::{Change, Reservation, SpotRequest};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of filter values in a call, over all filters.
const MOST_FILTER_VALUES: usize = 200;
/// Maximum number of instance IDs in a call, and of instances in an answer.
const MOST_INSTANCES: usize = 1000;

const WORDS: Words = Words {
    throttled_status: 503,
    throttled: "RequestLimitExceeded",
    denied: "UnauthorizedOperation",
    expired: (400, "RequestExpired"),
    invalid: "InvalidParameterValue",
    internal: "InternalError",
    unavailable: "Unavailable",
};

/// States of an instance and their codes.
const STATES: [(&str, u32); 6] =
    [("pending", 0), ("running", 16), ("shutting-down", 32), ("terminated", 48), ("stopping", 64), ("stopped", 80)];

/// Simulated EC2. Clones share one state.
#[derive(Clone, Debug)]
pub struct Ec2 {
    clock: Clock,
    edge: Edge,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    instances: BTreeMap<String, Instance>,
    /// Number of instances ever added: each gets its own address.
    count: usize,
    changes: Vec<Change>,
    /// Spot requests, by instance.
    spot_requests: BTreeMap<String, SpotRequest>,
    /// Since when status checks fail, by instance and check; `None` of those about which there is no data.
    failing: BTreeMap<(String, String), Option<Timestamp>>,
    reservations: Vec<Reservation>,
    page: Option<usize>,
}

#[derive(Debug)]
struct Instance {
    state: (&'static str, u32),
    private_dns_name: String,
    tags: BTreeMap<String, String>,
    /// Capacity reservation in which the instance runs.
    reservation: Option<String>,
    launched: Timestamp,
    /// The hop limit of its metadata service, which asks for tokens.
    hop_limit: u32,
}

#[derive(Debug)]
struct Filter<'a> {
    name: &'a str,
    first: Option<&'a str>,
    values: BTreeSet<&'a str>,
    /// Number of values that the call gave, including duplicates.
    given: usize,
}

impl Ec2 {
    pub(super) fn new(clock: Clock, edge: Edge) -> Self {
        Self { clock, edge, state: Arc::default() }
    }

    /// Adds a running instance with these tags that is launched now, or replaces it.
    pub fn put(&self, id: &str, tags: &[(&str, &str)]) {
        let mut state = self.state();
        state.count += 1;
        let [.., high, middle, low] = state.count.to_be_bytes();
        let instance = Instance {
            state: state_named("running"),
            private_dns_name: format!("ip-10-{high}-{middle}-{low}.{REGION}.compute.internal"),
            reservation: None,
            launched: self.clock.now(),
            hop_limit: 1,
            tags: tags.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        };
        state.instances.insert(id.to_owned(), instance);
    }

    /// Changes an instance's state: `pending`, `running`, `shutting-down`, `terminated`, `stopping` or `stopped`.
    ///
    /// # Panics
    ///
    /// Panics if there is no such instance, or no such state.
    pub fn set_state(&self, id: &str, state: &str) {
        let named = state_named(state);
        self.state().instances.get_mut(id).expect("the instance must have been put").state = named;
    }

    /// Sets the hop limit of an instance's metadata service.
    ///
    /// # Panics
    ///
    /// Panics if there is no such instance.
    pub fn set_hop_limit(&self, id: &str, limit: u32) {
        self.state().instances.get_mut(id).expect("the instance must have been put").hop_limit = limit;
    }

    /// Puts an instance into a capacity reservation.
    ///
    /// # Panics
    ///
    /// Panics if there is no such instance.
    pub fn reserve(&self, id: &str, reservation: &str) {
        let mut state = self.state();
        let instance = state.instances.get_mut(id).expect("the instance must have been put");
        instance.reservation = Some(reservation.to_owned());
    }

    /// Makes an instance older.
    ///
    /// # Panics
    ///
    /// Panics if there is no such instance.
    pub fn age(&self, id: &str, by: Duration) {
        self.state().instances.get_mut(id).expect("the instance must have been put").launched -= by;
    }

    /// Removes an instance, as EC2 does about an hour after its termination.
    pub fn remove(&self, id: &str) {
        self.state().instances.remove(id);
    }

    /// Sets the maximum number of instances in an answer, whatever a call asks for: AWS may return pages of any length.
    pub fn set_page_size(&self, instances: usize) {
        self.state().page = Some(instances);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) async fn serve(&self, form: &Form) -> Result<http::Response<Bytes>, Disconnected> {
        let operation = form.get("Action").unwrap_or_default();
        let (ids, filters) = (form.list("InstanceId"), filters(form));
        let filtered = || filters.iter().find(|filter| filter.name == "instance-id")?.first;
        let subject = ids.first().copied().or_else(filtered).unwrap_or_default();
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| refuse_flat(&refusal));
        let serve = async {
            let answer = match operation {
                "DescribeInstances" => self.state().describe(form, &ids, &filters),
                "DescribeSpotInstanceRequests" => self.state().describe_spot_requests(form, &filters),
                "RebootInstances" => self.state().reboot(form, &ids),
                "DescribeInstanceStatus" => self.state().describe_status(form, &filters),
                "DescribeCapacityReservations" => self.state().describe_reservations(form),
                other => {
                    let message = format!("The action {other} is not valid for this web service.");
                    Err(Refusal::new("InvalidAction", message))
                }
            };
            answer.unwrap_or_else(|refusal| refuse_flat(&refusal))
        };
        self.edge.pass("ec2", operation, subject, refuse, serve).await
    }
}

impl State {
    fn describe(&self, form: &Form, ids: &[&str], filters: &[Filter<'_>]) -> Result<http::Response<Bytes>, Refusal> {
        dry_run(form)?;
        self.check_ids(ids)?;
        check_filters(filters)?;
        let asked = match form.get("MaxResults").map(str::parse) {
            None => MOST_INSTANCES,
            Some(_) if !ids.is_empty() => {
                let message = "The parameter instancesSet cannot be used with the parameter maxResults";
                return Err(Refusal::new("InvalidParameterCombination", message));
            }
            Some(Ok(max @ 5..=MOST_INSTANCES)) => max,
            Some(_) => {
                let message = "Value for parameter maxResults is invalid. Expecting a value between 5 and 1000.";
                return Err(Refusal::new("InvalidParameterValue", message));
            }
        };
        let limit = self.page.map_or(asked, |page| page.min(asked));

        // A page's token is the last ID of the page before it, so that changes between the calls return no instance twice.
        let ids: BTreeSet<&str> = ids.iter().copied().collect();
        let mut found = self
            .instances
            .iter()
            .filter(|(id, _)| form.get("NextToken").is_none_or(|last| id.as_str() > last))
            .filter(|(id, _)| ids.is_empty() || ids.contains(id.as_str()))
            .filter(|(id, instance)| filters.iter().all(|filter| filter.matches(id, instance)));
        let page: Vec<_> = found.by_ref().take(limit).collect();
        let more = found.next().is_some();
        Ok(answer_flat("DescribeInstances", |xml| {
            xml.nest("reservationSet", |xml| {
                for (id, instance) in &page {
                    xml.nest("item", |xml| write_reservation(xml, id, instance));
                }
            });
            if let Some((last, _)) = page.last().filter(|_| more) {
                xml.text("nextToken", last);
            }
        }))
    }

    /// Takes a request to reboot. Whether and when the node comes back, the test decides.
    fn reboot(&self, form: &Form, ids: &[&str]) -> Result<http::Response<Bytes>, Refusal> {
        dry_run(form)?;
        self.check_ids(ids)?;
        let is_over = |id: &&&str| self.instances.get(**id).is_some_and(|it| it.state != state_named("running"));
        if let Some(id) = ids.iter().find(is_over) {
            let message = format!("The instance '{id}' is not in a state from which it can be rebooted.");
            return Err(Refusal::new("IncorrectInstanceState", message));
        }
        Ok(answer_flat("RebootInstances", |xml| xml.text("return", "true")))
    }

    /// Checks the IDs in a call: one bad ID fails the whole call.
    fn check_ids(&self, ids: &[&str]) -> Result<(), Refusal> {
        if ids.len() > MOST_INSTANCES {
            let message = format!("The maximum number of instance IDs in a call is {MOST_INSTANCES}");
            return Err(Refusal::new("InvalidParameterValue", message));
        }
        let unknown: Vec<&str> = ids.iter().copied().filter(|id| !self.instances.contains_key(*id)).collect();
        if let Some(malformed) = unknown.iter().find(|id| !well_formed(id)) {
            return Err(Refusal::new("InvalidInstanceID.Malformed", format!("Invalid id: \"{malformed}\"")));
        }
        let message = match unknown.as_slice() {
            [] => return Ok(()),
            [one] => format!("The instance ID '{one}' does not exist"),
            many => format!("The instance IDs '{}' do not exist", many.join(", ")),
        };
        Err(Refusal::new("InvalidInstanceID.NotFound", message))
    }
}

impl Filter<'_> {
    fn matches(&self, id: &str, instance: &Instance) -> bool {
        let wanted = |value: &str| self.values.contains(value);
        match self.name {
            "instance-id" => wanted(id),
            "capacity-reservation-id" => instance.reservation.as_deref().is_some_and(wanted),
            "instance-state-name" => wanted(instance.state.0),
            "tag-key" => instance.tags.keys().any(|key| wanted(key)),
            name => {
                let key = name.strip_prefix("tag:").unwrap_or_default();
                instance.tags.get(key).is_some_and(|value| wanted(value))
            }
        }
    }
}

/// Refuses a call that was only to show whether it is allowed.
fn dry_run(form: &Form) -> Result<(), Refusal> {
    if form.get("DryRun") != Some("true") {
        return Ok(());
    }
    let message = "Request would have succeeded, but DryRun flag is set.";
    Err(Refusal { status: 412, ..Refusal::new("DryRunOperation", message) })
}

fn filters(form: &Form) -> Vec<Filter<'_>> {
    (1..)
        .map_while(|n| {
            let name = form.get(&format!("Filter.{n}.Name"))?;
            let values = form.list(&format!("Filter.{n}.Value"));
            Some(Filter {
                name,
                first: values.first().copied(),
                given: values.len(),
                values: values.into_iter().collect(),
            })
        })
        .collect()
}

fn check_filters(filters: &[Filter<'_>]) -> Result<(), Refusal> {
    let known = |name: &str| {
        matches!(name, "instance-id" | "capacity-reservation-id" | "instance-state-name" | "tag-key")
            || name.starts_with("tag:")
    };
    if let Some(unknown) = filters.iter().find(|filter| !known(filter.name)) {
        let message = format!("The filter '{}' is invalid", unknown.name);
        return Err(Refusal::new("InvalidParameterValue", message));
    }
    if filters.iter().map(|filter| filter.given).sum::<usize>() > MOST_FILTER_VALUES {
        let message = format!("The maximum number of filter values specified on a single call is {MOST_FILTER_VALUES}");
        return Err(Refusal::new("FilterLimitExceeded", message));
    }
    Ok(())
}

fn write_reservation(xml: &mut Xml, id: &str, instance: &Instance) {
    let (name, code) = instance.state;
    xml.text("reservationId", &id.replacen("i-", "r-", 1));
    xml.text("ownerId", ACCOUNT);
    xml.nest("instancesSet", |xml| {
        xml.nest("item", |xml| {
            xml.text("instanceId", id);
            xml.nest("instanceState", |xml| {
                xml.text("code", &code.to_string());
                xml.text("name", name);
            });
            xml.text("privateDnsName", if name == "terminated" { "" } else { &instance.private_dns_name });
            if let Some(reservation) = &instance.reservation {
                xml.text("capacityReservationId", reservation);
            }
            xml.text("launchTime", &instance.launched.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            xml.nest("metadataOptions", |xml| {
                xml.text("httpEndpoint", "enabled");
                xml.text("httpTokens", "required");
                xml.text("httpPutResponseHopLimit", &instance.hop_limit.to_string());
            });
            xml.nest("placement", |xml| xml.text("availabilityZone", &format!("{REGION}a")));
            xml.nest("tagSet", |xml| {
                for (key, value) in &instance.tags {
                    xml.nest("item", |xml| {
                        xml.text("key", key);
                        xml.text("value", value);
                    });
                }
            });
        });
    });
}

/// Checks the form of an ID: `i-` and 8 or 17 hex digits.
fn well_formed(id: &str) -> bool {
    let hex = |digits: &str| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    id.strip_prefix("i-").is_some_and(|digits| matches!(digits.len(), 8 | 17) && hex(digits))
}

fn state_named(name: &str) -> (&'static str, u32) {
    *STATES.iter().find(|(known, _)| *known == name).expect("the state must be one of EC2's")
}
