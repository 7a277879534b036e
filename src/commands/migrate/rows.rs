//! The table: the conversion of each value of NTH's chart 0.27.6.

use super::row::{Row, UNCORDON_AFTER, of_agent, row};
use super::{conversions, daemonset, deployment, modes, pods, webhooks};

/// A section of the README of NTH's chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Values for both modes.
    Common,
    /// Values for queue mode.
    Queue,
    /// Values for IMDS mode.
    Imds,
    /// Values for tests of NTH.
    Testing,
}

impl Section {
    /// Every section, in order.
    pub const ALL: [Self; 4] = [Self::Common, Self::Queue, Self::Imds, Self::Testing];

    /// The section's rows.
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

/// Returns every row.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    Section::ALL.into_iter().flat_map(Section::rows)
}

/// Returns the row of a part of NTH's webhook template.
const fn webhook_template(key: &'static str) -> Row {
    let why = "is a Go template: write it anew as a minijinja template in `notifications.template`; see the counterparts of NTH's fields. Until then Ebbtide's own JSON is sent; for Slack set `notifications.format: slack`";
    row(key, r#""""#, &[], webhooks::template, why)
}

/// Values for both modes.
const COMMON: &[Row] = &[
    row(
        "image.repository",
        r#""public.ecr.aws/aws-ec2/aws-node-termination-handler""#,
        &[],
        conversions::image,
        "is NTH's image; if you mirror images, mirror Ebbtide's image and set `image.repository`",
    ),
    row(
        "image.tag",
        r#""""#,
        &[],
        conversions::image,
        "is a version of NTH; the chart has the matching version of Ebbtide",
    ),
    row("image.pullPolicy", r#""IfNotPresent""#, &["image.pullPolicy"], conversions::text, ""),
    row(
        "image.pullSecrets",
        "[]",
        &["imagePullSecrets"],
        pods::in_namespace,
        "the Secrets must exist in Ebbtide's namespace as well",
    ),
    row(
        "nameOverride",
        r#""""#,
        &[],
        conversions::lost,
        "names NTH's objects; the commands in Ebbtide's documents use `ebbtide`",
    ),
    row(
        "fullnameOverride",
        r#""""#,
        &[],
        conversions::lost,
        "names NTH's objects; two ClusterRoles can't share a name, so Helm would refuse to install Ebbtide next to NTH",
    ),
    row(
        "serviceAccount.create",
        "true",
        &["serviceAccount.create"],
        pods::made_by_others,
        "with `false` the ServiceAccount must exist in Ebbtide's namespace; NTH's does not",
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
        "with `false` you must grant Ebbtide's ServiceAccount its permissions, which differ from NTH's; and the agent's ServiceAccount the right to `patch` Nodes",
    ),
    row("rbac.pspEnabled", "true", &[], conversions::needless, "Kubernetes 1.25 removed PodSecurityPolicies"),
    row("customLabels", "{}", &["commonLabels"], pods::labels, "except labels that the chart itself sets"),
    row(
        "podLabels",
        "{}",
        &["podLabels", "agent.podLabels"],
        pods::labels,
        "except labels that the chart itself or `customLabels` sets; the second in IMDS mode",
    ),
    row(
        "podAnnotations",
        "{}",
        &["podAnnotations", "agent.podAnnotations"],
        pods::annotations,
        "`prometheus.io/port`, `path` and `scheme` change to Ebbtide's; the second in IMDS mode",
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
        "an ordered shutdown takes up to 10 s, so the chart requires 15 or more",
    ),
    row(
        "resources",
        "{}",
        &["resources", "agent.resources"],
        pods::resources,
        "the second in IMDS mode; the chart's default requests and limits are not added",
    ),
    row("nodeSelector", "{}", &["nodeSelector"], conversions::texts, ""),
    row(
        "affinity",
        "{}",
        &["affinity"],
        pods::affinity,
        "its pod selectors now apply to Ebbtide's namespace, and Ebbtide's pods carry `app.kubernetes.io/name: ebbtide`",
    ),
    row(
        "tolerations",
        "[]",
        &["tolerations"],
        conversions::tolerations,
        "tolerations of a cordon are left out: a pod of Ebbtide could return to the node that it drains",
    ),
    row(
        "topologySpreadConstraints",
        "[]",
        &["topologySpreadConstraints"],
        pods::spread,
        "it now counts pods of Ebbtide's namespace, and Ebbtide's pods carry `app.kubernetes.io/name: ebbtide`",
    ),
    row(
        "extraEnv",
        "[]",
        &["extraEnv"],
        modes::extra_env,
        "Ebbtide does not read it; use the chart's value for it, if there is one, and SSL_CERT_FILE in place of AWS_CA_BUNDLE",
    ),
    row(
        "probes",
        r#"{"httpGet":{"path":"/healthz","port":8080},"initialDelaySeconds":5,"periodSeconds":5}"#,
        &[],
        conversions::lost,
        "the chart sets its own liveness and readiness probes",
    ),
    row("logLevel", r#""info""#, &["settings.log"], conversions::log_level, ""),
    row(
        "logFormatVersion",
        "1",
        &[],
        conversions::needless,
        "each of Ebbtide's log formats, text and JSON, has one version",
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
            "actions.asgTerminate",
            "actions.spot",
            "actions.rebalance",
            "actions.stateChange",
            "actions.scheduledChange",
            "actions.capacityReservation",
            UNCORDON_AFTER,
        ],
        conversions::cordon_only,
        "NTH completes a lifecycle hook after the cordon; Ebbtide leaves the hook to its own timeout",
    ),
    row(
        "taintNode",
        "false",
        &["settings.taint"],
        conversions::taint,
        "NTH has a taint for each kind of event, Ebbtide one for all; change tolerations and queries of `aws-node-termination-handler/…`",
    ),
    row(
        "enableOutOfServiceTaint",
        "false",
        &["settings.outOfServiceTaint"],
        conversions::out_of_service,
        "NTH taints after the drain; Ebbtide taints once EC2 reports the instance stopped or terminated, so the queue must receive state changes",
    ),
    row("excludeFromLoadBalancers", "false", &["settings.excludeFromLoadBalancers"], conversions::if_on, ""),
    row(
        "deleteLocalData",
        "true",
        &["settings.keepEmptyDir"],
        conversions::local_data,
        "with `false` NTH evicts no pod of a node that has one with an emptyDir; Ebbtide leaves that one (`keepEmptyDir: true`), and evicts the others",
    ),
    row(
        "ignoreDaemonSets",
        "true",
        &[],
        conversions::lost,
        "`false` makes NTH refuse to drain a node with DaemonSet pods; Ebbtide leaves such pods, or evicts them last with `settings.evictDaemonsets`",
    ),
    row(
        "podTerminationGracePeriod",
        "-1",
        &["settings.podGrace"],
        conversions::pod_grace,
        "0 is not allowed: it would let two pods of a StatefulSet run at once",
    ),
    row(
        "nodeTerminationGracePeriod",
        "120",
        &["settings.drainTimeout.all"],
        conversions::limit,
        "if unset, a drain may use all the time that its notice allows, instead of 120 s",
    ),
    row(
        "emitKubernetesEvents",
        "false",
        &["settings.events"],
        conversions::events,
        "`all` or `none`; if unset, Events report blocked drains",
    ),
    row("completeLifecycleActionDelaySeconds", "-1", &["settings.completeAfter"], conversions::complete_after, ""),
    row(
        "kubernetesEventsExtraAnnotations",
        r#""""#,
        &[],
        conversions::lost,
        "Ebbtide adds no custom annotations to Events",
    ),
    row(
        "webhookURL",
        r#""""#,
        &["notifications.existingSecret"],
        webhooks::url,
        "is a secret: put it into a Secret named ebbtide-notifications in Ebbtide's namespace, under the key `url`. Without a template of NTH's the format is `slack`",
    ),
    row(
        "webhookURLSecretName",
        r#""""#,
        &["notifications.existingSecret", "notifications.secretKeys.url"],
        webhooks::secret,
        "the Secret must exist in Ebbtide's namespace as well. Without a template of NTH's the format is `slack`",
    ),
    row(
        "webhookHeaders",
        r#""""#,
        &[],
        webhooks::headers,
        "may be secrets: put them into the Secret of `notifications.existingSecret` under the key `headers`, each as NAME=VALUE on a line",
    ),
    row(
        "webhookProxy",
        r#""""#,
        &["notifications.proxy"],
        webhooks::proxy,
        "with a password: set `EBBTIDE_NOTIFY_PROXY` in `extraEnv`, from a Secret",
    ),
    webhook_template("webhookTemplate"),
    webhook_template("webhookTemplateConfigMapName"),
    webhook_template("webhookTemplateConfigMapKey"),
    row(
        "enableSqsTerminationDraining",
        "false",
        &["settings.source", "agent.enabled"],
        conversions::queue_mode,
        "if it is not `true`, NTH's IMDS mode: `[nodes]` and `true`",
    ),
];

/// Values for tests of NTH.
const TESTING: &[Row] = &[
    row("awsEndpoint", r#""""#, &[], conversions::lost, "for tests, set `AWS_ENDPOINT_URL` in `extraEnv`"),
    row("awsAccessKeyID", "null", &[], conversions::lost, "give the pod a role, by IRSA or EKS Pod Identity"),
    row("awsSecretAccessKey", "null", &[], conversions::lost, "give the pod a role, by IRSA or EKS Pod Identity"),
    of_agent("instanceMetadataURL", r#""""#, &["agent.metadataEndpoint"], modes::agent_metadata),
    row(
        "procUptimeFile",
        r#""/proc/uptime""#,
        &[],
        conversions::needless,
        "Ebbtide does not read how long the node has been up",
    ),
];
