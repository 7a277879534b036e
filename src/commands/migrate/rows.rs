//! The table: what becomes of each value of NTH's chart, as of its version 0.27.6.

use super::conversions;
use super::conversions::How;
use super::{daemonset, deployment, modes, pods};

/// One value of NTH's chart.
#[derive(Debug)]
pub struct Row {
    /// Its name, with dots.
    pub key: &'static str,
    /// What NTH's chart says by itself, as JSON.
    pub default: &'static str,
    /// Ours that it leads to; none where there is none.
    pub to: &'static [&'static str],
    /// What differs, or why there is none.
    pub why: &'static str,
    pub(super) how: How,
}

/// A part of NTH's chart, as its own README has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// For both modes.
    Common,
    /// For queue mode.
    Queue,
    /// For IMDS mode.
    Imds,
    /// For tests of NTH.
    Testing,
}

impl Section {
    /// Every section, in order.
    pub const ALL: [Self; 4] = [Self::Common, Self::Queue, Self::Imds, Self::Testing];

    /// Its rows.
    #[must_use]
    pub const fn rows(self) -> &'static [Row] {
        match self {
            Self::Common => COMMON,
            Self::Queue => deployment::QUEUE,
            Self::Imds => daemonset::IMDS,
            Self::Testing => TESTING,
        }
    }
}

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    Section::ALL.into_iter().flat_map(Section::rows)
}

pub(super) const fn row(
    key: &'static str,
    default: &'static str,
    to: &'static [&'static str],
    how: How,
    why: &'static str,
) -> Row {
    Row { key, default, to, why, how }
}

/// Values for both modes.
const COMMON: &[Row] = &[
    row(
        "image.repository",
        r#""public.ecr.aws/aws-ec2/aws-node-termination-handler""#,
        &[],
        conversions::image,
        "is NTH's image; where you mirror images, mirror Ebbtide's, too, and set `image.repository`",
    ),
    row(
        "image.tag",
        r#""""#,
        &[],
        conversions::image,
        "is a version of NTH; the chart knows which version of Ebbtide it is for",
    ),
    row("image.pullPolicy", r#""IfNotPresent""#, &["image.pullPolicy"], conversions::text, ""),
    row(
        "image.pullSecrets",
        "[]",
        &["imagePullSecrets"],
        pods::in_namespace,
        "the Secrets must be in Ebbtide's namespace, too",
    ),
    row(
        "nameOverride",
        r#""""#,
        &[],
        conversions::lost,
        "names what is NTH's; the commands of our documents say `ebbtide`",
    ),
    row(
        "fullnameOverride",
        r#""""#,
        &[],
        conversions::lost,
        "names what is NTH's: two ClusterRoles can't have one name, so Helm would refuse to install Ebbtide beside it",
    ),
    row(
        "serviceAccount.create",
        "true",
        &["serviceAccount.create"],
        pods::made_by_others,
        "with `false` the ServiceAccount must be in Ebbtide's namespace; NTH's is not",
    ),
    row("serviceAccount.name", "null", &["serviceAccount.name"], conversions::text, ""),
    row(
        "serviceAccount.annotations",
        "{}",
        &["serviceAccount.annotations"],
        conversions::account_annotations,
        "the role's trust policy must name Ebbtide's ServiceAccount, and its permissions must be those of Ebbtide",
    ),
    row(
        "rbac.create",
        "true",
        &["rbac.create"],
        pods::made_by_others,
        "with `false` somebody must give Ebbtide's ServiceAccount its rights, which are not NTH's",
    ),
    row("rbac.pspEnabled", "true", &[], conversions::needless, "Kubernetes 1.25 took PodSecurityPolicies away"),
    row("customLabels", "{}", &["commonLabels"], pods::labels, "without those that the chart itself sets"),
    row("podLabels", "{}", &["podLabels"], pods::labels, "without those that the chart itself or `customLabels` sets"),
    row(
        "podAnnotations",
        "{}",
        &["podAnnotations"],
        pods::annotations,
        "`prometheus.io/port`, `path` and `scheme` become Ebbtide's",
    ),
    row(
        "podSecurityContext",
        r#"{"fsGroup":1000}"#,
        &[],
        conversions::lost,
        "the chart's own is stricter; set `podSecurityContext` if you need another",
    ),
    row(
        "securityContext",
        r#"{"readOnlyRootFilesystem":true,"runAsNonRoot":true,"allowPrivilegeEscalation":false,"runAsUser":1000,"runAsGroup":1000}"#,
        &[],
        conversions::lost,
        "the chart's own is stricter; set `securityContext` if you need another",
    ),
    row(
        "terminationGracePeriodSeconds",
        "null",
        &["terminationGracePeriodSeconds"],
        conversions::own_grace,
        "an ordered shutdown takes up to 10 s, so the chart wants 15 or more",
    ),
    row("resources", "{}", &["resources"], pods::resources, "none of the chart's own are added to those given"),
    row("nodeSelector", "{}", &["nodeSelector"], conversions::texts, ""),
    row(
        "affinity",
        "{}",
        &["affinity"],
        pods::affinity,
        "where it looks for pods it looks in Ebbtide's namespace now, and ours carry `app.kubernetes.io/name: ebbtide`",
    ),
    row(
        "tolerations",
        "[]",
        &["tolerations"],
        conversions::tolerations,
        "what tolerates a cordon was left out: a pod of ours could come back to the node that it drains",
    ),
    row(
        "topologySpreadConstraints",
        "[]",
        &["topologySpreadConstraints"],
        pods::spread,
        "it counts pods of Ebbtide's namespace now, and ours carry `app.kubernetes.io/name: ebbtide`",
    ),
    row(
        "extraEnv",
        "[]",
        &["extraEnv"],
        modes::extra_env,
        "Ebbtide does not read it; use its value here, if it has one, and SSL_CERT_FILE for AWS_CA_BUNDLE",
    ),
    row(
        "probes",
        r#"{"httpGet":{"path":"/healthz","port":8080},"initialDelaySeconds":5,"periodSeconds":5}"#,
        &[],
        conversions::lost,
        "the chart has probes of its own, for liveness and readiness",
    ),
    row("logLevel", r#""info""#, &["settings.log"], conversions::log_level, ""),
    row(
        "logFormatVersion",
        "1",
        &[],
        conversions::needless,
        "each of Ebbtide's formats, text and JSON, has one version",
    ),
    row("jsonLogging", "false", &["settings.logFormat"], conversions::json_logs, ""),
    row("enablePrometheusServer", "false", &[], conversions::needless, "`/metrics` is always served"),
    row(
        "prometheusServerPort",
        "9092",
        &["admin.port"],
        conversions::same_number,
        "probes and metrics share this port",
    ),
    row("dryRun", "false", &["settings.dryRun"], conversions::if_on, ""),
    row(
        "cordonOnly",
        "false",
        &[
            "on.asg-terminate",
            "on.spot",
            "on.rebalance",
            "on.state-change",
            "on.scheduled-change",
            "on.capacity-reservation",
        ],
        conversions::cordon_only,
        "NTH completes a lifecycle hook after the cordon; Ebbtide then leaves it to its own timeout",
    ),
    row(
        "taintNode",
        "false",
        &["settings.taint"],
        conversions::taint,
        "NTH has a taint for each kind of event, Ebbtide one for all; change what tolerates or looks for `aws-node-termination-handler/…`",
    ),
    row(
        "enableOutOfServiceTaint",
        "false",
        &["settings.outOfServiceTaint"],
        conversions::out_of_service,
        "NTH taints after the drain; Ebbtide once EC2 says that the instance is gone, for which the queue must get state changes",
    ),
    row("excludeFromLoadBalancers", "false", &["settings.excludeFromLoadBalancers"], conversions::if_on, ""),
    row(
        "deleteLocalData",
        "true",
        &["settings.keepEmptyDir"],
        conversions::turned,
        "the opposite: `false` is `keepEmptyDir: true`",
    ),
    row(
        "ignoreDaemonSets",
        "true",
        &[],
        conversions::lost,
        "`false` makes NTH refuse to drain a node with DaemonSet pods; Ebbtide leaves them, or evicts them last with `settings.evictDaemonsets`",
    ),
    row(
        "podTerminationGracePeriod",
        "-1",
        &["settings.podGrace"],
        conversions::pod_grace,
        "0 is not possible: it would let two pods of a StatefulSet run at once",
    ),
    row(
        "nodeTerminationGracePeriod",
        "120",
        &["settings.drainTimeout.all"],
        conversions::limit,
        "without it a drain takes what its notice allows, and not 120 s",
    ),
    row(
        "emitKubernetesEvents",
        "false",
        &["settings.events"],
        conversions::events,
        "`all` or `none`; without it Events tell of blocked drains",
    ),
    row("completeLifecycleActionDelaySeconds", "-1", &["settings.completeAfter"], conversions::complete_after, ""),
    row("kubernetesEventsExtraAnnotations", r#""""#, &[], conversions::lost, "Events carry no annotations of yours"),
    row(
        "webhookURL",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookURLSecretName",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookHeaders",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookProxy",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookTemplate",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookTemplateConfigMapName",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row(
        "webhookTemplateConfigMapKey",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide has no webhooks: use its Kubernetes Events, or alerts on its metrics",
    ),
    row("enableSqsTerminationDraining", "false", &[], conversions::queue_mode, "Ebbtide knows no other mode"),
];

/// Values for tests of NTH.
const TESTING: &[Row] = &[
    row("awsEndpoint", r#""""#, &[], conversions::lost, "for tests, set `AWS_ENDPOINT_URL` in `extraEnv`"),
    row("awsAccessKeyID", "null", &[], conversions::lost, "give the pod a role, by IRSA or EKS Pod Identity"),
    row("awsSecretAccessKey", "null", &[], conversions::lost, "give the pod a role, by IRSA or EKS Pod Identity"),
    row(
        "instanceMetadataURL",
        r#""""#,
        &[],
        conversions::needless,
        "only NTH's DaemonSet, in IMDS mode, uses it; Ebbtide has none",
    ),
    row(
        "procUptimeFile",
        r#""/proc/uptime""#,
        &[],
        conversions::needless,
        "only NTH's DaemonSet, in IMDS mode, uses it; Ebbtide has none",
    ),
];
