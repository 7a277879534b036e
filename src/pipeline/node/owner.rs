//! Looks up the owner of an instance without a Node here. EC2 is asked for many instances in one call; its answers are cached.

use crate::clients::batch::Batcher;
use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::runtime::task::Tasks;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::operation::describe_instances::DescribeInstancesOutput;
use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName, Tag};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of values in a filter of `DescribeInstances`.
const MAX_FILTER_VALUES: usize = 200;

/// Maximum number of instances that are asked about in one call. One value is left for the instance that the cluster's name is learned from.
pub const MAX_ASKED: usize = MAX_FILTER_VALUES - 1;

/// Time that a lookup waits for others to share its call. They are common where every cluster's events go to every queue.
const BATCH_WAIT: Duration = Duration::from_millis(50);

/// Time to live of a cached record. An instance's tags rarely change; a group sets them at the launch.
const KNOWN_TTL: Duration = Duration::from_mins(5);

/// Time to live of a cached record of an unknown or terminated instance. EC2 is eventually consistent: an unknown instance may be a second
/// old.
const UNKNOWN_TTL: Duration = Duration::from_secs(30);

/// The call of [`describe`].
pub const DESCRIBE_INSTANCES: Operation = Operation::new("ec2", "DescribeInstances");

/// Maximum number of cached records, of some hundred bytes each.
const MAX_CACHED: usize = 10_000;

/// The tag that marks an instance as managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedTag {
    /// The tag's key.
    pub key: String,
    /// The value that the tag must have; `None` accepts any.
    pub value: Option<String>,
}

/// EC2's record of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceRecord {
    /// The instance exists.
    Known {
        /// Membership by its tags.
        membership: Membership,
        /// Whether the instance is stopped.
        stopped: bool,
    },
    /// The instance is terminated.
    Terminated {
        /// Membership by its remaining tags.
        membership: Membership,
    },
    /// EC2 does not know the instance.
    Unknown,
}

/// EC2's description of an instance.
#[derive(Clone, Debug)]
struct Found {
    record: InstanceRecord,
    /// The Auto Scaling group that its tag names.
    group: Option<Arc<str>>,
}

impl Found {
    const UNKNOWN: Self = Self { record: InstanceRecord::Unknown, group: None };
}

/// Key of the tag with the name of an instance's Auto Scaling group.
const GROUP_TAG: &str = "aws:autoscaling:groupName";

/// Membership of an instance in a cluster, by its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It does not carry the managed tag.
    NotManaged,
    /// It carries the managed tag, and either the tag's value or the name of this cluster proves that it belongs here.
    ThisCluster,
    /// Its tags name another cluster.
    OtherCluster,
    /// It carries the managed tag without a value, which other clusters may use as well, and nothing shows which one it belongs to.
    Unproven {
        /// The time of its launch.
        launched: Option<Timestamp>,
    },
}

/// The names of this cluster in tags.
#[derive(Clone)]
pub struct ClusterNames {
    /// The names; empty until they are known.
    names: Arc<OnceLock<Vec<String>>>,
    /// Returns an instance of this cluster, whose tags have the name.
    example: Arc<dyn Fn() -> Option<InstanceId> + Send + Sync>,
}

impl ClusterNames {
    /// The name that the user has set; or else those in the tags of the instance that `example` returns, once there is one.
    #[must_use]
    pub fn new(name: Option<String>, example: impl Fn() -> Option<InstanceId> + Send + Sync + 'static) -> Self {
        let names = name.map_or_else(OnceLock::new, |name| OnceLock::from(vec![name]));
        Self { names: Arc::new(names), example: Arc::new(example) }
    }

    /// Returns the instance to ask about, if the names are not known.
    fn to_learn_from(&self) -> Option<InstanceId> {
        if self.names.get().is_some() { None } else { (self.example)() }
    }

    /// Returns whether `named`, the names in an instance's tags, mean this cluster; `None` if that is unknown.
    fn mean_this_cluster(&self, named: &[String]) -> Option<bool> {
        let names = self.names.get()?;
        (!named.is_empty()).then(|| named.iter().any(|name| names.contains(name)))
    }
}

impl fmt::Debug for ClusterNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterNames").field(&self.names).finish()
    }
}

/// Returns the filter for these instances: a call with the ID of an unknown instance fails as a whole.
#[must_use]
pub fn by_id(ids: Vec<String>) -> Filter {
    Filter::builder().name("instance-id").set_values(Some(ids)).build()
}

/// Returns the instances of an answer.
pub fn instances_in(answer: DescribeInstancesOutput) -> impl Iterator<Item = Instance> {
    answer.reservations.unwrap_or_default().into_iter().filter_map(|reservation| reservation.instances).flatten()
}

/// Returns all instances that the filter finds, from all pages; `subject` names them in errors.
///
/// # Errors
/// If EC2 gave no answer. The caller retries.
pub async fn describe(
    client: &Client,
    gate: &Gate<AwsClass>,
    filter: &Filter,
    subject: &str,
) -> Result<Vec<Instance>, AwsError> {
    let mut found: Vec<Instance> = Vec::new();
    let mut page = None;
    loop {
        let request = client.describe_instances().filters(filter.clone()).set_next_token(page.take());
        let (class, by) = (AwsClass::Describe, Instant::now() + CALL_TIMEOUT);
        let answer = gate.aws(DESCRIBE_INSTANCES, subject, class, by, || request.send()).await?;
        page = answer.next_token.clone().filter(|token| !token.is_empty());
        found.extend(instances_in(answer));
        if page.is_none() {
            return Ok(found);
        }
    }
}

/// Names the instances of a call in its errors.
#[must_use]
pub fn subject_of(instances: &[InstanceId]) -> String {
    match instances {
        [one] => one.to_string(),
        many => format!("{} instances", many.len()),
    }
}

/// Returns the names of clusters in the tags of an instance. EKS sets the second and the third; node groups, Karpenter and most other
/// tools set the first.
#[must_use]
pub fn clusters_in(tags: &[Tag]) -> Vec<String> {
    let named = |tag: &Tag| match tag.key.as_deref()? {
        "eks:cluster-name" | "aws:eks:cluster-name" => tag.value.clone(),
        key => key.strip_prefix("kubernetes.io/cluster/").map(str::to_owned),
    };
    tags.iter().filter_map(named).filter(|name| !name.is_empty()).collect()
}

/// Looks up instances in EC2, at most once an instance within some minutes.
#[derive(Clone, Debug)]
pub struct OwnerLookup {
    batcher: Arc<Batcher<InstanceId, Found>>,
    query: InstanceQuery,
    cache: Arc<Mutex<Cache>>,
}

/// Kept records.
#[derive(Debug)]
struct Cache {
    /// Records, and when they expire.
    records: HashMap<InstanceId, (Found, Instant)>,
    /// When those that had expired were last removed.
    swept: Instant,
}

impl OwnerLookup {
    /// Returns a lookup through `client` of instances with the tag `tag`, in a cluster with these names.
    #[must_use]
    pub fn new(client: Client, tag: ManagedTag, cluster: ClusterNames, tasks: &Tasks, facts: Facts) -> Self {
        let query = InstanceQuery { client, gate: Gate::new(facts), tag: Arc::new(tag), cluster };
        let batched = query.clone();
        let batcher = Batcher::start(tasks, DESCRIBE_INSTANCES, MAX_ASKED, BATCH_WAIT, move |instances| {
            batched.clone().run(instances)
        });
        let cache = Cache { records: HashMap::new(), swept: Instant::now() };
        Self { batcher: Arc::new(batcher), query, cache: Arc::new(Mutex::new(cache)) }
    }

    /// Returns EC2's record of the instance, which may be some minutes old.
    ///
    /// # Errors
    /// If EC2 gave no answer. The caller retries.
    pub async fn ask(&self, instance: &InstanceId) -> Result<InstanceRecord, AwsError> {
        match self.cached(instance) {
            Some(found) => Ok(found.record),
            None => self.ask_anew(instance).await,
        }
    }

    /// Returns EC2's current record of the instance.
    ///
    /// # Errors
    /// As [`OwnerLookup::ask`].
    pub async fn ask_anew(&self, instance: &InstanceId) -> Result<InstanceRecord, AwsError> {
        Ok(self.find(instance).await?.record)
    }

    /// Returns EC2's current records of these instances, at most [`MAX_ASKED`], in their order and all from one query.
    ///
    /// # Errors
    /// As [`OwnerLookup::ask`].
    pub async fn ask_together(&self, instances: Vec<InstanceId>) -> Result<Vec<InstanceRecord>, AwsError> {
        self.query.clone().run(instances).await.into_iter().map(|found| Ok(found?.record)).collect()
    }

    /// Returns the name of the instance's Auto Scaling group, as of some minutes ago; `None` if it has none.
    ///
    /// # Errors
    /// As [`OwnerLookup::ask`].
    pub async fn group_of(&self, instance: &InstanceId) -> Result<Option<Arc<str>>, AwsError> {
        match self.cached(instance) {
            Some(found) => Ok(found.group),
            None => Ok(self.find(instance).await?.group),
        }
    }

    /// Returns the names of this cluster in tags: the one that is set, or those of an instance of this cluster, which is looked up until
    /// they are known; none if its tags have none.
    ///
    /// # Errors
    /// As [`OwnerLookup::ask`].
    pub async fn cluster_names(&self) -> Result<&[String], AwsError> {
        let cluster = &self.query.cluster;
        if let Some(example) = cluster.to_learn_from() {
            self.find(&example).await?;
        }
        Ok(cluster.names.get().map_or(&[], Vec::as_slice))
    }

    async fn find(&self, instance: &InstanceId) -> Result<Found, AwsError> {
        let found = self.batcher.ask(instance.clone()).await?;
        self.cache(instance, found.clone());
        Ok(found)
    }

    /// Returns the instances that run in the capacity reservation of this id. Keeps their records.
    ///
    /// # Errors
    /// If EC2 gave no answer. The caller retries.
    pub async fn in_reservation(&self, reservation: &str) -> Result<Vec<InstanceId>, AwsError> {
        let filter = Filter::builder().name("capacity-reservation-id").values(reservation).build();
        let mut running = Vec::new();
        for instance in describe(&self.query.client, &self.query.gate, &filter, reservation).await? {
            let Some(id) = instance.instance_id().and_then(InstanceId::new) else { continue };
            let found = self.query.found(&instance);
            let record = found.record;
            self.cache(&id, found);
            if !matches!(record, InstanceRecord::Terminated { .. }) {
                running.push(id);
            }
        }
        Ok(running)
    }

    fn cached(&self, instance: &InstanceId) -> Option<Found> {
        let cache = self.cache.lock();
        cache.records.get(instance).filter(|(_, expires)| Instant::now() < *expires).map(|(found, _)| found.clone())
    }

    fn cache(&self, instance: &InstanceId, found: Found) {
        self.cache.lock().keep(instance, found);
    }
}

impl Cache {
    fn keep(&mut self, instance: &InstanceId, found: Found) {
        let now = Instant::now();
        let known = matches!(found.record, InstanceRecord::Known { .. });
        let expires = now + if known { KNOWN_TTL } else { UNKNOWN_TTL };
        if self.records.len() >= MAX_CACHED || now >= self.swept + KNOWN_TTL {
            self.records.retain(|_, (_, expires)| now < *expires);
            self.swept = now;
        }
        if self.records.len() >= MAX_CACHED {
            // A storm of foreign instances may cost a lookup each, but not memory.
            self.records.clear();
        }
        self.records.insert(instance.clone(), (found, expires));
    }
}

/// The query of instances by ID.
#[derive(Clone, Debug)]
struct InstanceQuery {
    client: Client,
    /// Limits the calls in flight: thousands of foreign instances make a hundred.
    gate: Gate<AwsClass>,
    tag: Arc<ManagedTag>,
    cluster: ClusterNames,
}

impl InstanceQuery {
    /// Returns a record for each of `instances`, in their order.
    async fn run(self, instances: Vec<InstanceId>) -> Vec<Result<Found, AwsError>> {
        match self.look_up(&instances).await {
            Ok(found) => {
                instances.iter().map(|id| Ok(found.get(id.as_str()).cloned().unwrap_or(Found::UNKNOWN))).collect()
            }
            Err(error) => vec![Err(error); instances.len()],
        }
    }

    async fn look_up(&self, instances: &[InstanceId]) -> Result<HashMap<String, Found>, AwsError> {
        let subject = subject_of(instances);
        let example = self.cluster.to_learn_from();
        let mut ids: Vec<String> = instances.iter().chain(&example).map(ToString::to_string).collect();
        ids.sort_unstable();
        ids.dedup();
        let found = describe(&self.client, &self.gate, &by_id(ids), &subject).await?;
        let example = example.and_then(|id| found.iter().find(|found| found.instance_id() == Some(id.as_str())));
        let names = example.map(|example| clusters_in(example.tags())).unwrap_or_default();
        // An instance without such a tag proves nothing about others: the next lookup asks again, in the same call.
        if !names.is_empty() {
            // The first to learn them wins; another answer would be the same.
            let _ = self.cluster.names.set(names);
        }
        let of = |instance: Instance| Some((instance.instance_id.clone()?, self.found(&instance)));
        Ok(found.into_iter().filter_map(of).collect())
    }

    fn found(&self, instance: &Instance) -> Found {
        let group = instance.tags().iter().find(|tag| tag.key() == Some(GROUP_TAG)).and_then(Tag::value);
        Found { record: self.record(instance), group: group.map(Into::into) }
    }

    fn record(&self, instance: &Instance) -> InstanceRecord {
        let state = instance.state.as_ref().and_then(|state| state.name.as_ref());
        let tagged = instance.tags.iter().flatten().any(|tag| {
            tag.key.as_deref() == Some(&self.tag.key)
                && self.tag.value.as_deref().is_none_or(|value| tag.value.as_deref() == Some(value))
        });
        let membership = match self.cluster.mean_this_cluster(&clusters_in(instance.tags())) {
            Some(false) => Membership::OtherCluster,
            _ if !tagged => Membership::NotManaged,
            Some(true) => Membership::ThisCluster,
            None if self.tag.value.is_some() => Membership::ThisCluster,
            None => {
                let launched = instance.launch_time.and_then(|at| Timestamp::from_second(at.secs()).ok());
                Membership::Unproven { launched }
            }
        };
        match state {
            Some(InstanceStateName::Terminated) => InstanceRecord::Terminated { membership },
            _ => InstanceRecord::Known { membership, stopped: state == Some(&InstanceStateName::Stopped) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_is_not_kept() {
        let mut cache = Cache { records: HashMap::new(), swept: Instant::now() };
        for n in 0..100 {
            let instance = InstanceId::new(&format!("i-{n:017x}")).unwrap();
            cache.keep(&instance, Found::UNKNOWN);
            sleep(Duration::from_secs(10)).await;
        }
        let kept = cache.records.len();
        assert!(kept <= 31, "{kept} records, of which each is good for 30 s");
        cache.swept += KNOWN_TTL * 1000;
        for n in 0..=MAX_CACHED {
            cache.keep(&InstanceId::new(&format!("i-{n:017x}")).unwrap(), Found::UNKNOWN);
        }
        assert!(cache.records.len() <= MAX_CACHED, "a storm is bounded, too");
    }
}
