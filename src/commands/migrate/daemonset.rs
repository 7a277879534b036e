//! The rows of NTH's IMDS mode: a DaemonSet, like Ebbtide's agent.

use super::row::{Row, UNCORDON_AFTER, of_agent, row, windows_only};
use super::{conversions, modes};

/// Why no DNS policy of NTH is needed.
const DNS: &str = "the chart sets the policy that suits `agent.hostNetwork`";

/// Values for IMDS mode.
pub(super) const IMDS: &[Row] = &[
    windows_only("targetNodeOs", r#""linux""#),
    row(
        "linuxPodLabels",
        "{}",
        &["agent.podLabels"],
        modes::agent_labels,
        "with `podLabels`, and except the same labels; only NTH's DaemonSet (IMDS mode) uses it",
    ),
    windows_only("windowsPodLabels", "{}"),
    row(
        "linuxPodAnnotations",
        "{}",
        &["agent.podAnnotations"],
        modes::agent_annotations,
        "with `podAnnotations`, and the same changes; only NTH's DaemonSet (IMDS mode) uses it",
    ),
    windows_only("windowsPodAnnotations", "{}"),
    of_agent(
        "updateStrategy",
        r#"{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%"}}"#,
        &["agent.updateStrategy"],
        modes::agent_map,
    ),
    of_agent(
        "daemonsetPriorityClassName",
        r#""system-node-critical""#,
        &["agent.priorityClassName"],
        modes::agent_priority,
    ),
    row("podMonitor.create", "false", &["podMonitor.enabled"], modes::pod_monitor, "NTH creates none in queue mode"),
    row("podMonitor.namespace", "null", &["podMonitor.namespace"], modes::pod_monitor, ""),
    row("podMonitor.labels", "{}", &["podMonitor.labels"], modes::pod_monitor, ""),
    row("podMonitor.interval", r#""30s""#, &["podMonitor.interval"], modes::pod_monitor, ""),
    row("podMonitor.sampleLimit", "5000", &["podMonitor.sampleLimit"], modes::pod_monitor, ""),
    row(
        "useHostNetwork",
        "true",
        &["agent.hostNetwork"],
        modes::agent_network,
        "carried over even if unset, in IMDS mode; without it pods need a metadata hop limit of 2, which gives every pod the node's role",
    ),
    row("dnsPolicy", r#""""#, &[], conversions::needless, DNS),
    row(
        "dnsConfig",
        "{}",
        &[],
        conversions::lost,
        "only NTH's DaemonSet uses it; the chart sets its own, which you can change there",
    ),
    row("linuxDnsPolicy", r#""ClusterFirstWithHostNet""#, &[], conversions::needless, DNS),
    windows_only("windowsDnsPolicy", r#""ClusterFirst""#),
    of_agent("daemonsetNodeSelector", "{}", &["agent.nodeSelector"], modes::agent_selector),
    of_agent("linuxNodeSelector", "{}", &["agent.nodeSelector"], modes::agent_selector),
    windows_only("windowsNodeSelector", "{}"),
    of_agent(
        "daemonsetAffinity",
        r#"{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"eks.amazonaws.com/compute-type","operator":"NotIn","values":["fargate"]}]}]}}}"#,
        &["agent.affinity"],
        modes::agent_map,
    ),
    of_agent("linuxAffinity", "{}", &["agent.affinity"], modes::agent_map),
    windows_only("windowsAffinity", "{}"),
    of_agent("daemonsetTolerations", r#"[{"operator":"Exists"}]"#, &["agent.tolerations"], modes::agent_tolerations),
    of_agent("linuxTolerations", "[]", &["agent.tolerations"], modes::agent_tolerations),
    windows_only("windowsTolerations", "[]"),
    row("enableProbesServer", "false", &[], conversions::needless, "`/healthz` and `/readyz` are always served"),
    row("metadataTries", "3", &[], conversions::needless, "the agent asks again until the metadata answer"),
    row(
        "enableSpotInterruptionDraining",
        "true",
        &["actions.spot"],
        modes::imds_kind,
        "NTH's queue mode acts on every event and ignores this value",
    ),
    row(
        "enableASGLifecycleDraining",
        "true",
        &["actions.asgTerminate"],
        modes::imds_kind,
        "NTH's queue mode acts on every event and ignores this value",
    ),
    row(
        "enableScheduledEventDraining",
        "true",
        &["actions.scheduledChange"],
        modes::imds_kind,
        "NTH's queue mode acts on every event and ignores this value",
    ),
    row(
        "enableRebalanceMonitoring",
        "false",
        &["actions.rebalance", UNCORDON_AFTER],
        modes::imds_rebalance,
        "NTH's queue mode acts on every event and ignores this value",
    ),
    row(
        "enableRebalanceDraining",
        "false",
        &["actions.rebalance", UNCORDON_AFTER],
        modes::imds_rebalance,
        "NTH's queue mode acts on every event and ignores this value",
    ),
];
