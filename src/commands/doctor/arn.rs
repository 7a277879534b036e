//! ARNs, and the queue's among them.

use super::readings::QueueAttributes;
use crate::pipeline::queue::QueueUrl;

/// Returns the queue's ARN from its attributes, or else from its URL.
#[must_use]
pub fn queue_arn(attributes: Option<&QueueAttributes>, url: &str) -> Option<String> {
    let attribute = attributes.and_then(|attributes| attributes.get("QueueArn").cloned());
    attribute.or_else(|| QueueUrl::parse(url)?.arn())
}

/// The parts of an ARN that locate its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArnParts<'a> {
    /// The partition.
    pub partition: &'a str,
    /// The region.
    pub region: &'a str,
    /// The account.
    pub account: &'a str,
}

impl<'a> ArnParts<'a> {
    /// Returns the parts of an ARN. A missing part is empty.
    #[must_use]
    pub fn of(arn: &'a str) -> Self {
        let mut parts = arn.split(':').skip(1);
        let partition = parts.next().unwrap_or("aws");
        let region = parts.nth(1).unwrap_or_default();
        Self { partition, region, account: parts.next().unwrap_or_default() }
    }
}
