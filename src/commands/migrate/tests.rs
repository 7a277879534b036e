//! Values files and their literal conversions.

use super::*;
use std::fmt::Write;

/// Returns the values without their head, the remarks without the last, which every queue has, and whether all was carried over.
fn migrated(text: &str) -> (String, String, bool) {
    let migration = convert(text).unwrap();
    let values = migration.values.strip_prefix(HEAD).expect("it must begin so").to_owned();
    let said = migration.to_string();
    let new = format!("New:\n  queueURL: {SENDERS}\n");
    let rest = said.strip_suffix(&new);
    assert_eq!(rest.is_some(), values.contains("queueUrl: "), "{said}");
    (values, rest.unwrap_or(&said).to_owned(), migration.is_whole())
}

#[track_caller]
fn becomes(given: &str, values: &str, remarks: &str) {
    let (found, text, whole) = migrated(given);
    assert_eq!(found, values);
    assert_eq!(text, remarks);
    let expected = remarks.lines().filter(|line| !line.starts_with(' ')).all(|title| title == "Not needed:");
    assert_eq!(whole, expected);
}

/// The values of queue mode alone.
const QUEUE: &str = "\
queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/nth  # queueURL
actions:
  asgLaunch: ready  # NTH completes launch hooks; Ebbtide's default is to ignore them
  rebalance: drain  # NTH drains in queue mode; Ebbtide's default is cordon
settings:
  requireTag: true  # NTH's default; Ebbtide's is false, which saves calls to EC2
  atDeadline: leave  # NTH leaves pods that a budget protects; Ebbtide's default deletes them in time for their grace period
";

const GIVEN: &str =
    "enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n";

/// Returns the effect of a value in queue mode: the further lines, and the remarks.
fn one(more: &str) -> (String, String) {
    let (values, remarks, _) = migrated(&format!("{GIVEN}{more}\n"));
    let new: Vec<&str> = values.lines().filter(|line| !QUEUE.contains(&format!("{line}\n"))).collect();
    (new.join("\n"), remarks)
}

#[test]
fn the_shortest_file_that_works() {
    becomes(GIVEN, QUEUE, "");
}

#[test]
fn the_defaults_of_nths_chart_change_nothing() {
    let fixture = include_str!("../../../tests/fixtures/nth/values.tsv");
    let mut file = GIVEN.to_owned();
    let mut group = "";
    for (key, default) in fixture.lines().map(|line| line.split_once('\t').unwrap()) {
        let (above, name) = key.split_once('.').unwrap_or(("", key));
        if above != group && !above.is_empty() {
            writeln!(file, "{above}:").unwrap();
        }
        group = above;
        if !["enableSqsTerminationDraining", "queueURL"].contains(&key) {
            writeln!(file, "{}{name}: {default}", if above.is_empty() { "" } else { "  " }).unwrap();
        }
    }
    assert_eq!(file.lines().count(), 108 + 5);
    becomes(&file, QUEUE, "");
}

#[test]
fn a_typical_file() {
    let given = "
enableSqsTerminationDraining: true
queueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth
awsRegion: eu-west-1
replicas: 3
serviceAccount:
  name: nth
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/nth
nodeSelector:
  karpenter.sh/nodepool: system
tolerations:
  - operator: Exists
  - {key: CriticalAddonsOnly, operator: Exists}
resources: {requests: {cpu: 50m, memory: 128Mi}}
serviceMonitor: {create: true, labels: {release: kps}, namespace: monitoring}
webhookURL: https://hooks.example/a-secret
checkTagBeforeDraining: false
podTerminationGracePeriod: 60
heartbeatInterval: 60
heartbeatUntil: 7200
jsonLogging: true
workers: 50
";
    let values = "\
queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/nth  # queueURL
aws:
  region: eu-west-1  # awsRegion
actions:
  asgLaunch: ready  # NTH completes launch hooks; Ebbtide's default is to ignore them
  rebalance: drain  # NTH drains in queue mode; Ebbtide's default is cordon
settings:
  logFormat: json  # jsonLogging
  podGrace: 60s  # podTerminationGracePeriod
  requireTag: false  # checkTagBeforeDraining
  heartbeat: 60s  # heartbeatInterval
  drainTimeout:
    asgTerminate: 7200s  # heartbeatUntil
  atDeadline: leave  # NTH leaves pods that a budget protects; Ebbtide's default deletes them in time for their grace period
notifications:
  existingSecret: ebbtide-notifications  # webhookURL
  phases:
    all: done+failed  # webhookURL
  format: slack  # webhookURL
replicaCount: 3  # replicas
serviceAccount:
  name: nth  # serviceAccount.name
  annotations:  # serviceAccount.annotations
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/nth
resources:  # resources
  limits: null
  requests:
    cpu: 50m
    memory: 128Mi
nodeSelector:  # nodeSelector
  karpenter.sh/nodepool: system
tolerations:  # tolerations
  - key: CriticalAddonsOnly
    operator: Exists
serviceMonitor:
  enabled: true  # serviceMonitor.create
  namespace: monitoring  # serviceMonitor.namespace
  labels:  # serviceMonitor.labels
    release: kps
";
    let remarks = "\
Carried over, but not the same:
  serviceAccount.annotations: the role's trust policy must name Ebbtide's ServiceAccount, and its permissions must be those of Ebbtide
  tolerations: tolerations of a cordon are left out: a pod of Ebbtide could return to the node that it drains
  webhookURL: is a secret: put it into a Secret named ebbtide-notifications in Ebbtide's namespace, under the key `url`. Without a template of NTH's the format is `slack`
Not needed:
  workers: there is no worker pool: every drain starts at once, and the rate of calls adapts to the API server
";
    becomes(given, values, remarks);
}

/// The parts of a webhook. No output has a secret.
#[test]
fn a_webhook_becomes_notifications() {
    let url = "webhookURL: https://hooks.example/a-secret";
    let settings = "notifications:\n  existingSecret: ebbtide-notifications  # webhookURL\n  phases:\n    \
                    all: done+failed  # webhookURL";
    let slack = format!("{settings}\n  format: slack  # webhookURL");
    let of_url = "  webhookURL: is a secret: put it into a Secret named ebbtide-notifications";
    for (more, values, lines) in [
        (String::new(), slack.clone(), vec![of_url]),
        ("webhookHeaders: '{\"Content-type\":\"application/json\"}'".to_owned(), slack.clone(), vec![of_url]),
        (
            "webhookHeaders: '{\"Authorization\":\"Bearer hidden\"}'".to_owned(),
            slack.clone(),
            vec!["  webhookHeaders: may be secrets: put them into the Secret", of_url],
        ),
        ("webhookHeaders: hidden".to_owned(), slack.clone(), vec!["  webhookHeaders: is not a JSON object", of_url]),
        (
            "webhookProxy: tcp://proxy.example:3128".to_owned(),
            format!("{slack}\n  proxy: http://proxy.example:3128  # webhookProxy"),
            vec![of_url],
        ),
        (
            "webhookProxy: http://me:hidden@proxy.example:3128".to_owned(),
            slack.clone(),
            vec!["  webhookProxy: with a password: set `EBBTIDE_NOTIFY_PROXY`", of_url],
        ),
        (
            "webhookTemplate: '{\"text\": \"{{ .NodeName }}\"}'".to_owned(),
            settings.to_owned(),
            vec!["  webhookTemplate: is a Go template: write it anew", of_url],
        ),
        (
            "webhookTemplateConfigMapName: map\nwebhookTemplateConfigMapKey: key".to_owned(),
            settings.to_owned(),
            vec!["  webhookTemplateConfigMapName: is a Go", "  webhookTemplateConfigMapKey: is a Go", of_url],
        ),
    ] {
        let (made, remarks) = one(&format!("{url}\n{more}"));
        assert_eq!(made, values, "{more}");
        let said: Vec<&str> = remarks.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(said.len(), lines.len(), "{more}: {remarks}");
        assert!(said.iter().zip(&lines).all(|(said, begin)| said.starts_with(begin)), "{more}: {remarks}");
        assert!(!made.contains("secret\n") && !made.contains("hidden") && !remarks.contains("hidden"), "{more}");
        assert!(!remarks.contains("a-secret"), "{remarks}");
    }
    // NTH takes the Secret of the two.
    let (made, remarks) = one(&format!("{url}\nwebhookURLSecretName: receiver"));
    let expected = "notifications:\n  existingSecret: receiver  # webhookURLSecretName\n  secretKeys:\n    \
                    url: webhookurl  # webhookURLSecretName\n  phases:\n    all: done+failed  # webhookURLSecretName\n  \
                    format: slack  # webhookURLSecretName";
    assert_eq!(made, expected);
    assert!(
        remarks.contains("webhookURLSecretName: the Secret must exist in Ebbtide's namespace as well"),
        "{remarks}"
    );
    // Without a URL NTH sends nothing.
    for idle in ["webhookProxy: http://me:hidden@proxy", "webhookTemplate: x", "webhookHeaders: '{\"a\":\"b\"}'"] {
        assert_eq!(one(idle), (String::new(), String::new()), "{idle}");
    }
}

#[test]
fn each_value_of_queue_mode_by_itself() {
    let table = [
        ("logLevel: DEBUG", "  log: debug  # logLevel"),
        ("heartbeatInterval: 5", "  heartbeat: 5s  # heartbeatInterval"),
        ("dryRun: \"true\"", "  dryRun: true  # dryRun"),
        ("excludeFromLoadBalancers: true", "  excludeFromLoadBalancers: true  # excludeFromLoadBalancers"),
        ("nodeTerminationGracePeriod: 600", "  drainTimeout:\n    all: 600s  # nodeTerminationGracePeriod"),
        ("emitKubernetesEvents: true", "  events: all  # emitKubernetesEvents"),
        ("completeLifecycleActionDelaySeconds: 90", "  completeAfter: 90s  # completeLifecycleActionDelaySeconds"),
        ("managedTag: team-tag", "  managedTag: team-tag  # managedTag"),
        ("prometheusServerPort: 9100", "admin:\n  port: 9100  # prometheusServerPort"),
        ("image: {pullPolicy: Always}", "image:\n  pullPolicy: Always  # image.pullPolicy"),
        ("priorityClassName: ''", "priorityClassName: \"\"  # priorityClassName"),
        ("customLabels: {a: \"yes\", b: 1}", "commonLabels:  # customLabels\n  a: \"yes\"\n  b: \"1\""),
        ("rbac: {create: 'true'}", "rbac:\n  create: true  # rbac.create"),
        (
            "customLabels: {a: b}\npodLabels: {a: b, c: d}",
            "commonLabels:  # customLabels\n  a: b\npodLabels:  # podLabels\n  c: d",
        ),
        (
            "podAnnotations: {prometheus.io/scrape: true, prometheus.io/port: 8080, prometheus.io/path: /metrics}",
            "podAnnotations:  # podAnnotations\n  prometheus.io/path: /metrics\n  prometheus.io/port: \"8080\"\n  prometheus.io/scrape: \"true\"",
        ),
        (
            "podAnnotations: {prometheus.io/port: '9100'}\nprometheusServerPort: 9100",
            "admin:\n  port: 9100  # prometheusServerPort\npodAnnotations:  # podAnnotations\n  prometheus.io/port: \"9100\"",
        ),
        // Our chart's defaults do not fill in what NTH's values leave out.
        (
            "resources: {requests: {memory: 512Mi}, limits: {cpu: 20m}}",
            "resources:  # resources\n  limits:\n    cpu: 20m\n    memory: null\n  requests:\n    cpu: null\n    memory: 512Mi",
        ),
        (
            "resources: {limits: {memory: 1Gi}, requests: {}}",
            "resources:  # resources\n  limits:\n    memory: 1Gi\n  requests: null",
        ),
        (
            "podDisruptionBudget: {maxUnavailable: 25%}",
            "podDisruptionBudget:\n  maxUnavailable: 25%  # podDisruptionBudget",
        ),
        ("podDisruptionBudget: {minAvailable: 1}", "podDisruptionBudget:\n  minAvailable: 1  # podDisruptionBudget"),
        (
            "podDisruptionBudget: {minAvailable: 50%}",
            "podDisruptionBudget:\n  minAvailable: 50%  # podDisruptionBudget",
        ),
        ("podDisruptionBudget: {minAvailable: 0}", "podDisruptionBudget:\n  minAvailable: 0  # podDisruptionBudget"),
        ("terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 40  # terminationGracePeriodSeconds"),
        (
            "extraEnv: [{name: HTTPS_PROXY, value: p}, {name: TAINT_EFFECT, value: x}]",
            "extraEnv:  # extraEnv\n  - name: HTTPS_PROXY\n    value: p",
        ),
        (
            "topologySpreadConstraints: [{maxSkew: 1}]",
            "topologySpreadConstraints:  # topologySpreadConstraints\n  - maxSkew: 1",
        ),
        (
            "affinity: {podAntiAffinity: {preferred: [{weight: 1, of: [a, b]}]}}",
            "affinity:  # affinity\n  podAntiAffinity:\n    preferred:\n      - of:\n          - a\n          - b\n        weight: 1",
        ),
        (
            "podLabels: {app: x}\ntopologySpreadConstraints: [{labelSelector: {matchLabels: {app: x}}}]",
            "podLabels:  # podLabels\n  app: x\ntopologySpreadConstraints:  # topologySpreadConstraints\n  - labelSelector:\n      matchLabels:\n        app: x",
        ),
        (
            "affinity: {podAffinity: {a: [{labelSelector: {matchLabels: {k8s-app: dns}}, namespaces: [kube-system]}]}}",
            "affinity:  # affinity\n  podAffinity:\n    a:\n      - labelSelector:\n          matchLabels:\n            k8s-app: dns\n        namespaces:\n          - kube-system",
        ),
        (
            "heartbeatUntil: 60\nnodeTerminationGracePeriod: 300",
            "  drainTimeout:\n    all: 300s  # nodeTerminationGracePeriod\n    asgTerminate: 60s  # heartbeatUntil",
        ),
        (
            "fullnameOverride: \"\"\npodLabels: {}\nresources: {}\naffinity: {}\nextraEnv: []\nimage: {pullSecrets: []}",
            "",
        ),
        ("podTerminationGracePeriod: -30\nheartbeatInterval: 0", ""),
        ("replicas: null", ""),
        ("global: {anything: 1}", ""),
    ];
    for (given, expected) in table {
        let (values, remarks) = one(given);
        assert_eq!((&*values, &*remarks), (expected, ""), "{given}");
    }
}

const LOST: &str = "Not carried over:\n";
const DIFFERS: &str = "Carried over, but not the same:\n";
const NEEDLESS: &str = "Not needed:\n";
const UNKNOWN: &str = "Not values of NTH's chart:\n";

/// Asserts that these values are remarked on, each under its title.
#[track_caller]
fn tell(remarks: &[(&str, &str, &str)]) {
    for (title, given, text) in remarks {
        let (values, remarks) = one(given);
        assert_eq!(migrated(&format!("{GIVEN}{given}")).2, *title == NEEDLESS, "{given}");
        let found = remarks.split(title).nth(1).unwrap_or_else(|| panic!("{given}: no {title}{remarks}"));
        assert!(found.lines().any(|line| line.starts_with(&format!("  {text}"))), "{given}: {remarks}");
        for secret in ["hidden", "a-secret"] {
            assert!(!values.contains(secret) && !remarks.contains(secret), "{given}");
        }
    }
}

#[test]
fn lost_and_different_values_have_remarks() {
    tell(&[
        (LOST, "podTerminationGracePeriod: 0", "podTerminationGracePeriod: 0 would let"),
        (LOST, "podTerminationGracePeriod: 90000", "podTerminationGracePeriod: is longer than 24 h"),
        (LOST, "nodeTerminationGracePeriod: 200000", "nodeTerminationGracePeriod: is longer than 48 h"),
        (LOST, "nodeTerminationGracePeriod: 0", "nodeTerminationGracePeriod: sets no limit"),
        (LOST, "managedTag: ''", "managedTag: is empty"),
        (LOST, "nodeTerminationGracePeriod: soon", "nodeTerminationGracePeriod: is not a number of seconds"),
        (LOST, "heartbeatInterval: 4000", "heartbeatInterval: is not a number of seconds up to 3600"),
        (LOST, "heartbeatInterval: 4", "heartbeatInterval: is shorter than 5 s, so AWS would throttle"),
        (LOST, "replicas: two", "replicas: is not a whole number"),
        (LOST, "dryRun: maybe", "dryRun: is not true or false"),
        (LOST, "logLevel: loud", "logLevel: is not info, debug or error"),
        (LOST, "podLabels: [a]", "podLabels: is not a map"),
        (LOST, "podLabels: {a: [b]}", "podLabels: is not a map of texts"),
        (LOST, "tolerations: {a: b}", "tolerations: is not a list of maps"),
        (LOST, "queueURL2: x\nawsRegion: [eu]", "awsRegion: is not a text"),
        (LOST, "ignoreDaemonSets: false", "ignoreDaemonSets: `false` makes NTH refuse"),
        (LOST, "awsSecretAccessKey: hidden", "awsSecretAccessKey: give the pod a role"),
        (LOST, "securityContext: {runAsUser: 0}", "securityContext: the chart's own is stricter"),
        (LOST, "terminationGracePeriodSeconds: 5", "terminationGracePeriodSeconds: an ordered shutdown"),
        (
            LOST,
            "podDisruptionBudget: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow}",
            "podDisruptionBudget: the chart takes one of the two",
        ),
        (LOST, "podDisruptionBudget: {selector: 1}", "podDisruptionBudget: the chart takes one of the two"),
        (LOST, "managedTag: a=b", "managedTag: has a = in its key"),
        (
            LOST,
            "cordonOnly: true\ncompleteLifecycleActionDelaySeconds: 5",
            "completeLifecycleActionDelaySeconds: with cordonOnly",
        ),
        (LOST, "image: {tag: v1}", "image.tag: is a version of NTH"),
        (DIFFERS, "cordonOnly: true", "cordonOnly: NTH completes a lifecycle hook"),
        (DIFFERS, "taintNode: true", "taintNode: NTH has a taint for each kind"),
        (DIFFERS, "deleteLocalData: false", "deleteLocalData: with `false` NTH evicts no pod"),
        (DIFFERS, "enableOutOfServiceTaint: true", "enableOutOfServiceTaint: NTH taints after the drain"),
        (
            DIFFERS,
            "extraEnv: [{name: WORKERS, value: \"3\"}, {value: x}]",
            "extraEnv: WORKERS, a variable without a name left out",
        ),
        (NEEDLESS, "sqsMsgVisibilityTimeoutSec: 60", "sqsMsgVisibilityTimeoutSec: a message stays invisible"),
        (NEEDLESS, "enableSpotInterruptionDraining: false", "enableSpotInterruptionDraining: NTH's queue mode acts"),
        (NEEDLESS, "podMonitor: {create: true}", "podMonitor.create: NTH creates none in queue mode"),
        (NEEDLESS, "heartbeatUntil: 900\nnodeTerminationGracePeriod: 600", "heartbeatUntil: heartbeats last"),
        (UNKNOWN, "queueUrl: x", "queueUrl: is unknown and left out; did you mean queueURL?"),
        (
            UNKNOWN,
            "heartBeatIntervall: 3",
            "heartBeatIntervall: is unknown and left out; did you mean heartbeatInterval?",
        ),
        (
            UNKNOWN,
            "somethingNew: 3",
            "somethingNew: is unknown and left out: a typing error, or newer than NTH's chart 0.27.6",
        ),
        (UNKNOWN, "image: {repo: 3}", "image.repo: is unknown"),
        (UNKNOWN, "image: v1", "image: must be a map, and is left out"),
    ]);
}

/// As the chart counts: the default of its `replicaCount` is 2, and a percentage is rounded up.
#[test]
fn a_budget_that_lets_no_pod_go_becomes_one_that_does() {
    for (replicas, budget) in [
        ("", "minAvailable: 2"),
        ("replicas: 1", "minAvailable: 51%"),
        ("replicas: 3", "minAvailable: 100%"),
        ("replicas: 4", "minAvailable: 4"),
        ("", "maxUnavailable: 0"),
        ("replicas: 5", "maxUnavailable: 0%"),
    ] {
        let given = format!("{replicas}\npodDisruptionBudget: {{{budget}}}");
        let (values, remarks) = one(&given);
        assert!(
            values.ends_with("podDisruptionBudget:\n  maxUnavailable: 1  # podDisruptionBudget"),
            "{given}: {values}"
        );
        let field = budget.split(':').next().unwrap_or_default();
        assert!(
            remarks.contains(&format!("{DIFFERS}  podDisruptionBudget: {field} lets none of ")),
            "{given}: {remarks}"
        );
    }
    let (values, remarks) = one("replicas: 4\npodDisruptionBudget: {minAvailable: 3}");
    assert!(values.contains("minAvailable: 3") && remarks.is_empty(), "{values}{remarks}");
}

#[test]
fn a_queue_url_is_what_the_chart_takes() {
    for url in ["nonsense", "arn:aws:sqs:eu-west-1:123456789012:nth", "https://sqs.eu-west-1.amazonaws.com/"] {
        let (values, remarks, whole) = migrated(&format!("enableSqsTerminationDraining: true\nqueueURL: {url}"));
        assert!(values.contains(url) && remarks.contains("queueURL: is not a queue's URL") && !whole, "{remarks}");
    }
}

/// Names, labels, ports and objects of NTH's namespace.
#[test]
fn values_with_another_meaning_have_remarks() {
    tell(&[
        (
            DIFFERS,
            "topologySpreadConstraints: [{labelSelector: {matchLabels: {app: aws-node-termination-handler}}}]",
            "topologySpreadConstraints: it now counts pods of Ebbtide's namespace",
        ),
        (
            DIFFERS,
            "affinity: {podAffinity: {required: [{labelSelector: {matchLabels: {k8s-app: dns}}}]}}",
            "affinity: its pod selectors now apply to Ebbtide's namespace",
        ),
        (
            DIFFERS,
            "affinity: {podAffinity: {a: [{namespaceSelector: {}, labelSelector: {matchLabels: {k8s-app: aws-node-termination-handler}}}]}}",
            "affinity: its pod selectors",
        ),
        (
            DIFFERS,
            "podLabels: {app: x}\naffinity: {podAffinity: {a: [{labelSelector: {matchExpressions: [{key: app, operator: Exists}]}}]}}",
            "affinity: its pod selectors",
        ),
        (
            LOST,
            "fullnameOverride: aws-node-termination-handler",
            "fullnameOverride: names NTH's objects; two ClusterRoles",
        ),
        (LOST, "nameOverride: nth", "nameOverride: names NTH's objects"),
        (
            DIFFERS,
            "serviceAccount: {create: false, name: nth}",
            "serviceAccount.create: with `false` the ServiceAccount",
        ),
        (DIFFERS, "rbac: {create: false}", "rbac.create: with `false` you must grant"),
        (
            DIFFERS,
            "image: {pullSecrets: [{name: s}]}",
            "image.pullSecrets: the Secrets must exist in Ebbtide's namespace",
        ),
        (
            DIFFERS,
            "extraEnv: [{name: AWS_ACCESS_KEY_ID, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
            "extraEnv: the source of AWS_ACCESS_KEY_ID must exist in Ebbtide's namespace as well",
        ),
        (
            DIFFERS,
            "extraEnv: [{name: TZ, valueFrom: {resourceFieldRef: {containerName: aws-node-termination-handler}}}]",
            "extraEnv: TZ left out",
        ),
        (
            DIFFERS,
            "podAnnotations: {prometheus.io/port: '9092', prometheus.io/scheme: https}",
            "podAnnotations: prometheus.io/port is 8080 in podAnnotations; prometheus.io/scheme is http in podAnnotations",
        ),
        (
            DIFFERS,
            "podAnnotations: {ad.datadoghq.com/aws-node-termination-handler.checks: x}",
            "podAnnotations: aws-node-termination-handler is named; Ebbtide's pods",
        ),
        (
            DIFFERS,
            "podLabels: {app.kubernetes.io/name: nth, b: c}\ncustomLabels: {b: d, helm.sh/chart: e}",
            "podLabels: app.kubernetes.io/name, b left out: the chart itself or customLabels sets it",
        ),
        (
            DIFFERS,
            "customLabels: {release: a}\nserviceMonitor: {create: true, labels: {release: b}}",
            "serviceMonitor.labels: release left out",
        ),
        (LOST, "resources: {limits: [a]}", "resources: is not a map of maps"),
    ]);
}

#[test]
fn different_values_are_carried_over() {
    let cordons = ["asgTerminate", "spot", "rebalance", "stateChange", "scheduledChange", "capacityReservation"];
    let mut cordons: Vec<String> = cordons.iter().map(|kind| format!("  {kind}: cordon  # cordonOnly")).collect();
    cordons.push("  uncordonAfter: 0s  # cordonOnly".to_owned());
    assert_eq!(one("cordonOnly: true").0, cordons.join("\n"));
    assert_eq!(one("taintNode: true").0, "  taint: [ebbtide/going:NoSchedule]  # taintNode");
    let effect = "taintNode: true\nextraEnv: [{name: TAINT_EFFECT, value: PreferNoSchedule}]";
    assert_eq!(one(effect).0, "  taint: [ebbtide/going:PreferNoSchedule]  # taintNode");
    assert_eq!(one("enableOutOfServiceTaint: true").0, "  outOfServiceTaint: true  # enableOutOfServiceTaint");
    let port = "podAnnotations: {prometheus.io/port: '9092'}";
    assert_eq!(one(port).0, "podAnnotations:  # podAnnotations\n  prometheus.io/port: \"8080\"");
    let odd = "taintNode: true\nextraEnv: [{name: TAINT_EFFECT, value: noschedule}]";
    assert_eq!(one(odd).0, "  taint: [ebbtide/going:NoSchedule]  # taintNode");
    let account = one("serviceAccount: {create: false, name: nth}").0;
    assert_eq!(
        account,
        "serviceAccount:\n  create: false  # serviceAccount.create\n  name: nth  # serviceAccount.name"
    );
    let tolerations = "tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}]";
    assert_eq!(one(tolerations).0, "");
    // A NoExecute taint of any key is not the cordon's.
    let tolerations = "tolerations: [{operator: Exists, effect: NoExecute}]";
    assert_eq!(
        one(tolerations),
        ("tolerations:  # tolerations\n  - effect: NoExecute\n    operator: Exists".to_owned(), String::new())
    );
}

/// Values that must be null, or our chart's defaults would apply.
#[test]
fn resources_know_the_defaults_of_our_chart() {
    let ours: Value = serde_saphyr::from_str(include_str!("../../../deploy/helm/ebbtide/values.yaml")).unwrap();
    let parts = ours["resources"].as_object().unwrap();
    let found: Vec<(&str, Vec<&str>)> = parts
        .iter()
        .map(|(part, names)| (&**part, names.as_object().unwrap().keys().map(|key| &**key).collect()))
        .collect();
    let mut known = pods::RESOURCES.map(|(part, names)| (part, names.to_vec()));
    known.sort();
    assert_eq!(found, known);
}

/// What IMDS mode has without a value.
const AGENT: &str = "\
actions:
  rebalance: ignore  # NTH's default in IMDS mode; Ebbtide's is cordon
settings:
  source: [nodes]  # NTH's IMDS mode: no queue
  atDeadline: leave  # NTH leaves pods that a budget protects; Ebbtide's default deletes them in time for their grace period
agent:
  hostNetwork: true  # NTH's default; keep it: else pods need a metadata hop limit of 2, which gives every pod the node's role
  enabled: true  # NTH's IMDS mode: a DaemonSet
";

const HOOKS: &str = "\
Carried over, but not the same:
  enableSqsTerminationDraining: is not true: NTH's IMDS mode, which Ebbtide's agent replaces. Instance metadata don't name lifecycle hooks: set settings.nodeHook to the name of yours, which needs AWS permissions; or settings.drainTimeout.asgTerminate to its timeout, for which it waits after each drain
";

#[test]
fn values_of_imds_mode() {
    let given = "
enableSpotInterruptionDraining: false
enableRebalanceMonitoring: true
enableScheduledEventDraining: \"false\"
daemonsetTolerations: []
daemonsetPriorityClassName: mine
useHostNetwork: false
instanceMetadataURL: http://[fd00:ec2::254]/
queueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth
checkTagBeforeDraining: true
podMonitor: {create: true, interval: 15s, sampleLimit: \"900\"}
serviceMonitor: {create: true}
";
    let values = "\
actions:
  spot: ignore  # enableSpotInterruptionDraining
  scheduledChange: ignore  # enableScheduledEventDraining
  rebalance: cordon  # enableRebalanceMonitoring
settings:
  uncordonAfter: 0s  # enableRebalanceMonitoring
  source: [nodes]  # NTH's IMDS mode: no queue
  atDeadline: leave  # NTH leaves pods that a budget protects; Ebbtide's default deletes them in time for their grace period
agent:
  priorityClassName: mine  # daemonsetPriorityClassName
  hostNetwork: false  # useHostNetwork
  tolerations: []  # daemonsetTolerations
  metadataEndpoint: http://[fd00:ec2::254]  # instanceMetadataURL
  enabled: true  # NTH's IMDS mode: a DaemonSet
podMonitor:
  enabled: true  # podMonitor.create
  interval: 15s  # podMonitor.interval
  sampleLimit: 900  # podMonitor.sampleLimit
";
    let remarks = format!(
        "{HOOKS}Not needed:
  serviceMonitor.create: NTH creates none in IMDS mode
  queueURL: only NTH's queue mode reads it
  checkTagBeforeDraining: only NTH's queue mode reads it
"
    );
    becomes(given, values, &remarks);
    becomes("", AGENT, HOOKS);
    assert_eq!(migrated("# nothing but a comment\n"), migrated(""));
    assert_eq!(migrated("---\n---\n---\n"), migrated(""));
    let (_, remarks, _) = migrated("enableSqsTerminationDraining: yes");
    assert_eq!(remarks, "To be done first:\n  queueURL: is not set; set queueUrl to the URL of the queue\n");
}

/// Checks the values of IMDS mode that are given, made of them beside what it always has, and the begin of the remark, if there is one.
fn become_the_agents(table: &[(&str, &str, &str)]) {
    for (given, values, remark) in table {
        let (made, remarks, _) = migrated(given);
        let new: Vec<&str> = made.lines().filter(|line| !AGENT.contains(&format!("{line}\n"))).collect();
        let remarks = remarks.replace(HOOKS, "");
        assert_eq!(new.join("\n"), *values, "{given}");
        assert!(remarks.contains(remark) && remarks.is_empty() == remark.is_empty(), "{given}: {remarks}");
    }
}

/// NTH's DaemonSet merges the maps for both modes with its own.
#[test]
fn labels_and_annotations_of_the_agents_pods() {
    become_the_agents(&[
        ("linuxPodLabels: {a: b}", "  podLabels:  # linuxPodLabels\n    a: b", ""),
        (
            "podLabels: {a: b}\nlinuxPodLabels: {c: d}",
            "  podLabels:  # podLabels\n    a: b\n    c: d\npodLabels:  # podLabels\n  a: b",
            "",
        ),
        (
            "linuxPodLabels: {app.kubernetes.io/name: nth, c: d}",
            "  podLabels:  # linuxPodLabels\n    c: d",
            "linuxPodLabels: app.kubernetes.io/name left out: the chart itself or customLabels sets it",
        ),
        (
            "customLabels: {a: b}\npodLabels: {a: b, c: d}",
            "  podLabels:  # podLabels\n    c: d\ncommonLabels:  # customLabels\n  a: b\npodLabels:  # podLabels\n  c: d",
            "",
        ),
        (
            "podAnnotations: {prometheus.io/port: 9092}",
            "  podAnnotations:  # podAnnotations\n    prometheus.io/port: \"18464\"\npodAnnotations:  # podAnnotations\n  prometheus.io/port: \"8080\"",
            "podAnnotations: prometheus.io/port is 8080 in podAnnotations; prometheus.io/port is 18464 in agent.podAnnotations",
        ),
        (
            "linuxPodAnnotations: {prometheus.io/path: /m, a: b}",
            "  podAnnotations:  # linuxPodAnnotations\n    a: b\n    prometheus.io/path: /metrics",
            "linuxPodAnnotations: prometheus.io/path is /metrics in agent.podAnnotations",
        ),
        ("podLabels: {a: b}", "  podLabels:  # podLabels\n    a: b\npodLabels:  # podLabels\n  a: b", ""),
    ]);
}

/// Of three values NTH's DaemonSet takes one.
#[test]
fn pods_of_the_agent_run_where_nths_did() {
    become_the_agents(&[
        ("daemonsetNodeSelector: {a: b}", "  nodeSelector:  # daemonsetNodeSelector\n    a: b", ""),
        (
            "daemonsetNodeSelector: {a: b}\nlinuxNodeSelector: {c: d}",
            "  nodeSelector:  # linuxNodeSelector\n    c: d",
            "",
        ),
        (
            "daemonsetNodeSelector: {a: b}\nnodeSelector: {e: f}",
            "  nodeSelector:  # nodeSelector\n    e: f\nnodeSelector:  # nodeSelector\n  e: f",
            "",
        ),
        (
            "linuxTolerations: [{key: a}]\ndaemonsetTolerations: []",
            "  tolerations:  # linuxTolerations\n    - key: a",
            "",
        ),
        ("instanceMetadataURL: http://proxy/path", "", "instanceMetadataURL: is not http://HOST"),
        ("updateStrategy: {type: OnDelete}", "  updateStrategy:  # updateStrategy\n    type: OnDelete", ""),
        (
            "deleteLocalData: false",
            "  keepEmptyDir: true  # deleteLocalData",
            "deleteLocalData: with `false` NTH evicts no pod",
        ),
        ("managedTag: a", "", "managedTag: only NTH's queue mode reads it"),
        ("enableASGLifecycleDraining: false", "  asgTerminate: ignore  # enableASGLifecycleDraining", ""),
        ("linuxAffinity: {nodeAffinity: {}}", "  affinity:  # linuxAffinity\n    nodeAffinity: {}", ""),
        (
            "affinity: {nodeAffinity: {}}\ndaemonsetAffinity: {}",
            "  affinity:  # affinity\n    nodeAffinity: {}\naffinity:  # affinity\n  nodeAffinity: {}",
            "",
        ),
        ("targetNodeOs: linux windows", "", "targetNodeOs: only NTH's DaemonSet on Windows uses it"),
        (
            "resources: {limits: {memory: 32Mi}}",
            "  resources:  # resources\n    limits:\n      memory: 32Mi\n    requests: null",
            "",
        ),
        (
            "cordonOnly: true",
            "  asgTerminate: cordon  # cordonOnly\n  spot: cordon  # cordonOnly\n  scheduledChange: cordon  # cordonOnly",
            "",
        ),
        (
            "cordonOnly: true\nenableSpotInterruptionDraining: false\nenableASGLifecycleDraining: false\nenableRebalanceDraining: true",
            "  rebalance: cordon  # cordonOnly\n  scheduledChange: cordon  # cordonOnly\n  spot: ignore  # enableSpotInterruptionDraining\n  asgTerminate: ignore  # enableASGLifecycleDraining\n  uncordonAfter: 0s  # cordonOnly",
            "",
        ),
        (
            "completeLifecycleActionDelaySeconds: 5",
            "",
            "completeLifecycleActionDelaySeconds: no hook is completed until",
        ),
        ("enableOutOfServiceTaint: true", "", "enableOutOfServiceTaint: EC2's state changes"),
        ("metadataTries: 5", "", "metadataTries: the agent asks again"),
    ]);
    // In queue mode NTH has no DaemonSet.
    for given in [
        "useHostNetwork: false",
        "linuxTolerations: [{key: a}]",
        "daemonsetNodeSelector: {a: b}",
        "updateStrategy: {a: b}",
    ] {
        let (values, remarks) = one(given);
        assert!(values.is_empty() && remarks.starts_with(NEEDLESS), "{given}: {values}{remarks}");
    }
}

#[test]
fn each_error_is_one_sentence() {
    let bomb = (1..9).fold("a0: &a0 [1,1,1,1,1,1,1,1,1]\n".to_owned(), |bomb, n| {
        format!("{bomb}a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(","))
    });
    let deep = (0..100).fold(String::new(), |deep, n| deep + &"  ".repeat(n) + "k:\n");
    let wide = format!("a: [{}]", "1,".repeat(50_000));
    let table = [
        ("just words", "is not a map of values"),
        ("aws-node-termination-handler: {replicas: 2}", "has the values of a parent chart; give the part below"),
        ("- a\n- b", "is not a map of values"),
        ("a: 1\na: 2", "has a twice, the second time on line 2; remove one"),
        ("a: 1\n---\nb: 2", "has a second document on line"),
        ("a: 1\n---\n# nothing\n---\nb: 2", "has a second document on line"),
        ("a: 1\n---\n{\"a\": [", "is not valid YAML: "),
        ("{\"a\": [", "is not valid YAML: "),
        ("a: *b", "is not valid YAML: "),
        ("a: .inf", "is not valid YAML: "),
        ("\u{0}", "is not valid YAML: "),
        (&bomb, "is deeper or larger than any values file"),
        (&deep, "is deeper or larger than any values file"),
        (&wide, "is deeper or larger than any values file"),
        (&"[".repeat(100_000), "is "),
    ];
    for (given, expected) in table {
        let what = convert(given).unwrap_err().to_string();
        let shown: String = given.chars().take(40).collect();
        assert!(what.starts_with(expected), "{shown}: {what}");
        assert!(what.lines().count() == 1 && what.len() < 300, "{shown}: {what}");
    }
}

#[test]
fn numbers_are_what_helm_takes_them_for() {
    let table = [
        ("010", "8"),
        ("-010", "-8"),
        ("0600", "384"),
        ("089", "89"),
        ("0o10", "8"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("1e3", "1000"),
        ("10.0", "10"),
        (".5", "0.5"),
        ("0", "0"),
        ("yes", "true"),
        ("Off", "false"),
        ("y", "true"),
    ];
    for (given, text) in table {
        let (values, remarks) = one(&format!("podAnnotations: {{k: {given}}}"));
        assert_eq!((values, remarks), (format!("podAnnotations:  # podAnnotations\n  k: \"{text}\""), String::new()));
    }
    assert_eq!(one("podAnnotations: {k: ~}"), (String::new(), String::new()));
    let octal = one("nodeTerminationGracePeriod: 0600");
    assert_eq!(octal.0, "  drainTimeout:\n    all: 384s  # nodeTerminationGracePeriod");
    assert_eq!(one("replicas: 1e1").0, "replicaCount: 10  # replicas");
}

/// A file may begin and end with a line between documents.
#[test]
fn documents_that_are_empty_are_none() {
    for given in [format!("---\n{GIVEN}---\n"), format!("{GIVEN}---\n# nothing\n---\n"), format!("{GIVEN}...\n")] {
        becomes(&given, QUEUE, "");
    }
}

#[test]
fn ambiguous_words_are_quoted() {
    let written = |text: &str| {
        let (values, _) = one(&format!("podAnnotations: {{k: {}}}", Value::from(text)));
        let read: Value = serde_saphyr::from_str(&values).unwrap();
        assert_eq!(read["podAnnotations"]["k"], text, "{values}");
        values.strip_prefix("podAnnotations:  # podAnnotations\n  k: ").expect("it must be the only value").to_owned()
    };
    let words = [
        "yes",
        "No",
        "ON",
        "null",
        "~",
        "1e3",
        "0x1f",
        "12:30:45",
        "a: b",
        "a #b",
        "*a",
        "-",
        "",
        "=",
        "a:",
        "0o7",
        "1_000",
        "2026-11-27",
        "!a",
        "&a",
        "%a",
        "@a",
        "`a",
        "a\nb",
    ];
    for text in words {
        assert!(written(text).starts_with(['"', '\'']), "{text}");
    }
    for text in ["ü", "5m", "50m", "done+failed", "/metrics", "a b"] {
        assert_eq!(written(text), text);
    }
    let (values, _) = one("podAnnotations: {\"on\": a, \"1\": b, \"x y\": \"c\\nd\"}");
    assert_eq!(values, "podAnnotations:  # podAnnotations\n  \"1\": b\n  \"on\": a\n  x y: \"c\\nd\"");
}

/// YAML reads a name of more than 1,024 characters only after a sign.
#[test]
fn a_long_name_is_read_as_it_was() {
    let name = "n".repeat(1_100);
    for value in ["v", "{a: b}"] {
        let (values, _) = one(&format!("affinity: {{? {name} : {value}}}"));
        let read: Value = serde_saphyr::from_str(&values).unwrap();
        let wanted = if value == "v" { Value::from(value) } else { serde_json::json!({ "a": "b" }) };
        assert_eq!(read["affinity"][&name], wanted, "{values}");
    }
}

#[test]
fn the_table_has_every_value_of_nths_chart() {
    let fixture = include_str!("../../../tests/fixtures/nth/values.tsv");
    let facts: std::collections::BTreeMap<&str, &str> =
        fixture.lines().map(|line| line.split_once('\t').unwrap()).collect();
    let table: std::collections::BTreeMap<&str, &str> = rows().map(|row| (row.key, row.default)).collect();
    assert_eq!(table, facts);
    assert_eq!((table.len(), rows().count()), (108, 108), "none twice");
    let silent: Vec<_> = rows().filter(|row| row.to.is_empty() && row.why.is_empty()).map(|row| row.key).collect();
    assert!(silent.is_empty(), "none without a reason: {silent:?}");
}

#[test]
fn the_values_go_into_a_new_file_and_strict_decides_the_exit_code() {
    let folder = std::env::temp_dir().join(format!("ebbtide-migrate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (nth, ours) = (folder.join("nth.yaml"), folder.join("ebbtide.yaml"));
    std::fs::write(&nth, format!("{GIVEN}unknown: 1\n")).unwrap();
    let asked = |output: Option<&std::path::Path>, strict| {
        run(&Migrate { values: Some(nth.clone()), output: output.map(Into::into), strict })
    };
    let (lax, strict) = (asked(None, false), asked(None, true));
    assert_eq!((lax.code, strict.code), (0, 3));
    assert!(lax.remarks.contains("unknown:") && lax.output == strict.output, "{}", lax.remarks);
    let written = asked(Some(&ours), false);
    assert_eq!((written.code, written.output.as_str(), &written.remarks), (0, "", &lax.remarks));
    assert_eq!(std::fs::read_to_string(&ours).unwrap(), lax.output);
    let again = asked(Some(&ours), false);
    assert!(
        again.code == 1 && again.problems.contains("--output"),
        "what somebody has edited stays: {}",
        again.problems
    );
    std::fs::remove_dir_all(folder).unwrap();
}
