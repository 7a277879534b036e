//! The target groups of the cloud provider's Services, found by their tags. No `TargetGroupBinding` and no Auto Scaling group names them.
//!
//! For a Service with a Network Load Balancer, cloud-provider-aws creates target groups of instances, whose names begin with `k8s-`, and tags
//! them with the cluster and the Service. Elastic Load Balancing can't be searched by tags: all target groups of the account are listed,
//! and the tags of those that may be a Service's are read, once each.

use super::target_group::{Source, TargetGroup, name_of};
use crate::clients::gate::{AwsClass, AwsError, Category, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::node::OwnerLookup;
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::types::{self, ProtocolEnum, TagDescription, TargetTypeEnum};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// Maximum number of target groups in one answer, which AWS sets.
const PAGE_SIZE: i32 = 400;

/// Maximum number of target groups in one call about tags, which AWS sets.
const MAX_TAGGED: usize = 20;

/// Beginning of the names of Services' target groups.
const NAME_PREFIX: &str = "k8s-";

/// Beginning of the tag with the cluster's name.
const CLUSTER_TAG: &str = "kubernetes.io/cluster/";

/// Key of the tag with the Service: `NAMESPACE/NAME`.
const SERVICE_TAG: &str = "kubernetes.io/service-name";

const DESCRIBE_GROUPS: Operation = Operation::new("elasticloadbalancing", "DescribeTargetGroups");
const DESCRIBE_TAGS: Operation = Operation::new("elasticloadbalancing", "DescribeTags");

/// Finds the target groups of this cluster's Services.
pub(super) struct ServiceGroups {
    client: Client,
    gate: Gate<AwsClass>,
    /// Knows the cluster's name.
    owner: OwnerLookup,
    /// The Services that target groups belong to, by ARN; `None` for one without a Service of this cluster. The cloud provider sets the
    /// tags when it creates a group.
    known: Mutex<HashMap<Arc<str>, Option<Box<str>>>>,
}

impl ServiceGroups {
    pub(super) fn new(client: Client, owner: OwnerLookup, facts: Facts) -> Self {
        Self { client, gate: Gate::new(facts), owner, known: Mutex::default() }
    }

    /// Returns the target groups of this cluster's Services; none while the cluster's name is unknown. What it has read before an error is
    /// kept for the next search.
    ///
    /// # Errors
    /// If AWS gave no answer.
    pub(super) async fn find(&self, by: Instant) -> Result<Vec<TargetGroup>, AwsError> {
        let clusters = self.owner.cluster_names().await?;
        if clusters.is_empty() {
            return Ok(Vec::new());
        }
        let listed = self.list(by).await?;
        let unread: Vec<_> = {
            let mut known = self.known.lock();
            known.retain(|arn, _| listed.contains(arn));
            listed.iter().filter(|arn| !known.contains_key(*arn)).cloned().collect()
        };
        let mut batches: Vec<_> = unread.chunks(MAX_TAGGED).collect();
        while let Some(batch) = batches.pop() {
            match self.tags_of(batch, by).await {
                Ok(described) => self.note(described, clusters),
                // One of them was deleted after the list. The other half is answered.
                Err(error) if error.category == Category::NotFound => match batch.len() {
                    1 => {}
                    several => batches.extend(batch.chunks(several.div_ceil(2))),
                },
                Err(error) => return Err(error),
            }
        }
        let known = self.known.lock();
        let of_service = |arn: Arc<str>| {
            let service = known.get(&arn).cloned().flatten()?;
            Some(TargetGroup { arn, from: Source::Service(service) })
        };
        Ok(listed.into_iter().filter_map(of_service).collect())
    }

    /// Returns the ARNs of all target groups that may be a Service's.
    async fn list(&self, by: Instant) -> Result<BTreeSet<Arc<str>>, AwsError> {
        let (mut found, mut page) = (BTreeSet::new(), None);
        loop {
            let request = self.client.describe_target_groups().page_size(PAGE_SIZE).set_marker(page.take());
            let subject = "all target groups";
            let answer = self.gate.aws(DESCRIBE_GROUPS, subject, AwsClass::Describe, by, || request.send()).await?;
            page = answer.next_marker.filter(|marker| !marker.is_empty());
            let groups = answer.target_groups.unwrap_or_default().into_iter().filter(may_be_of_service);
            found.extend(groups.filter_map(|group| group.target_group_arn).map(Arc::from));
            if page.is_none() {
                return Ok(found);
            }
        }
    }

    async fn tags_of(&self, arns: &[Arc<str>], by: Instant) -> Result<Vec<TagDescription>, AwsError> {
        let subject = match arns {
            [one] => format!("target group {}", name_of(one)),
            several => format!("{} target groups", several.len()),
        };
        let arns = arns.iter().map(ToString::to_string).collect();
        let request = self.client.describe_tags().set_resource_arns(Some(arns));
        let answer = self.gate.aws(DESCRIBE_TAGS, &subject, AwsClass::Describe, by, || request.send()).await?;
        Ok(answer.tag_descriptions.unwrap_or_default())
    }

    fn note(&self, described: Vec<TagDescription>, clusters: &[String]) {
        let mut known = self.known.lock();
        let arns = described.into_iter().filter_map(|described| {
            let service = service_in(&described, clusters).map(Box::from);
            Some((described.resource_arn?.into(), service))
        });
        known.extend(arns);
    }
}

/// Whether the cloud provider may have created this target group: its Network Load Balancers have instances as targets.
fn may_be_of_service(group: &types::TargetGroup) -> bool {
    let is_application = matches!(group.protocol, Some(ProtocolEnum::Http | ProtocolEnum::Https));
    let has_name = group.target_group_name.as_deref().is_some_and(|name| name.starts_with(NAME_PREFIX));
    has_name && !is_application && group.target_type == Some(TargetTypeEnum::Instance)
}

/// Returns the Service in the tags, if they name one of these clusters.
fn service_in<'a>(described: &'a TagDescription, clusters: &[String]) -> Option<&'a str> {
    let tags = described.tags();
    let mut named = tags.iter().filter_map(|tag| tag.key()?.strip_prefix(CLUSTER_TAG));
    let is_ours = named.any(|name| clusters.iter().any(|cluster| cluster == name));
    let service = tags.iter().find(|tag| tag.key() == Some(SERVICE_TAG))?.value();
    service.filter(|_| is_ours)
}
