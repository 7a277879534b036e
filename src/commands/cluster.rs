//! The cluster that a command line chooses, and its objects.

use crate::cli::flags::cluster::Cluster;
use crate::clients::connect::ClusterChoice;
use crate::clients::gate::{CALL_TIMEOUT, Call, Class, Gate, KubeError};
use kube::Api;
use kube::api::ListParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tokio::time::Instant;

/// Maximum number of objects a page of a list.
const PAGE: u32 = 500;

/// The used part of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Phase {
    #[serde(default)]
    pub phase: String,
}

/// Returns the choice of the command line.
#[must_use]
pub fn chosen(Cluster { kubeconfig, context }: Cluster) -> ClusterChoice {
    ClusterChoice { kubeconfig, context }
}

/// Returns all objects that the parameters select. `subject` is what the list is of, in errors.
///
/// # Errors
/// That of the first page that fails.
pub(super) async fn list_all<K>(
    gate: &Gate,
    resource: &'static str,
    subject: &str,
    api: &Api<K>,
    params: ListParams,
) -> Result<Vec<K>, KubeError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut params = params.limit(PAGE);
    loop {
        let call = Call { verb: "list", resource, subject };
        let page = gate.kube(call, Class::List, Instant::now() + CALL_TIMEOUT, || api.list(&params)).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
