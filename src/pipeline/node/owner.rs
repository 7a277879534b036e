//! Whose is an instance that has no Node here? EC2 is asked, for many instances at once, and its answers are kept for a while.

use crate::clients::batch::{Batcher, Unanswered};
use crate::clients::gate;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Category};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::runtime::task::Tasks;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A filter takes at most so many values.
const BATCH: usize = 200;

/// How long a question waits for company: with every cluster's events on every queue, there is company.
const LINGER: Duration = Duration::from_millis(50);

/// An instance's tags hardly change; a group gives them at the launch itself.
const KEPT: Duration = Duration::from_mins(5);

/// EC2 is eventually consistent: an instance it does not know may be a second old.
const UNKNOWN_KEPT: Duration = Duration::from_secs(30);

/// Some hundred bytes each; beyond it the oldest go.
const MOST_KEPT: usize = 10_000;

/// The tag that marks an instance as managed: a key, and a value where one is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedTag {
    /// The tag's key.
    pub key: String,
    /// The value it must have; any, where none is given.
    pub value: Option<String>,
}

/// What EC2 says about an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// EC2 knows it.
    Known {
        /// Whether it carries the managed tag.
        tagged: bool,
        /// Whether it is stopped.
        stopped: bool,
    },
    /// EC2 knows it as terminated.
    Terminated {
        /// Whether it carries the managed tag still.
        tagged: bool,
    },
    /// EC2 does not know it.
    Unknown,
}

/// Why EC2 gave no answer about an instance.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Asked {
    /// The call failed.
    #[error(transparent)]
    Failed(#[from] AwsError),
    /// The call died.
    #[error("ec2:DescribeInstances: {0}")]
    Unanswered(#[from] Unanswered),
}

/// Asks EC2, at most once for an instance within some minutes.
#[derive(Clone, Debug)]
pub struct Owner {
    questions: Arc<Batcher<InstanceId, Result<Fate, AwsError>>>,
    known: Arc<Mutex<HashMap<InstanceId, (Fate, Instant)>>>,
}

impl Owner {
    /// Asks by way of `client` for the tag `tag`.
    #[must_use]
    pub fn new(client: Client, tag: ManagedTag, tasks: &Tasks, facts: Facts) -> Self {
        let asker = Asker { client, tag: Arc::new(tag), facts };
        let questions = Batcher::start(tasks, BATCH, LINGER, move |instances| asker.clone().ask(instances));
        Self { questions: Arc::new(questions), known: Arc::default() }
    }

    /// What EC2 says about `instance`, now or some minutes ago.
    ///
    /// # Errors
    /// When EC2 gave no answer; asking again is up to the caller.
    pub async fn ask(&self, instance: &InstanceId) -> Result<Fate, Asked> {
        match self.remembered(instance) {
            Some(fate) => Ok(fate),
            None => self.ask_anew(instance).await,
        }
    }

    /// What EC2 says about `instance` now.
    ///
    /// # Errors
    /// As [`Owner::ask`].
    pub async fn ask_anew(&self, instance: &InstanceId) -> Result<Fate, Asked> {
        let fate = self.questions.ask(instance.clone()).await??;
        self.remember(instance, fate);
        Ok(fate)
    }

    fn remembered(&self, instance: &InstanceId) -> Option<Fate> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(instance).filter(|(_, until)| Instant::now() < *until).map(|(fate, _)| *fate)
    }

    fn remember(&self, instance: &InstanceId, fate: Fate) {
        let now = Instant::now();
        let known = matches!(fate, Fate::Known { .. });
        let until = now + if known { KEPT } else { UNKNOWN_KEPT };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KEPT {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= MOST_KEPT {
            // A storm of strangers: what they cost is a question each, what they must not cost is memory.
            known.clear();
        }
        known.insert(instance.clone(), (fate, until));
    }
}

#[derive(Clone, Debug)]
struct Asker {
    client: Client,
    tag: Arc<ManagedTag>,
    facts: Facts,
}

impl Asker {
    async fn ask(self, instances: Vec<InstanceId>) -> Vec<Result<Fate, AwsError>> {
        match self.describe(&instances).await {
            Ok(found) => {
                instances.iter().map(|id| Ok(found.get(id.as_str()).copied().unwrap_or(Fate::Unknown))).collect()
            }
            Err(error) => vec![Err(error); instances.len()],
        }
    }

    async fn describe(&self, instances: &[InstanceId]) -> Result<HashMap<String, Fate>, AwsError> {
        let subject = match instances {
            [one] => one.to_string(),
            many => format!("{} instances", many.len()),
        };
        let mut ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
        ids.sort_unstable();
        ids.dedup();
        // By filter: asked by id, EC2 fails the whole call for one that it does not know.
        let filter = Filter::builder().name("instance-id").set_values(Some(ids)).build();
        let mut found = HashMap::new();
        let mut page = None;
        loop {
            let request = self.client.describe_instances().filters(filter.clone()).set_next_token(page.take());
            let answer =
                gate::aws(&self.facts, ("ec2", "DescribeInstances"), &subject, CALL_TIMEOUT, || request.send()).await?;
            let answered = answer.reservations.unwrap_or_default().into_iter().filter_map(|r| r.instances).flatten();
            for instance in answered {
                let fate = self.fate(&instance);
                if let Some(id) = instance.instance_id {
                    found.insert(id, fate);
                }
            }
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(found);
            }
        }
    }

    fn fate(&self, instance: &Instance) -> Fate {
        let state = instance.state.as_ref().and_then(|state| state.name.as_ref());
        let tagged = instance.tags.iter().flatten().any(|tag| {
            tag.key.as_deref() == Some(&self.tag.key)
                && self.tag.value.as_deref().is_none_or(|value| tag.value.as_deref() == Some(value))
        });
        if state == Some(&InstanceStateName::Terminated) {
            return Fate::Terminated { tagged };
        }
        Fate::Known { tagged, stopped: state == Some(&InstanceStateName::Stopped) }
    }
}

impl Asked {
    /// The failure's class.
    #[must_use]
    pub const fn category(&self) -> Category {
        match self {
            Self::Failed(error) => error.category,
            Self::Unanswered(_) => Category::Unavailable,
        }
    }
}
