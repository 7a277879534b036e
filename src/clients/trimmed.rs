//! An object of the API server. Only its used parts are parsed.
//!
//! The largest parts of an object are not used: a Node's images, and `managedFields`, which kube's own metadata keep as a tree of
//! values.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use kube::{Api, Resource};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// An object with the used parts of its spec and status; the rest is skipped. For a `BARE` object the API server is asked for the
/// metadata only.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Trimmed<P, U, const BARE: bool = false> {
    /// The used parts of its metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Its spec.
    #[serde(default)]
    pub spec: P,
    /// Its status.
    #[serde(default)]
    pub status: U,
}

/// An object's metadata.
pub type Bare = Trimmed<IgnoredAny, IgnoredAny, true>;

/// Reads the object of this resource (`nodes`) and name; `None` only if the API server itself reports that it does not exist. A proxy,
/// or a starting API server, may answer 404 as well.
///
/// # Errors
/// Any other answer, or none.
pub async fn find<K>(api: &Api<K>, resource: &str, name: &str) -> Result<Option<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    match api.get(name).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status))
            if status.reason == "NotFound" && status.details.as_ref().is_some_and(|about| about.kind == resource) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The parts of metadata that are parsed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        labels: read.labels,
        annotations: read.annotations,
        owner_references: read.owner_references,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    })
}

impl<P, U, const BARE: bool> Resource for Trimmed<P, U, BARE> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        (&kind.group).into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        (&kind.version).into()
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        (&kind.kind).into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        (&kind.plural).into()
    }

    fn api_version(kind: &ApiResource) -> Cow<'_, str> {
        (&kind.api_version).into()
    }

    fn metadata_api() -> bool {
        BARE
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keeps_of_metadata_what_is_used_and_nothing_else() {
        let wire = json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-11-21T10:00:00Z", "deletionTimestamp": "2026-11-21T11:00:00Z",
                "deletionGracePeriodSeconds": 30,
                "labels": { "app": "web" }, "annotations": { "a": "b" }, "finalizers": ["x"],
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-0" }],
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": { "f:phase": {} } } }],
            },
            "status": { "phase": "Running" },
        });
        let bare: Trimmed<(), serde_json::Value> = serde_json::from_value(wire).unwrap();
        assert_eq!(bare.status, json!({ "phase": "Running" }));
        let kept = serde_json::to_value(bare.metadata).unwrap();
        assert_eq!(
            kept,
            json!({
                "name": "web-1", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-11-21T10:00:00Z", "deletionTimestamp": "2026-11-21T11:00:00Z",
                "deletionGracePeriodSeconds": 30,
                "labels": { "app": "web" }, "annotations": { "a": "b" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-0" }],
            })
        );
    }
}
