//! The rows of NTH's queue mode: a Deployment, like Ebbtide.

use super::row::{Row, row};
use super::{conversions, modes};

/// Values for queue mode.
pub(super) const QUEUE: &[Row] = &[
    row("replicas", "1", &["replicaCount"], conversions::same_number, "Ebbtide's default is 2"),
    row("strategy", "{}", &[], conversions::lost, "the chart's own strategy starts a new pod before an old one ends"),
    row(
        "podDisruptionBudget",
        "{}",
        &["podDisruptionBudget.maxUnavailable", "podDisruptionBudget.minAvailable"],
        conversions::budget,
        "the chart takes one of the two, sets the rest itself, and refuses a budget that lets no pod go",
    ),
    row(
        "serviceMonitor.create",
        "false",
        &["serviceMonitor.enabled"],
        modes::service_monitor,
        "NTH creates none in IMDS mode",
    ),
    row("serviceMonitor.namespace", "null", &["serviceMonitor.namespace"], modes::service_monitor, ""),
    row("serviceMonitor.labels", "{}", &["serviceMonitor.labels"], modes::service_monitor, ""),
    row("serviceMonitor.interval", r#""30s""#, &["serviceMonitor.interval"], modes::service_monitor, ""),
    row("serviceMonitor.sampleLimit", "5000", &["serviceMonitor.sampleLimit"], modes::service_monitor, ""),
    row("priorityClassName", r#""system-cluster-critical""#, &["priorityClassName"], conversions::text, ""),
    row("awsRegion", r#""""#, &["aws.region"], conversions::text, ""),
    row(
        "queueURL",
        r#""""#,
        &["queueUrl"],
        modes::queue_url,
        "is not a queue's URL, `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME`, which the chart requires",
    ),
    row(
        "workers",
        "10",
        &[],
        conversions::needless,
        "there is no worker pool: every drain starts at once, and the rate of calls adapts to the API server",
    ),
    row(
        "checkASGTagBeforeDraining",
        "true",
        &[],
        conversions::needless,
        "NTH ignores it: its chart always sets the newer value as well",
    ),
    row(
        "checkTagBeforeDraining",
        "true",
        &["settings.requireTag"],
        conversions::same_switch,
        "carried over even if unset; with `false` an instance with a Node in this cluster also counts as managed",
    ),
    row(
        "managedAsgTag",
        r#""aws-node-termination-handler/managed""#,
        &[],
        conversions::needless,
        "NTH ignores it: its chart always sets the newer value as well",
    ),
    row(
        "managedTag",
        r#""aws-node-termination-handler/managed""#,
        &["settings.managedTag"],
        conversions::managed_tag,
        "",
    ),
    row("useProviderId", "false", &[], conversions::needless, "a Node is always found by its provider ID"),
    row(
        "deleteSqsMsgIfNodeNotFound",
        "false",
        &[],
        conversions::needless,
        "messages about other clusters' instances are always deleted; a message about a managed instance is held while its Node may still appear",
    ),
    row(
        "heartbeatInterval",
        "-1",
        &["settings.heartbeat"],
        conversions::heartbeat,
        "if unset, Ebbtide sends heartbeats when a drain may outlast its hook",
    ),
    row(
        "heartbeatUntil",
        "-1",
        &["settings.drainTimeout.asgTerminate"],
        conversions::heartbeat_until,
        "heartbeats last as long as the drain; `nodeTerminationGracePeriod` ends the drain sooner",
    ),
    row(
        "sqsMsgVisibilityTimeoutSec",
        "20",
        &[],
        conversions::needless,
        "a message stays invisible while Ebbtide works on it",
    ),
];
