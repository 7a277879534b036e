//! Looks up the owner of an instance without a Node here. EC2 is asked for many instances in one call; its answers are cached.

use crate::clients::batch::{Batcher, Unanswered};
use crate::clients::gate;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Category, Operation};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::runtime::task::Tasks;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of values in a filter of `DescribeInstances`.
const MAX_BATCH: usize = 200;

/// Time that a lookup waits for others to share its call. They are common where every cluster's events go to every queue.
const BATCH_WAIT: Duration = Duration::from_millis(50);

/// Time to live of a cached record. An instance's tags rarely change; a group sets them at the launch.
const KNOWN_TTL: Duration = Duration::from_mins(5);

/// Time to live of a cached record that says unknown or terminated. EC2 is eventually consistent: an unknown instance may be a
/// second old.
const UNKNOWN_TTL: Duration = Duration::from_secs(30);

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
        /// Whether the instance carries the managed tag.
        tagged: bool,
        /// Whether the instance is stopped.
        stopped: bool,
    },
    /// The instance is terminated.
    Terminated {
        /// Whether the instance still carries the managed tag.
        tagged: bool,
    },
    /// EC2 does not know the instance.
    Unknown,
}

/// The error of a lookup that EC2 did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OwnerLookupError {
    /// The call failed.
    #[error(transparent)]
    Failed(#[from] AwsError),
    /// The task of the call died.
    #[error("ec2:DescribeInstances: {0}")]
    Unanswered(#[from] Unanswered),
}

/// Looks up instances in EC2, at most once an instance within some minutes.
#[derive(Clone, Debug)]
pub struct OwnerLookup {
    batcher: Arc<Batcher<InstanceId, Result<InstanceRecord, AwsError>>>,
    /// Records, and when they expire.
    cache: Arc<Mutex<HashMap<InstanceId, (InstanceRecord, Instant)>>>,
}

impl OwnerLookup {
    /// Returns a lookup through `client` of instances with the tag `tag`.
    #[must_use]
    pub fn new(client: Client, tag: ManagedTag, tasks: &Tasks, facts: Facts) -> Self {
        let query = InstanceQuery { client, tag: Arc::new(tag), facts };
        let batcher = Batcher::start(tasks, MAX_BATCH, BATCH_WAIT, move |instances| query.clone().run(instances));
        Self { batcher: Arc::new(batcher), cache: Arc::default() }
    }

    /// Returns EC2's record of the instance, which may be some minutes old.
    ///
    /// # Errors
    /// If EC2 gave no answer. The caller retries.
    pub async fn ask(&self, instance: &InstanceId) -> Result<InstanceRecord, OwnerLookupError> {
        match self.cached(instance) {
            Some(record) => Ok(record),
            None => self.ask_anew(instance).await,
        }
    }

    /// Returns EC2's current record of the instance.
    ///
    /// # Errors
    /// As [`OwnerLookup::ask`].
    pub async fn ask_anew(&self, instance: &InstanceId) -> Result<InstanceRecord, OwnerLookupError> {
        let record = self.batcher.ask(instance.clone()).await??;
        self.cache(instance, record);
        Ok(record)
    }

    fn cached(&self, instance: &InstanceId) -> Option<InstanceRecord> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(instance).filter(|(_, expires)| Instant::now() < *expires).map(|(record, _)| *record)
    }

    fn cache(&self, instance: &InstanceId, record: InstanceRecord) {
        let now = Instant::now();
        let known = matches!(record, InstanceRecord::Known { .. });
        let expires = now + if known { KNOWN_TTL } else { UNKNOWN_TTL };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (_, expires)| now < *expires);
        }
        if cache.len() >= MAX_CACHED {
            // A storm of foreign instances may cost a lookup each, but not memory.
            cache.clear();
        }
        cache.insert(instance.clone(), (record, expires));
    }
}

/// The query of instances by ID.
#[derive(Clone, Debug)]
struct InstanceQuery {
    client: Client,
    tag: Arc<ManagedTag>,
    facts: Facts,
}

impl InstanceQuery {
    /// Returns a record for each of `instances`, in their order.
    async fn run(self, instances: Vec<InstanceId>) -> Vec<Result<InstanceRecord, AwsError>> {
        match self.describe(&instances).await {
            Ok(found) => instances
                .iter()
                .map(|id| Ok(found.get(id.as_str()).copied().unwrap_or(InstanceRecord::Unknown)))
                .collect(),
            Err(error) => vec![Err(error); instances.len()],
        }
    }

    async fn describe(&self, instances: &[InstanceId]) -> Result<HashMap<String, InstanceRecord>, AwsError> {
        let subject = match instances {
            [one] => one.to_string(),
            many => format!("{} instances", many.len()),
        };
        let mut ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
        ids.sort_unstable();
        ids.dedup();
        // A filter, because a call with the ID of an unknown instance fails as a whole.
        let filter = Filter::builder().name("instance-id").set_values(Some(ids)).build();
        let mut found = HashMap::new();
        let mut page = None;
        loop {
            let request = self.client.describe_instances().filters(filter.clone()).set_next_token(page.take());
            let answer =
                gate::aws(&self.facts, Operation::new("ec2", "DescribeInstances"), &subject, CALL_TIMEOUT, || {
                    request.send()
                })
                .await?;
            let answered = answer.reservations.unwrap_or_default().into_iter().filter_map(|r| r.instances).flatten();
            for instance in answered {
                let record = self.record(&instance);
                if let Some(id) = instance.instance_id {
                    found.insert(id, record);
                }
            }
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(found);
            }
        }
    }

    fn record(&self, instance: &Instance) -> InstanceRecord {
        let state = instance.state.as_ref().and_then(|state| state.name.as_ref());
        let tagged = instance.tags.iter().flatten().any(|tag| {
            tag.key.as_deref() == Some(&self.tag.key)
                && self.tag.value.as_deref().is_none_or(|value| tag.value.as_deref() == Some(value))
        });
        if state == Some(&InstanceStateName::Terminated) {
            return InstanceRecord::Terminated { tagged };
        }
        InstanceRecord::Known { tagged, stopped: state == Some(&InstanceStateName::Stopped) }
    }
}

impl OwnerLookupError {
    /// Returns the category of the error.
    #[must_use]
    pub const fn category(&self) -> Category {
        match self {
            Self::Failed(error) => error.category,
            Self::Unanswered(_) => Category::Unavailable,
        }
    }
}
