//! What EC2 lists: scheduled changes of instances, for DescribeInstanceStatus, reservations, for DescribeCapacityReservations, and spot
//! requests, for DescribeSpotInstanceRequests.

use super::super::query::{Form, Xml, answer_flat};
use super::super::refusal::Refusal;
use super::{Ec2, Filter, State, dry_run};
use bytes::Bytes;
use jiff::Timestamp;

/// A scheduled change of an instance.
#[derive(Debug)]
pub(super) struct Change {
    id: String,
    instance: String,
    code: String,
    description: String,
    start: Timestamp,
}

/// A capacity reservation with an end.
#[derive(Debug)]
pub(super) struct Reservation {
    id: String,
    is_block: bool,
    instance_type: String,
    ends: Timestamp,
}

/// The request of a spot instance.
#[derive(Debug)]
pub(super) struct SpotRequest {
    code: String,
    behavior: String,
    since: Timestamp,
}

impl Ec2 {
    /// Schedules a change of this ID and code (`instance-reboot`, `instance-retirement` …), or moves its begin.
    pub fn schedule(&self, instance: &str, (id, code): (&str, &str), start: Timestamp) {
        let mut state = self.state();
        state.changes.retain(|change| change.id != id);
        let description = "The instance is on degraded hardware".to_owned();
        let [id, instance, code] = [id, instance, code].map(str::to_owned);
        state.changes.push(Change { id, instance, code, description, start });
    }

    /// Fails a status check (`system`, `instance` or `attached-ebs`) of an instance, as of then.
    pub fn fail_check(&self, instance: &str, check: &str, since: Timestamp) {
        self.state().failing.insert((instance.to_owned(), check.to_owned()), Some(since));
    }

    /// Leaves EC2 without data about a status check.
    pub fn doubt_check(&self, instance: &str, check: &str) {
        self.state().failing.insert((instance.to_owned(), check.to_owned()), None);
    }

    /// Ends the failure of a status check.
    pub fn pass_check(&self, instance: &str, check: &str) {
        self.state().failing.remove(&(instance.to_owned(), check.to_owned()));
    }

    /// The status of a spot request whose instance EC2 terminates for lack of capacity, from the warning on.
    pub const INTERRUPTED: &str = "instance-terminated-no-capacity";

    /// Sets the status of the spot request of an instance, such as `fulfilled` or `marked-for-stop`, as of then, and what an
    /// interruption does with the instance: `terminate`, `stop` or `hibernate`.
    pub fn set_spot_request(&self, instance: &str, code: &str, behavior: &str, since: Timestamp) {
        let request = SpotRequest { code: code.to_owned(), behavior: behavior.to_owned(), since };
        self.state().spot_requests.insert(instance.to_owned(), request);
    }

    /// Lets EC2 terminate the instance for lack of capacity as of then, unless a status was set.
    pub fn interrupt(&self, instance: &str, since: Timestamp) {
        let code = Self::INTERRUPTED.to_owned();
        let marked = || SpotRequest { code, behavior: "terminate".to_owned(), since };
        self.state().spot_requests.entry(instance.to_owned()).or_insert_with(marked);
    }

    /// Ends a change: EC2 lists it for a week more, with this word in brackets: `Completed` or `Canceled`.
    ///
    /// # Panics
    ///
    /// Panics if there is no such change.
    pub fn close(&self, id: &str, word: &str) {
        let mut state = self.state();
        let change = state.changes.iter_mut().find(|change| change.id == id).expect("the change must be scheduled");
        change.description = format!("[{word}] {}", change.description);
    }

    /// Adds a capacity reservation that ends then: a Capacity Block, or an ordinary one.
    pub fn add_reservation(&self, id: &str, is_block: bool, instance_type: &str, ends: Timestamp) {
        let (id, instance_type) = (id.to_owned(), instance_type.to_owned());
        self.state().reservations.push(Reservation { id, is_block, instance_type, ends });
    }
}

/// Whether a filter's value fits, in which a `*` stands for any end.
fn is_like(code: &str, value: &str) -> bool {
    value.strip_suffix('*').map_or(code == value, |start| code.starts_with(start))
}

impl State {
    pub(super) fn describe_status(
        &self,
        form: &Form,
        filters: &[Filter<'_>],
    ) -> Result<http::Response<Bytes>, Refusal> {
        dry_run(form)?;
        let running = |id: &str| self.instances.get(id).is_some_and(|instance| instance.state.0 == "running");
        let which = filters.first().and_then(|filter| filter.name.strip_suffix("-status.status"));
        if let (Some(which), [Filter { values, .. }]) = (which, filters) {
            let fails = |(instance, check): &&(String, String)| *check == which && running(instance);
            let is_asked = |since: &Option<Timestamp>| values.contains(word(*since));
            let failing: Vec<_> =
                self.failing.iter().filter(|(check, since)| is_asked(since) && fails(check)).collect();
            let (page, next) = self.page_of(&failing, form);
            return Ok(answer_flat("DescribeInstanceStatus", |xml| {
                xml.nest("instanceStatusSet", |xml| {
                    for ((instance, check), since) in page {
                        xml.nest("item", |xml| write_check(xml, instance, check, **since));
                    }
                });
                if let Some(next) = next {
                    xml.text("nextToken", &next.to_string());
                }
            }));
        }
        let [Filter { name: "event.code", values, .. }] = filters else {
            return Err(Refusal::new("InvalidParameterValue", "The simulation knows event.code and *-status.status"));
        };
        let listed = |change: &&Change| values.contains(&*change.code) && running(&change.instance);
        let listed: Vec<&Change> = self.changes.iter().filter(listed).collect();
        let (page, next) = self.page_of(&listed, form);
        Ok(answer_flat("DescribeInstanceStatus", |xml| {
            xml.nest("instanceStatusSet", |xml| {
                for change in page {
                    xml.nest("item", |xml| write_change(xml, change));
                }
            });
            if let Some(next) = next {
                xml.text("nextToken", &next.to_string());
            }
        }))
    }

    /// Answers in one page: spot requests are few.
    pub(super) fn describe_spot_requests(
        &self,
        form: &Form,
        filters: &[Filter<'_>],
    ) -> Result<http::Response<Bytes>, Refusal> {
        dry_run(form)?;
        let [Filter { name: "status-code", values, .. }] = filters else {
            return Err(Refusal::new("InvalidParameterValue", "The simulation knows the filter status-code only"));
        };
        let found =
            self.spot_requests.iter().filter(|(_, request)| values.iter().any(|value| is_like(&request.code, value)));
        Ok(answer_flat("DescribeSpotInstanceRequests", |xml| {
            xml.nest("spotInstanceRequestSet", |xml| {
                for (instance, SpotRequest { code, behavior, since }) in found {
                    xml.nest("item", |xml| {
                        xml.text("spotInstanceRequestId", &instance.replacen("i-", "sir-", 1));
                        xml.text("instanceId", instance);
                        xml.text("instanceInterruptionBehavior", behavior);
                        xml.nest("status", |xml| {
                            xml.text("code", code);
                            xml.text("updateTime", &since.to_string());
                        });
                    });
                }
            });
        }))
    }

    pub(super) fn describe_reservations(&self, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
        dry_run(form)?;
        let listed: Vec<&Reservation> = self.reservations.iter().collect();
        let (page, next) = self.page_of(&listed, form);
        Ok(answer_flat("DescribeCapacityReservations", |xml| {
            xml.nest("capacityReservationSet", |xml| {
                for reservation in page {
                    xml.nest("item", |xml| write_reservation(xml, reservation));
                }
            });
            if let Some(next) = next {
                xml.text("nextToken", &next.to_string());
            }
        }))
    }

    /// Returns the entries of a page, and where the next one begins: also the token of that page.
    fn page_of<'a, T>(&self, all: &'a [T], form: &Form) -> (&'a [T], Option<usize>) {
        let from = form.get("NextToken").and_then(|token| token.parse().ok()).unwrap_or(0).min(all.len());
        let to = self.page.map_or(all.len(), |page| (from + page).min(all.len()));
        (&all[from..to], (to < all.len()).then_some(to))
    }
}

fn write_change(xml: &mut Xml, change: &Change) {
    xml.text("instanceId", &change.instance);
    xml.nest("eventsSet", |xml| {
        xml.nest("item", |xml| {
            xml.text("instanceEventId", &change.id);
            xml.text("code", &change.code);
            xml.text("description", &change.description);
            xml.text("notBefore", &written(change.start));
        });
    });
}

fn write_check(xml: &mut Xml, instance: &str, check: &str, since: Option<Timestamp>) {
    xml.text("instanceId", instance);
    let [field, others @ ..] = match check {
        "system" => ["systemStatus", "instanceStatus", "attachedEbsStatus"],
        "instance" => ["instanceStatus", "systemStatus", "attachedEbsStatus"],
        _ => ["attachedEbsStatus", "systemStatus", "instanceStatus"],
    };
    xml.nest(field, |xml| {
        xml.text("status", word(since));
        xml.nest("details", |xml| {
            xml.nest("item", |xml| {
                xml.text("name", "reachability");
                xml.text("status", if since.is_some() { "failed" } else { "insufficient-data" });
                if let Some(since) = since {
                    xml.text("impairedSince", &written(since));
                }
            });
        });
    });
    for other in others {
        xml.nest(other, |xml| xml.text("status", "ok"));
    }
}

/// What EC2 says of a check that fails since then, or of which it has no data.
const fn word(since: Option<Timestamp>) -> &'static str {
    if since.is_some() { "impaired" } else { "insufficient-data" }
}

fn write_reservation(xml: &mut Xml, reservation: &Reservation) {
    xml.text("capacityReservationId", &reservation.id);
    xml.text("instanceType", &reservation.instance_type);
    xml.text("reservationType", if reservation.is_block { "capacity-block" } else { "default" });
    xml.text("endDate", &written(reservation.ends));
    xml.text("endDateType", "limited");
    xml.text("state", "active");
}

fn written(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}
