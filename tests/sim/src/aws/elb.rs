//! Elastic Load Balancing's target groups, their tags and their targets, for DescribeTargetGroups, DescribeTags, DescribeTargetHealth and
//! DeregisterTargets.

use super::query::{Form, answer_wrapped, refuse_wrapped};
use super::refusal::{Refusal, Words};
use super::{ACCOUNT, REGION};
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of target groups in a page, and of resources in a call about tags.
const MAX_PAGE: usize = 400;
const MAX_TAGGED: usize = 20;

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "Throttling",
    denied: "AccessDenied",
    expired: (403, "ExpiredToken"),
    invalid: "ValidationError",
    internal: "InternalFailure",
    unavailable: "ServiceUnavailable",
};

/// Simulated Elastic Load Balancing, version 2. Clones share one state.
#[derive(Clone, Debug)]
pub struct Elb {
    clock: Clock,
    edge: Edge,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    /// Target groups by ARN.
    groups: BTreeMap<String, Group>,
    deregistered: Vec<Deregistration>,
}

/// A target group as its creator describes it. Clones make further groups.
#[derive(Clone, Debug)]
pub struct TargetGroupSpec {
    /// Its name, which no other group has.
    pub name: String,
    /// Its protocol.
    pub protocol: &'static str,
    /// The kind of its targets.
    pub target_type: &'static str,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Time from a target's deregistration until it is no longer listed.
    pub delay: Duration,
}

impl TargetGroupSpec {
    /// A group of an Application Load Balancer, without tags.
    #[must_use]
    pub fn new(name: &str, delay: Duration) -> Self {
        let name = name.to_owned();
        Self { name, protocol: "HTTP", target_type: "instance", tags: BTreeMap::new(), delay }
    }

    /// A group that the cloud provider of this cluster has created for the Service of this namespace and name.
    #[must_use]
    pub fn of_service(cluster: &str, service: &str, delay: Duration) -> Self {
        let name = format!("k8s-{}-{cluster}", service.replace('/', "-"));
        Self { protocol: "TCP", ..Self::new(&name, delay) }
            .tag(&format!("kubernetes.io/cluster/{cluster}"), "owned")
            .tag("kubernetes.io/service-name", service)
    }

    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.tags.insert(key.to_owned(), value.to_owned());
        self
    }
}

#[derive(Debug)]
struct Group {
    spec: TargetGroupSpec,
    /// Targets by ID and port.
    targets: BTreeMap<(String, u16), Target>,
}

#[derive(Debug)]
enum Target {
    /// Registered, with this state; without one its health is left out of the answer.
    Registered(Option<String>),
    /// Deregistered, and listed until this time.
    Draining(Duration),
}

/// A target that a call of the service has deregistered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deregistration {
    /// Time of the call, since the world's start.
    pub at: Duration,
    /// The target group's ARN.
    pub group: String,
    /// The target's ID.
    pub id: String,
    /// The target's port.
    pub port: u16,
}

impl Elb {
    pub(super) fn new(clock: Clock, edge: Edge) -> Self {
        Self { clock, edge, state: Arc::default() }
    }

    /// Adds a target group of an Application Load Balancer with this deregistration delay. Returns its ARN.
    pub fn add_group(&self, name: &str, delay: Duration) -> String {
        self.add(TargetGroupSpec::new(name, delay))
    }

    /// Adds a target group. Returns its ARN.
    pub fn add(&self, spec: TargetGroupSpec) -> String {
        let name = &spec.name;
        let arn = format!("arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:targetgroup/{name}/{:016x}", name.len());
        self.state().groups.insert(arn.clone(), Group { spec, targets: BTreeMap::new() });
        arn
    }

    /// Removes a target group.
    pub fn remove_group(&self, arn: &str) {
        self.state().groups.remove(arn);
    }

    /// Registers a target, which is healthy at once.
    ///
    /// # Panics
    ///
    /// Panics if there is no such group.
    pub fn register(&self, arn: &str, id: &str, port: u16) {
        self.set_state(arn, id, port, Some("healthy"));
    }

    /// Sets a target's state, however it is spelled; without one the answer has no health.
    ///
    /// # Panics
    ///
    /// Panics if there is no such group.
    pub fn set_state(&self, arn: &str, id: &str, port: u16, state: Option<&str>) {
        let mut all = self.state();
        let group = all.groups.get_mut(arn).expect("the group must have been added");
        group.targets.insert((id.to_owned(), port), Target::Registered(state.map(str::to_owned)));
    }

    /// Deregisters a target on all its ports on behalf of another client. Not recorded among the service's deregistrations.
    pub fn deregister(&self, arn: &str, id: &str) {
        let mut state = self.state();
        let now = state.now;
        if let Some(group) = state.groups.get_mut(arn) {
            group.deregister(now, id, None);
        }
    }

    /// Returns the targets that calls of the service have deregistered, in order.
    #[must_use]
    pub fn deregistered(&self) -> Vec<Deregistration> {
        self.state().deregistered.clone()
    }

    /// Returns the IDs of the targets that take new connections.
    #[must_use]
    pub fn registered(&self, arn: &str) -> Vec<String> {
        let state = self.state();
        let targets = state.groups.get(arn).into_iter().flat_map(|group| &group.targets);
        let taking = targets.filter(|(_, target)| matches!(target, Target::Registered(_)));
        taking.map(|((id, _), _)| id.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.now = self.clock.elapsed();
        let now = state.now;
        for group in state.groups.values_mut() {
            group.targets.retain(|_, target| !matches!(target, Target::Draining(until) if *until <= now));
        }
        state
    }

    pub(super) async fn serve(&self, form: &Form) -> Result<http::Response<Bytes>, Disconnected> {
        let operation = form.get("Action").unwrap_or_default();
        let arn = form.get("TargetGroupArn").or_else(|| form.get("ResourceArns.member.1")).unwrap_or_default();
        let name = arn.split('/').nth(1).unwrap_or_default();
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| refuse_wrapped(&refusal));
        let serve = async {
            let answer = match operation {
                "DescribeTargetGroups" => self.state().list(form),
                "DescribeTags" => self.state().tags(form),
                "DescribeTargetHealth" => self.state().describe(arn),
                "DeregisterTargets" => self.state().deregister(arn, form),
                other => {
                    let message = format!("Could not find operation {other} for version 2015-12-01");
                    Err(Refusal::new("InvalidAction", message))
                }
            };
            answer.unwrap_or_else(|refusal| refuse_wrapped(&refusal))
        };
        self.edge.pass("elasticloadbalancing", operation, name, refuse, serve).await
    }
}

impl Group {
    /// Deregisters a target on this port, or on all. Returns the ports on which it was registered.
    fn deregister(&mut self, now: Duration, id: &str, port: Option<u16>) -> Vec<u16> {
        let until = now + self.spec.delay;
        let named = |(known, on): &(String, u16)| known == id && port.is_none_or(|port| port == *on);
        let registered =
            self.targets.iter_mut().filter(|(key, target)| named(key) && matches!(target, Target::Registered(_)));
        let gone = registered.map(|((_, port), target)| {
            *target = Target::Draining(until);
            *port
        });
        gone.collect()
    }
}

impl State {
    fn group(&mut self, arn: &str) -> Result<&mut Group, Refusal> {
        let unknown = || Refusal::new("TargetGroupNotFound", format!("Target groups '{arn}' not found"));
        self.groups.get_mut(arn).ok_or_else(unknown)
    }

    /// Returns a page of all groups. Its marker is the ARN of its last one.
    fn list(&self, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
        let size = match form.get("PageSize").map(str::parse) {
            None => MAX_PAGE,
            Some(Ok(size @ 1..=MAX_PAGE)) => size,
            Some(_) => return Err(Refusal::new("ValidationError", "Page size must be between 1 and 400")),
        };
        let after = form.get("Marker").unwrap_or_default();
        let mut left = self.groups.iter().filter(|(arn, _)| arn.as_str() > after);
        let page: Vec<_> = left.by_ref().take(size).collect();
        let marker = left.next().and(page.last()).map(|(arn, _)| arn.as_str());
        Ok(answer_wrapped("DescribeTargetGroups", |xml| {
            xml.nest("TargetGroups", |xml| {
                for (arn, Group { spec, .. }) in page {
                    xml.nest("member", |xml| {
                        xml.text("TargetGroupArn", arn);
                        xml.text("TargetGroupName", &spec.name);
                        xml.text("Protocol", spec.protocol);
                        xml.text("TargetType", spec.target_type);
                    });
                }
            });
            if let Some(marker) = marker {
                xml.text("NextMarker", marker);
            }
        }))
    }

    /// Returns the tags of groups. One that does not exist fails the whole call.
    fn tags(&mut self, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
        let arns = form.list("ResourceArns.member");
        if arns.len() > MAX_TAGGED {
            return Err(Refusal::new("ValidationError", "Cannot describe the tags of more than 20 resources"));
        }
        for arn in &arns {
            self.group(arn)?;
        }
        Ok(answer_wrapped("DescribeTags", |xml| {
            xml.nest("TagDescriptions", |xml| {
                for arn in arns {
                    xml.nest("member", |xml| {
                        xml.text("ResourceArn", arn);
                        xml.nest("Tags", |xml| {
                            for (key, value) in &self.groups[arn].spec.tags {
                                xml.nest("member", |xml| {
                                    xml.text("Key", key);
                                    xml.text("Value", value);
                                });
                            }
                        });
                    });
                }
            });
        }))
    }

    fn describe(&mut self, arn: &str) -> Result<http::Response<Bytes>, Refusal> {
        let group = self.group(arn)?;
        Ok(answer_wrapped("DescribeTargetHealth", |xml| {
            xml.nest("TargetHealthDescriptions", |xml| {
                for ((id, port), target) in &group.targets {
                    xml.nest("member", |xml| {
                        xml.nest("Target", |xml| {
                            xml.text("Id", id);
                            xml.text("Port", &port.to_string());
                        });
                        let state = match target {
                            Target::Registered(state) => state.as_deref(),
                            Target::Draining(_) => Some("draining"),
                        };
                        if let Some(state) = state {
                            xml.nest("TargetHealth", |xml| xml.text("State", state));
                        }
                    });
                }
            });
        }))
    }

    /// A target that is registered on another port than the group's is found only by its port: here each target must name one.
    fn deregister(&mut self, arn: &str, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
        let now = self.now;
        let group = self.group(arn)?;
        let mut gone = Vec::new();
        for n in 1.. {
            let Some(id) = form.get(&format!("Targets.member.{n}.Id")) else { break };
            let port = form.get(&format!("Targets.member.{n}.Port")).and_then(|port| port.parse().ok());
            for port in group.deregister(now, id, Some(port.unwrap_or(0))) {
                gone.push(Deregistration { at: now, group: arn.to_owned(), id: id.to_owned(), port });
            }
        }
        self.deregistered.extend(gone);
        Ok(answer_wrapped("DeregisterTargets", |_| {}))
    }
}
