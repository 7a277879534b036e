//! Signs on a Node that another tool works on it now. Pure.

use super::label::{LabelError, checked_key};
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A taint or an annotation as the sign that another tool works on a Node, and does not only want to: `KEY`, with any value, or
/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkSign(Arc<str>);

impl WorkSign {
    /// Parses `KEY` or `KEY=VALUE`.
    ///
    /// # Errors
    /// The key, if it is not valid.
    pub fn read(text: &str) -> Result<Self, LabelError> {
        let key = text.split_once('=').map_or(text, |(key, _)| key);
        checked_key(key)?;
        Ok(Self(text.into()))
    }

    /// Whether the sign is among these taints or annotations.
    pub(super) fn stands(&self, taints: &[Taint], annotations: &BTreeMap<String, String>) -> bool {
        let (key, wanted) = self.0.split_once('=').map_or((&*self.0, None), |(key, value)| (key, Some(value)));
        let is_wanted = |value: &str| wanted.is_none_or(|wanted| wanted == value);
        annotations.get(key).is_some_and(|value| is_wanted(value))
            || taints.iter().any(|taint| taint.key == key && is_wanted(taint.value.as_deref().unwrap_or_default()))
    }
}

impl fmt::Display for WorkSign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
