//! The table, for NTH's queue mode: a Deployment, as Ebbtide is.

use super::rows::{Row, row};
use super::{conversions, modes};

/// Values for queue mode.
pub(super) const QUEUE: &[Row] = &[
    row("replicas", "1", &["replicaCount"], conversions::same_number, "2 by default"),
    row("strategy", "{}", &[], conversions::lost, "the chart's own strategy starts a new pod before an old one ends"),
    row(
        "podDisruptionBudget",
        "{}",
        &["podDisruptionBudget.maxUnavailable"],
        conversions::budget,
        "the chart's own takes `maxUnavailable` alone; by default it is 1",
    ),
    row(
        "serviceMonitor.create",
        "false",
        &["serviceMonitor.enabled"],
        modes::service_monitor,
        "in IMDS mode NTH makes none",
    ),
    row(
        "serviceMonitor.namespace",
        "null",
        &[],
        modes::service_monitor,
        "the ServiceMonitor is in the release's namespace; let your Prometheus select it there",
    ),
    row("serviceMonitor.labels", "{}", &["serviceMonitor.labels"], modes::service_monitor, ""),
    row("serviceMonitor.interval", r#""30s""#, &["serviceMonitor.interval"], modes::service_monitor, ""),
    row("serviceMonitor.sampleLimit", "5000", &[], modes::service_monitor, "the metrics have no label without bounds"),
    row("priorityClassName", r#""system-cluster-critical""#, &["priorityClassName"], conversions::text, ""),
    row("awsRegion", r#""""#, &["aws.region"], conversions::text, ""),
    row("queueURL", r#""""#, &["queueUrl"], conversions::text, ""),
    row(
        "workers",
        "10",
        &[],
        conversions::needless,
        "there is no pool of workers: every drain begins at once, and calls adapt to what the API server bears",
    ),
    row(
        "checkASGTagBeforeDraining",
        "true",
        &[],
        conversions::needless,
        "NTH itself does not heed it: its chart always sets the newer value, too",
    ),
    row(
        "checkTagBeforeDraining",
        "true",
        &["settings.requireTag"],
        conversions::same_switch,
        "carried over even if unset; with `false` an instance is also ours if it has a Node here",
    ),
    row(
        "managedAsgTag",
        r#""aws-node-termination-handler/managed""#,
        &[],
        conversions::needless,
        "NTH itself does not heed it: its chart always sets the newer value, too",
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
        "a message of another cluster's instance is always deleted; one of ours is held while its Node may still come",
    ),
    row(
        "heartbeatInterval",
        "-1",
        &["settings.heartbeat"],
        conversions::heartbeat,
        "without it heartbeats go out where a drain may outlast its hook",
    ),
    row(
        "heartbeatUntil",
        "-1",
        &["settings.drainTimeout.asg-terminate"],
        conversions::heartbeat_until,
        "heartbeats go on for as long as the drain may take; `nodeTerminationGracePeriod` ends it sooner",
    ),
    row(
        "sqsMsgVisibilityTimeoutSec",
        "20",
        &[],
        conversions::needless,
        "a message stays invisible for as long as it is worked on",
    ),
];
