"""Both versions of helm refuse wrong values with one sentence before the installation."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from api import KNOWN, definitions
from chart import CHART, HELM3, HELM4, OLDEST, VALUES, Helm, Object, source
from flags import flags
from schema import ALERTS, REFUSED, other_charts
from schemas import conform

QUEUE = "queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n"

TYPOS = [
    ("queueUlr: x", "at '': additional properties 'queueUlr' not allowed"),
    ("settings: {registrationGrac: 5s}", "at '/settings': additional properties 'registrationGrac' not allowed"),
    ("settings: {registrationGrace: 5 sec}", "at '/settings/registrationGrace': '5 sec' does not match pattern"),
    ("settings: {registrationGrace: 0.5}", "at '/settings/registrationGrace': got number, want null or integer or string"),
    ("settings: {drainTimeout: 10min}", "at '/settings/drainTimeout': '10min' does not match pattern"),
    ("settings: {drainTimeout: {asg-terminate: 1m}}", "additional properties 'asg-terminate' not allowed"),
    ("settings: {drainTimeout: {sopt: 1m}}", "at '/settings/drainTimeout': additional properties 'sopt' not allowed"),
    ("settings: {atDeadline: keep}", "at '/settings/atDeadline': value must be one of 'delete', 'leave'"),
    ("pools: {gpu: {}}", "at '/pools': got object, want null or array"),
    ("pools: [{name: gpu}]", "at '/pools/0': missing property 'nodeSelector'"),
    ("pools: [{name: a b, nodeSelector: c}]", "at '/pools/0/name': 'a b' does not match pattern"),
    ("pools: [{name: a, nodeSelector: b, taint: [c]}]", "at '/pools/0': additional properties 'taint' not allowed"),
    ("pools: [{name: a, nodeSelector: b, atDeadline: keep}]", "at '/pools/0/atDeadline': value must be one of 'delete', 'leave'"),
    ("pools: [{name: a, nodeSelector: b, actions: {spot: ready}}]", "at '/pools/0/actions/spot': value must be one of"),
    ("settings: {atTimeout: keep}", "at '/settings/atTimeout': 'keep' does not match pattern"),
    ("settings: {dryRun: 'yes'}", "at '/settings/dryRun': got string, want null or boolean"),
    ("settings: {wave: [zone=1]}", "at '/settings/wave': got array, want null or object"),
    ("settings: {wave: {zone: 0}}", "at '/settings/wave/zone': minimum: got 0, want 1"),
    ("settings: {wave: {zone: 101%}}", "at '/settings/wave/zone': '101%' does not match pattern"),
    ("settings: {wave: {zone=1: 2}}", "at '/settings/wave': additional properties 'zone=1' not allowed"),
    ("settings: {nodeSelector: {gpu: true}}", "at '/settings/nodeSelector/gpu': got boolean, want null or string"),
    ("settings: {podSelector: {a: '!b'}}", "at '/settings/podSelector/a': '!b' does not match pattern"),
    ("settings: {taint: ['going:NoShedule']}", "at '/settings/taint/0': 'going:NoShedule' does not match pattern"),
    ("traces: {endpoint: 'http://me:t0ken@collector'}", "at '/traces/endpoint': 'http://me:t0ken@collector' does not"),
    ("notifications: {url: x}", "at '/notifications': additional properties 'url' not allowed"),
    ("notifications: {existingSecret: x, format: mail}", "at '/notifications/format': value must be one of 'json', "),
    ("notifications: {existingSecret: x, phases: {all: begun}}", "at '/notifications/phases/all': 'begun' does not"),
    ("notifications: {existingSecret: x, proxy: 'http://a:b@c'}", "at '/notifications/proxy': 'http://a:b@c' does not"),
    ("settings: {heartbeat: sometimes}", "at '/settings/heartbeat': 'sometimes' does not match pattern"),
    ("actions: {sopt: drain}", "at '/actions': additional properties 'sopt' not allowed"),
    ("actions: {asg-terminate: drain}", "at '/actions': additional properties 'asg-terminate' not allowed"),
    ("actions: {spot: ready}", "at '/actions/spot': value must be one of 'drain', 'cordon', 'report', 'ignore'"),
    ("actions: {asgLaunch: drain}", "at '/actions/asgLaunch': value must be one of 'ready', 'report', 'ignore'"),
    # YAML reads off and no as false, and the templates once took false for a missing value.
    *[(f"actions: {{spot: {no}}}", "at '/actions/spot': value must be one of ") for no in ("off", "''", "0", "[]", "{}")],
    ("actions: drain", "at '/actions': got string, want object"),
    ("aws: {regoin: eu-west-1}", "at '/aws': additional properties 'regoin' not allowed"),
    ("aws: {region: Ireland}", "at '/aws/region': 'Ireland' does not match pattern"),
    ("image: {repository: /ebbtide}", "at '/image/repository': '/ebbtide' does not match pattern"),
    ("image: {repository: ''}", "at '/image/repository': '' does not match pattern"),
    ("agent: {updateStrategy: {type: Recreate}}", "at '/agent/updateStrategy/type': value must be one of 'RollingUpdate'"),
    ("agent: {affinity: {nodeAfinity: {}}}", "at '/agent/affinity': additional properties 'nodeAfinity' not allowed"),
    ("image: {digest: abc}", "at '/image/digest': 'abc' does not match pattern"),
    ("terminationGracePeriodSeconds: 5", "at '/terminationGracePeriodSeconds': minimum: got 5, want 15"),
    ("serviceAccount: {annotations: {eks.amazonaws.com/role-arn: ebb}}", "role-arn': 'ebb' does not match pattern"),
    ("podMonitor: {enable: true}", "at '/podMonitor': additional properties 'enable' not allowed"),
    ("prometheusRule: {matchers: 'namespace=ebbtide'}", "at '/prometheusRule/matchers': 'namespace=ebbtide' does not match"),
    ("prometheusRule: {alerts: {EbbtideUp: {enabled: false}}}", "at '/prometheusRule/alerts': additional properties 'EbbtideUp' not"),
    ("prometheusRule: {alerts: {EbbtideDown: {threshold: 2}}}", "additional properties 'threshold' not allowed"),
    ("prometheusRule: {alerts: {EbbtideUnusual: {threshold: few}}}", "/EbbtideUnusual/threshold': 'few' does not match pattern"),
    ("prometheusRule: {alerts: {EbbtideDown: {for: 5 min}}}", "at '/prometheusRule/alerts/EbbtideDown/for': '5 min' does not match"),
    ("networkPolicy: {egressPorts: ['443']}", "at '/networkPolicy/egressPorts/0': got string, want integer"),
    ("podDisruptionBudget: {minAvailable: half}", "at '/podDisruptionBudget/minAvailable': 'half' does not match"),
    ("podMonitor: {sampleLimit: 0}", "at '/podMonitor/sampleLimit': minimum: got 0, want 1"),
    ("serviceMonitor: {namespace: Monitoring}", "at '/serviceMonitor/namespace': 'Monitoring' does not match"),
    ("commonAnnotations: {a: 1}", "at '/commonAnnotations/a': got number, want string"),
    ("hostNetwork: 'yes'", "at '/hostNetwork': got string, want boolean"),
    ("dnsPolicy: Cluster", "at '/dnsPolicy': value must be one of 'ClusterFirst', 'ClusterFirstWithHostNet', 'Default'"),
    ("extraObjects: [{kind: ConfigMap, metadata: {}}]", "at '/extraObjects/0': missing property 'apiVersion'"),
    # In Kubernetes objects.
    ("strategy: {type: BlueGreen}", "at '/strategy/type': value must be one of 'RollingUpdate', 'Recreate'"),
    ("strategy: {rollingUpdate: {maxSurges: 1}}", "at '/strategy/rollingUpdate': additional properties 'maxSurges' not"),
    ("envFrom: [{secret: {name: a}}]", "at '/envFrom/0': additional properties 'secret' not allowed"),
    ("resources: {reqeusts: {cpu: 1}}", "at '/resources': additional properties 'reqeusts' not allowed"),
    ("resources: {limits: {mem: 1Gi}}", "at '/resources/limits': additional properties 'mem' not allowed"),
    ("resources: {limits: {memory: 64MB}}", "at '/resources/limits/memory': '64MB' does not match pattern"),
    ("podSecurityContext: {runAsNonRot: true}", "at '/podSecurityContext': additional properties 'runAsNonRot' not"),
    (
        "podSecurityContext: {seccompProfile: {type: Default}}",
        "at '/podSecurityContext/seccompProfile/type': value must",
    ),
    ("securityContext: {runAsNonRot: true}", "at '/securityContext': additional properties 'runAsNonRot' not allowed"),
    ("securityContext: {privileged: 'no'}", "at '/securityContext/privileged': got string, want null or boolean"),
    (
        "tolerations: [{key: a, operator: Exist}]",
        "at '/tolerations/0/operator': value must be one of 'Exists', 'Equal'",
    ),
    ("tolerations: [{key: a, effect: NoShedule}]", "at '/tolerations/0/effect': value must be one of 'NoSchedule'"),
    ("tolerations: [null]", "at '/tolerations/0': got null, want object"),
    ("extraEnv: [null]", "at '/extraEnv/0': got null, want object"),
    ("tolerations: [{keys: a}]", "at '/tolerations/0': additional properties 'keys' not allowed"),
    ("affinity: {nodeAfinity: {}}", "at '/affinity': additional properties 'nodeAfinity' not allowed"),
    (
        "affinity: {podAntiAffinity: {required: []}}",
        "at '/affinity/podAntiAffinity': additional properties 'required' not",
    ),
    (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a}]",
        "at '/topologySpreadConstraints/0': missing property",
    ),
    (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: No}]",
        "/whenUnsatisfiable': value must",
    ),
    ("dnsConfig: {option: []}", "at '/dnsConfig': additional properties 'option' not allowed"),
    (
        "dnsConfig: {options: [{name: ndots, value: 3}]}",
        "at '/dnsConfig/options/0/value': got number, want null or string",
    ),
    ("imagePullSecrets: [{nmae: a}]", "at '/imagePullSecrets/0': additional properties 'nmae' not allowed"),
    ("extraEnv: [{name: A, valueForm: {}}]", "at '/extraEnv/0': additional properties 'valueForm' not allowed"),
    (
        "extraEnv: [{name: A, valueFrom: {secretRef: {}}}]",
        "at '/extraEnv/0/valueFrom': additional properties 'secretRef'",
    ),
    ("extraEnv: [{name: A, valueFrom: {fieldRef: {path: a}}}]", "at '/extraEnv/0/valueFrom/fieldRef': "),
    ("initContainers: [{name: a, imag: b}]", "at '/initContainers/0': additional properties 'imag' not allowed"),
    ("extraVolumes: [{name: a, emptydir: {}}]", "at '/extraVolumes/0': additional properties 'emptydir' not allowed"),
    ("extraVolumes: [{name: a, secret: {name: b}}]", "at '/extraVolumes/0/secret': additional properties 'name' not"),
    ("extraVolumeMounts: [{name: a}]", "at '/extraVolumeMounts/0': missing property 'mountPath'"),
    ("extraVolumeMounts: [{name: a, mountPath: /a, readonly: true}]", "additional properties 'readonly' not allowed"),
    ("networkPolicy: {ingressFrom: [{podselector: {}}]}", "at '/networkPolicy/ingressFrom/0': additional properties"),
    (
        "networkPolicy: {extraEgress: [{port: []}]}",
        "at '/networkPolicy/extraEgress/0': additional properties 'port' not",
    ),
    ("podMonitor: {relabelings: [{target: a}]}", "at '/podMonitor/relabelings/0': additional properties 'target' not"),
]
"""Mistakes that the schema finds. helm adds a line around the sentence."""

ABOVE = [
    ("1Gi", "1G"),
    ("1025Ki", "1Mi"),
    ("1.1Gi", "1Gi"),
    ("1e9", "999M"),
    ("1", "999m"),
    ("'1.001E'", "1000P"),
    ("2Ei", "2E"),
    ("1u", "999n"),
    ("1Mi", "0"),
]
"""Amounts, each with a smaller one."""

EQUAL = [
    ("1Gi", "1024Mi"),
    ("100m", "0.1"),
    ("'0.1'", "100m"),
    ("1e3", "1k"),
    ("1E", "1000P"),
    ("1Ki", "1024"),
    ("300m", "'.3'"),
    ("1.5G", "1500M"),
    ("0.000001", "1u"),
]
"""Equal amounts in different notations."""

ON = "on is not a value: write actions, with kinds in camelCase, as in "
BLANKET = "tolerations must not tolerate node.kubernetes.io/unschedulable, as "
ALONE = "queueUrl: ''\nsettings: {source: [nodes]"
"""The beginning of values with what Nodes say alone."""

UNDRAINED = """actions: {asgTerminate: cordon, spot: report, stateChange: ignore, scheduledChange: cordon, capacityReservation: cordon}"""
"""Values with which no kind is drained."""

SENTENCES = [
    (
        "pools: [{name: gpu, nodeSelector: a, drainTimeout: {spot: 90}}]",
        "drainTimeout.spot of the pool gpu is 90, without a unit: write 90s for seconds, or another unit, such as 10m",
    ),
    (
        "pools: [{name: gpu, nodeSelector: a, actions: {statusCheck: drain}}]",
        "actions.statusCheck has no effect without settings.ec2PollInterval",
    ),
    (
        "traces: {existingSecret: collector}",
        "traces.existingSecret has no effect without traces.endpoint: set the collector's URL",
    ),
    (
        "notifications: {format: slack}",
        "notifications.format has no effect without notifications.existingSecret: name a Secret",
    ),
    ("settings: {source: [nodes]}", "queueUrl has no effect with settings.source: [nodes]; add queue to it"),
    (
        "settings: {onCondition: ['Ready=Unknown:5m=drain']}",
        "settings.onCondition has no effect without nodes in settings.source: set settings.source: [queue, nodes]",
    ),
    *[
        (
            f"{UNDRAINED}\nsettings: {{{setting}}}",
            f"settings.{name} has no effect without an action that drains, such as actions.spot: drain; set one, or remove it",
        )
        for setting, name in [("maxDraining: 20%", "maxDraining"), ("verify: always, healthIssue: {AWS_EC2_X: cordon}", "verify")]
    ],
    ("agent: {enabled: true}", "agent.enabled has no effect without nodes in settings.source: set settings.source: [queue, nodes]"),
    *[
        (ALONE + setting, f"{name} needs calls to AWS that are not made with settings.source: [nodes] alone; "
            "write [queue, nodes] and queueUrl, [nodes, ec2] and ec2PollInterval, or remove it")
        for setting, name in [
            (", requireTag: true}", "settings.requireTag"),
            (", collectNodes: true}", "settings.collectNodes"),
            (", verify: always}", "settings.verify"),
            (", waitForLoadBalancers: wait}", "settings.waitForLoadBalancers"),
            (", waitForLoadBalancers: deregister}", "settings.waitForLoadBalancers"),
            ("}\nactions: {asgTerminate: replace}", "actions.asgTerminate: replace"),
            ("}\nactions: {asgLaunch: ready}", "actions.asgLaunch: ready"),
        ]
    ],
    *[
        (ALONE + setting, f"settings.{name} is about events that come by the queue: add queue to settings.source: [nodes]")
        for setting, name in [
            (", healthIssue: {AWS_EC2_A_FAULT: drain}}", "healthIssue"),
            (", zonalShift: [any]}", "zonalShift"),
            (", outOfServiceTaint: true}", "outOfServiceTaint"),
        ]
    ],
    ("settings: {source: [queue, nodes], nodeHook: drain}", "settings.nodeHook is for settings.source: [nodes]: with a queue"),
    *[
        (f"actions: {{statusCheck: {action}}}", "actions.statusCheck has no effect without settings.ec2PollInterval: set an interval")
        for action in ("cordon", "reboot")
    ],
    ("settings: {source: [queue, ec2]}", "settings.ec2PollInterval is missing, but settings.source names ec2; set"),
    (
        "settings: {source: [queue, nodes], ec2PollInterval: 5m}",
        "settings.ec2PollInterval has no effect with settings.source: [queue, nodes]; write [queue, nodes, ec2], or",
    ),
    ("admin: {port: 8081}", "admin.port and status.port are both 8081: choose different ports"),
    ("status: {port: 8080, shared: true}", "admin.port and status.port are both 8080: choose different ports"),
    *[
        (
            "hostNetwork: true\nsettings: {source: [queue, nodes]}\n"
            f"agent: {{enabled: true, hostNetwork: true, port: {port}}}",
            f"agent.port and {name} are both {port}, and both use the node's network: choose different ports",
        )
        for port, name in ((8080, "admin.port"), (8081, "status.port"))
    ],
    *[
        (
            f"replicaCount: {replicas}\npodDisruptionBudget: {{minAvailable: {least}}}",
            f"podDisruptionBudget.minAvailable is {least} with a replicaCount of {replicas}: no pod of Ebbtide",
        )
        for replicas, least in ((2, "2"), (2, "3"), (2, "51%"), (3, "100%"), (1, "1%"))
    ],
    *[
        (f"podDisruptionBudget: {{maxUnavailable: {most}}}", f"podDisruptionBudget.maxUnavailable is {most}: no pod of Ebbtide")
        for most in ("0", "0%", "00%")
    ],
    ("queueUrl: ''", "queueUrl is required: set the URL of the SQS queue that EventBridge sends to, as in --set"),
    (
        "queueUrl: arn:aws:sqs:eu-west-1:123456789012:ebbtide",
        "queueUrl is an ARN, arn:aws:sqs:eu-west-1:123456789012:ebbtide: set the queue's URL; "
        "for this queue https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide",
    ),
    ("queueUrl: ebbtide", 'queueUrl is not a queue\'s URL, "ebbtide": the SQS console shows it, as https://sqs.REGION.'),
    ("queueUrl: https://sqs.eu-west-1.amazonaws.com", "queueUrl is not a queue's URL"),
    ("aws: {region: us-east-1}", "aws.region is us-east-1, but queueUrl names a queue in eu-west-1: make them equal"),
    # The bare word reaches the templates as true, the others as on.
    *[
        (f"{key}: {{asg-terminate: cordon, spot: drain}}", ON + "actions: {asgTerminate: cordon, spot: drain}")
        for key in ("on", "'on'", "true", "'true'")
    ],
    *[(f"on: {odd}", ON + "actions: {asgTerminate: drain}") for odd in ("off", "drain", "[]", "{}")],
    ("settings: {heartbeat: on}", "settings.heartbeat can't be true; choose auto, off, or a duration such as 30s"),
    ("settings: {delay: {rebalance: 2m}}", "settings.delay.rebalance has no effect: rebalance is not drained; set its action to drain"),
    ("settings: {startupTaint: [a]}", "settings.startupTaint has no effect without actions.asgLaunch: ready, or the action replace; set that,"),
    (
        ALONE + ", onCondition: ['A=True:5m=drain', 'B=True:5m=replace']}",
        "settings.onCondition: B=True:5m=replace needs calls to AWS that are not made with settings.source: [nodes] alone; ",
    ),
    (
        ALONE + ", onCondition: ['B=True:5m=reboot']}",
        "settings.onCondition: B=True:5m=reboot needs calls to AWS that are not made with settings.source: [nodes] alone; ",
    ),
    *[
        (f"settings: {{source: [queue, nodes], onCondition: ['{rule}']}}", f'settings.onCondition: "{rule}" is not TYPE=STATUS[/REASON]:TOLERATION=ACTION; write it like')
        for rule in ("KernelReady=False=drain", "KernelReady=false:30m=drain", "KernelReady=False:30=drain", "KernelReady=False:30m=ready")
    ],
    (
        ALONE + ", nodeHook: drain}\nactions: {asgTerminate: cordon}",
        "settings.nodeHook has no effect without actions.asgTerminate: drain; set that, too, or remove it",
    ),
    *[
        (f"{ALONE}, {setting}}}", f"settings.{setting.split(':')[0]} is about lifecycle hooks, and without a queue none is completed unless")
        for setting in ("completeAfter: 30s", "heartbeat: 30s", "heartbeat: off", "onFailedDrain: leave", "onUncordon: at-deadline")
    ],
    ("settings: {onFailedLaunch: abandon}", "settings.onFailedLaunch has no effect without actions.asgLaunch: ready"),
    # One of the two values is the default.
    (
        "resources: {requests: {memory: 1Gi}}",
        "resources.requests.memory is 1Gi, above resources.limits.memory, 512Mi: set both, or set one",
    ),
    ("resources: {limits: {cpu: 20m}}", "resources.requests.cpu is 50m, above resources.limits.cpu, 20m"),
    *[
        (
            f"resources: {{requests: {{memory: {request}}}, limits: {{memory: {limit}}}}}",
            "resources.requests.memory is ",
        )
        for request, limit in ABOVE
    ],
    ("tolerations: [{operator: Exists}]", BLANKET),
    ("tolerations: [{operator: Exists, effect: NoSchedule}]", BLANKET),
    ("tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]", BLANKET),
    ("extraEnv: [{name: EBBTIDE_DRY_RUN, value: 'true'}]", "must not set EBBTIDE_DRY_RUN: set settings.dryRun instead"),
    ("extraEnv: [{name: EBBTIDE_ON, value: spot=drain}]", "must not set EBBTIDE_ON: set actions instead"),
    ("extraEnv: [{name: EBBTIDE_QUEUE_URL, value: a}]", "must not set EBBTIDE_QUEUE_URL: set queueUrl instead"),
    ("extraEnv: [{name: EBBTIDE_POD_NAME, value: a}]", "must not set EBBTIDE_POD_NAME, which the chart sets: remove"),
    ("extraEnv: [{name: EBBTIDE_NOTIFY_PROXY, value: a}]", "EBBTIDE_NOTIFY_PROXY: set notifications.proxy instead"),
    (
        "agent: {extraEnv: [{name: EBBTIDE_METADATA_ENDPOINT, value: a}]}",
        "agent.extraEnv must not set EBBTIDE_METADATA_ENDPOINT: set agent.metadataEndpoint instead",
    ),
    ("agent: {podLabels: {ebbtide/agent: 'no'}}", "agent.podLabels must not set ebbtide/agent, which the chart sets: remove it"),
    ("agent: {podLabels: {app.kubernetes.io/name: a}}", "agent.podLabels must not set app.kubernetes.io/name, which"),
    (
        "agent: {resources: {requests: {memory: 64Mi}}}",
        "agent.resources.requests.memory is 64Mi, above agent.resources.limits.memory, 48Mi: set both, or set one",
    ),
    ("extraEnv: [{name: AWS_REGION, value: eu-west-1}]", "extraEnv must not set AWS_REGION: set aws.region instead"),
    ("podLabels: {ebbtide/service: 'no'}", "podLabels must not set ebbtide/service, which the chart sets: remove it"),
    ("service: {labels: {app.kubernetes.io/name: a}}", "service.labels must not set app.kubernetes.io/name, which the chart sets"),
    ("podDisruptionBudget: {maxUnavailable: null}", "podDisruptionBudget.maxUnavailable is empty: remove the line, or set a value, or"),
    ("podLabels: {app.kubernetes.io/name: a}", "podLabels must not set app.kubernetes.io/name, which the chart sets"),
    (
        "podLabels: {app.kubernetes.io/instance: a}",
        "podLabels must not set app.kubernetes.io/instance, which the chart",
    ),
    ("commonLabels: {app.kubernetes.io/name: a}", "commonLabels must not set app.kubernetes.io/name, which the chart"),
    ("commonLabels: {app.kubernetes.io/version: a}", "commonLabels must not set app.kubernetes.io/version, which the"),
    ("commonLabels: {helm.sh/chart: a}", "commonLabels must not set helm.sh/chart, which the chart sets: remove it"),
    (
        "podMonitor: {labels: {app.kubernetes.io/name: a}}",
        "podMonitor.labels must not set app.kubernetes.io/name, which",
    ),
    (
        "commonLabels: {a: b}\npodLabels: {a: c}",
        "podLabels must not set a, which commonLabels sets: remove it from one",
    ),
    ("commonLabels: {a: b}\ndashboard: {labels: {a: c}}", "dashboard.labels must not set a, which commonLabels sets"),
    ("podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}", "would scrape every pod twice: choose one"),
    ("serviceMonitor: {enabled: true}\nservice: {enabled: false}", "serviceMonitor.enabled needs the Service: set"),
]
"""Mistakes that the templates find."""

HELMS = [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)]


def given(values: str) -> str:
    """Returns the values, with a queue if they have none."""
    return values if values.startswith("queueUrl:") else QUEUE + values


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(("values", "sentence"), TYPOS)
def test_the_schema_refuses_mistakes(helm: Helm, values: str, sentence: str) -> None:
    done = helm.try_template(values=given(values))
    assert done.returncode != 0
    reasons = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert len(reasons) == 1, f"more than one sentence: {done.stderr}"
    assert sentence in reasons[0]


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_the_templates_refuse_mistakes(helm: Helm, values: str, sentence: str) -> None:
    done = helm.try_template(values=given(values))
    assert done.returncode != 0
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert sentence in reason


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm.try_template(values=QUEUE, kubernetes="1.26.15")
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert f"chart requires kubeVersion: >={OLDEST}-0 which is incompatible with Kubernetes v1.26.15" in reason
    # EKS has versions with a suffix.
    for fine in (OLDEST, "1.27.16-eks-1552ad0", "1.34.1"):
        helm.template(values=QUEUE, kubernetes=fine)


@pytest.mark.parametrize("values", ["global: {}", "enabled: true"])
def test_values_of_a_parent_chart_are_accepted(values: str) -> None:
    assert HELM4.template(values=QUEUE + values) == HELM4.template(values=(VALUES / "defaults.yaml").read_text())


# Names and forms of other charts.

OTHERS = other_charts()


def nested(path: Sequence[str], value: object) -> Object:
    """Returns values in which the one with this path is set."""
    *above, last = path
    made: Object = {last: value}
    for name in reversed(above):
        made = {name: made}
    return made


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_all_names_of_other_charts_are_refused_at_once_with_what_to_write(helm: Helm) -> None:
    values: Object = {}
    for name in OTHERS:
        for section, inner in nested(name.split("."), "x").items():
            values[section] = {**values[section], **inner} if isinstance(inner, dict) and section in values else inner
    done = helm.try_template(values=QUEUE + yaml.safe_dump(values))
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "not values of this chart: " in reason
    assert [name for name, remedy in OTHERS.items() if f" {name} ({remedy})" not in reason] == []
    assert reason.endswith("; `ebbtide migrate` translates a whole file of aws-node-termination-handler (docs/migrating.md)")


def test_only_names_of_aws_node_termination_handler_have_the_hint_to_migrate() -> None:
    done = HELM4.try_template(values="settings: {interruptionQueue: blue}\n")
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert reason.endswith(": settings.interruptionQueue (write queueUrl, the queue's URL instead of its name)")


def test_each_value_of_aws_node_termination_handlers_chart_is_known_or_has_a_hint() -> None:
    theirs = yaml.safe_load((source("nth") / "config/helm/aws-node-termination-handler/values.yaml").read_text())
    # Maps of the user or of Kubernetes have keys of their own.
    sections = [name for name in ("image", "serviceAccount", "rbac", "podMonitor", "serviceMonitor") if name in theirs]
    names = [*theirs, *(f"{section}.{key}" for section in sections for key in theirs[section])]
    assert [name for name in names if name not in OTHERS and not is_value(name)] == []


def test_the_remedies_name_values_of_this_chart() -> None:
    for name, remedy in OTHERS.items():
        assert remedy.startswith(("write ", "remove it")), name
        first = re.findall(r"^write ([a-z]\w*)", remedy)
        named = re.findall(r"(?<![\w./-])[a-z]\w*(?:\.[a-z]\w*)+", remedy)
        assert [each for each in first + named if not is_value(each)] == [], name


def is_value(name: str) -> bool:
    """Returns whether the chart has a value of this name, which may be a part of a Kubernetes object."""
    schema = SCHEMA
    for key in name.split("."):
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        below = schema.get("properties", {}).get(key)
        if below is None or below.get("description", "").startswith(REFUSED):
            return False
        schema = below
    return True


SECONDS = [
    *[f"settings.{flag.key}" for flag in flags() if flag.key and flag.form in ("DURATION", "[KIND=]DURATION", "auto|off|DURATION")],
    *[f"settings.{flag.key}.asgTerminate" for flag in flags() if flag.key and flag.form.endswith("KIND=DURATION")],
    "settings.drainTimeout.all",
    "notifications.timeout",
]


@pytest.mark.parametrize("path", SECONDS)
def test_seconds_without_a_unit_are_refused_with_the_right_form(path: str) -> None:
    for number in (600, 0, "600", "010"):
        done = HELM4.try_template(values=QUEUE + yaml.safe_dump(nested(path.split("."), number)))
        assert f"{path} is {number}, without a unit: write {number}s for seconds, or another unit" in done.stderr


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_seconds_are_refused_on_the_command_line(helm: Helm) -> None:
    done = helm.try_template("--set", "settings.drainTimeout=90000", values=QUEUE)
    assert "settings.drainTimeout is 90000, without a unit: write 90000s for seconds" in done.stderr


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("imageRegistry", "write image.repository, with the registry"),
        ("imagePullSecrets", "write imagePullSecrets, each {name: NAME}"),
        ("shared", "remove it"),
    ],
)
def test_globals_are_refused_without_a_parent_chart(helm: Helm, name: str, instead: str) -> None:
    done = helm.try_template(values=f"{QUEUE}global: {{{name}: x}}\n")
    assert f"global.{name} has no effect: globals are for subcharts, and Ebbtide reads none; {instead}" in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        "tolerations: [{key: dedicated, operator: Exists}]",
        "tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 60}]",
        "settings: {heartbeat: off}",
        "settings: {drainTimeout: {all: 1h30m}}",
        "settings: {drainTimeout: 30m}",
        "actions: {spot: null}",
        "tolerations: [{key: a, operator: Gt, value: '3', effect: PreferNoSchedule}]",
        "tolerations:\nsettings: {taint: ['a:NoExecute']}",
        # null removes a default.
        "resources: {limits: null}",
        "podSecurityContext: {runAsUser: null, seccompProfile: null}",
        "dnsConfig: {options: null}",
        "commonLabels: {app.kubernetes.io/part-of: nodes}",
        "extraEnv: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b, optional: true}}}]",
        "resources: {limits: {cpu: 1, memory: 1Gi, example.com/card: 1, hugepages-2Mi: 1Gi}}",
        "resources: {limits: {cpu: 0.5, memory: '1.5G'}, requests: {cpu: 50m, memory: 1e9}}",
        "resources: {requests: {memory: 512Mi}, limits: {memory: null}}",
        *[f"resources: {{requests: {{memory: {one}}}, limits: {{memory: {other}}}}}" for one, other in EQUAL],
        *[f"resources: {{requests: {{memory: {less}}}, limits: {{memory: {more}}}}}" for more, less in ABOVE],
        "settings: {source: [ec2, queue], ec2PollInterval: 5m}",
        "settings: {ec2PollInterval: 5m}",
        "settings: {startupTaint: [a]}\nactions: {rebalance: replace}",
        "settings: {startupTaint: [a], source: [queue, nodes], onCondition: ['A=True:5m=replace']}",
        "settings: {startupTaint: [a], healthIssue: {AWS_EC2_A_FAULT: replace}}",
        "settings: {wave: {a: 1, example.com/b: 100%}}",
        "initContainers: [{name: a, image: b, restartPolicy: Always}]",
        "settings: {source: [queue, nodes], requireTag: true}\nactions: {asgTerminate: replace}",
        "admin: {port: 8081}\nstatus: {enabled: false}",
        "settings: {source: [queue, nodes]}\nagent: {enabled: true, hostNetwork: true, port: 8080}",
        "settings: {source: [queue, nodes]}\nagent: {enabled: true, hostNetwork: true}\nhostNetwork: true",
        "podDisruptionBudget: {minAvailable: 50%}",
        "replicaCount: 0\npodDisruptionBudget: {minAvailable: 1}",
        "podDisruptionBudget: {enabled: false, minAvailable: 2}",
        "podDisruptionBudget: {maxUnavailable: 1%}",
        "podDisruptionBudget: {maxUnavailable: 0, minAvailable: 1}",
        "podDisruptionBudget: {enabled: false, maxUnavailable: 0}",
        "replicaCount: 0\npodDisruptionBudget: {maxUnavailable: 0%}",
        "extraEnv: [{name: EBBTIDE_NOTIFY_PROXY, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
        "agent: {resources: null, updateStrategy: {type: OnDelete}}",
        "extraVolumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: a, audience: b}}]}}]",
    ],
)
def test_correct_values_are_accepted(values: str) -> None:
    HELM4.template(values=QUEUE + values)


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_on_is_refused_on_the_command_line(helm: Helm) -> None:
    done = helm.try_template("--set", "on.state-change=drain", values=QUEUE)
    assert done.returncode != 0
    assert ON + "actions: {stateChange: drain}" in done.stderr


# Empty values, such as a section whose lines are all commented out. helm drops their defaults.

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
KUBERNETES_OWN = {
    *("strategy", "updateStrategy", "resources", "podSecurityContext", "securityContext", "nodeSelector", "dnsConfig"),
}
"""Maps with defaults from which null removes a key, as usual in helm."""


def sections(values: Any, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Returns every value and every map of values, with its default."""
    found = []
    for key, default in values.items():
        found.append(((*above, key), default))
        if isinstance(default, dict) and key not in KUBERNETES_OWN and (above, key) != (("dashboard",), "labels"):
            found += sections(default, (*above, key))
    return found


def says_something(default: Any) -> bool:
    """Returns whether a default is not empty."""
    return any(map(says_something, default.values())) if isinstance(default, dict) else bool(default)


NEEDED = {"queueUrl", "podDisruptionBudget.maxUnavailable"}
"""Values without which the templates ask for them, or for another."""

SHOWN: Object = {
    **yaml.safe_load(QUEUE),
    "settings": {"source": ["queue", "nodes"], "taint": ["a:NoExecute"]},
    "agent": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"egress": True},
}
"""Values with which each default can be seen."""


def is_shown(path: tuple[str, ...]) -> bool:
    """Returns whether SHOWN has a value, or one in this section."""
    values = SHOWN
    for name in path:
        if name not in values:
            return False
        values = values[name]
    return True


def required(path: tuple[str, ...], default: Any) -> bool:
    """Returns whether a value must not be empty: the chart's own sections, switches, addresses and names of keys."""
    section = isinstance(default, dict) and path[-1] not in KUBERNETES_OWN and path != ("dashboard", "labels")
    return section or default is True or path[-1] in ("address", "port", "repository") or "secretKeys" in path


EMPTY = [
    (path, default)
    for path, default in sections(DEFAULTS)
    if ".".join(path) not in NEEDED and (says_something(default) or not is_shown(path))
]


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(("path", "default"), EMPTY, ids=[".".join(path) for path, _ in EMPTY])
def test_null_drops_a_default_or_is_refused(helm: Helm, path: tuple[str, ...], default: Any, schemas: Path) -> None:
    values = copy.deepcopy(SHOWN)
    within = values
    for name in path[:-1]:
        within = within.setdefault(name, {})
    within[path[-1]] = None
    done = helm.try_template(values=yaml.safe_dump(values))
    if required(path, default) and says_something(default):
        assert done.returncode != 0
        (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
        assert f"{'.'.join(path)} is empty: remove the line, or set a value" in reason
        return
    assert done.returncode == 0, done.stderr
    if not says_something(default):
        assert done.stdout == everything_shown(helm)
        return
    assert done.stdout != everything_shown(helm)
    # The dashboard has some.
    assert done.stdout.count("null") == everything_shown(helm).count("null")
    assert "<nil>" not in done.stdout
    refused = conform(done.stdout, KNOWN[-1], schemas)
    assert not refused, refused


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_the_bare_word_on_may_be_empty(helm: Helm) -> None:
    assert helm.template(values=QUEUE + "on:\n") == defaults(helm)


@functools.cache
def defaults(helm: Helm) -> str:
    """Returns the output for values with only the queue."""
    return helm.template(values=QUEUE)


@functools.cache
def everything_shown(helm: Helm) -> str:
    """Returns the output for SHOWN."""
    return helm.template(values=yaml.safe_dump(SHOWN))


# Parts that the schema does not check.

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OPEN = {
    **{"properties." + name.replace(".", ".properties."): "refused by templates/validate.yaml" for name in OTHERS},
    "properties.global": "another chart's",
    "properties.on": "always refused, by templates/validate.yaml",
    "properties.true": "the bare word `on`; likewise",
    "properties.extraObjects.items": "objects of any kind",
    "definitions.ObjectMeta": "metadata of a claim that a volume makes",
}


def test_the_schema_checks_everything_else() -> None:
    assert set(left_open(SCHEMA)) == set(OPEN)


def left_open(schema: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the paths at which a schema accepts any value."""
    if "$ref" in schema:
        assert schema["$ref"].removeprefix("#/definitions/") in SCHEMA["definitions"]
        return
    known = schema.get("type", "enum" if "enum" in schema else "anything")
    narrowed = {"anything": "", "object": "additionalProperties", "array": "items"}
    if any(kind in known and below not in schema for kind, below in narrowed.items()):
        yield ".".join(above)
    for group in ("properties", "patternProperties", "definitions"):
        for key, below in schema.get(group, {}).items():
            yield from left_open(below, (*above, group, key))
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            yield from left_open(schema[below], (*above, below))


def test_the_definitions_match_the_apis_of_kubernetes() -> None:
    assert SCHEMA["definitions"] == {**ALERTS, **definitions()}, "out of date: tests/deploy/run --update"
