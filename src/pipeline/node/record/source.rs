//! The sources that assert a change which another one has reported first. AWS Health, and EC2 with the agent, name the same change by
//! different ids.

use crate::pipeline::event::{Notice, NoticeKey};
use crate::pipeline::node::names::is_from_node;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::Display;

/// Maximum number of sources of a change besides the first: a message, the agent, EC2's list.
const MAX_OTHERS: usize = 3;

/// Prefix of the id of a change that EC2 lists.
const FROM_EC2: &str = "ec2/";

/// The sources of a notice besides the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Vec<Source>", into = "Vec<Source>")]
pub struct Sources(Vec<Source>);

impl TryFrom<Vec<Source>> for Sources {
    type Error = String;

    /// A kubelet may write any number of them, and each is work.
    fn try_from(all: Vec<Source>) -> Result<Self, String> {
        if all.len() > MAX_OTHERS { Err(format!("more than {MAX_OTHERS} other sources")) } else { Ok(Self(all)) }
    }
}

impl From<Sources> for Vec<Source> {
    fn from(sources: Sources) -> Self {
        sources.0
    }
}

/// A source that asserts a notice which another one has reported first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Source {
    /// The key of the notice by its own id.
    #[serde(serialize_with = "written", deserialize_with = "read")]
    pub(super) key: NoticeKey,
    /// Id of the message, or what stands for one: `node/<kind>/<id>` of an agent, `ec2/<id>` of what EC2 lists.
    by: String,
}

impl Sources {
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key and the message of each.
    pub(in crate::pipeline::node) fn iter(&self) -> impl Iterator<Item = (NoticeKey, &str)> {
        self.0.iter().map(|source| (source.key, &*source.by))
    }

    /// Whether the source whose notice has this key is among them.
    pub(in crate::pipeline::node) fn has(&self, key: NoticeKey) -> bool {
        self.iter().any(|(known, _)| known == key)
    }

    /// Returns these and another; `None` if it is among them, or there are as many as may be.
    pub(super) fn with(&self, source: Source) -> Option<Self> {
        let is_new = !self.has(source.key) && self.0.len() < MAX_OTHERS;
        is_new.then(|| Self(self.0.iter().cloned().chain([source]).collect()))
    }

    /// Returns these without the source whose notice has this key.
    pub(in crate::pipeline::node) fn without(&self, key: NoticeKey) -> Self {
        Self(self.0.iter().filter(|source| source.key != key).cloned().collect())
    }

    /// Whether one of them continues to report the notice, as an agent and EC2's list do.
    pub(in crate::pipeline::node) fn repeat(&self) -> bool {
        self.iter().any(|(_, by)| is_from_node(by) || by.starts_with(FROM_EC2))
    }
}

impl Source {
    /// Returns the source of this notice. `by` is the id of its message, or what stands for one.
    pub(in crate::pipeline::node) fn of(notice: &Notice, by: &str) -> Self {
        let is_listed = notice.identity.ec2_id().as_deref() == Some(by);
        let by = if is_listed { format!("{FROM_EC2}{by}") } else { by.to_owned() };
        Self { key: notice.key(), by }
    }
}

fn written<S: Serializer>(key: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(key)
}

fn read<'de, D: Deserializer<'de>>(from: D) -> Result<NoticeKey, D::Error> {
    NoticeKey::read(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("it is no key"))
}
