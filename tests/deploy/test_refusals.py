"""What is wrong is told in one sentence, by both versions of helm, before anything is installed."""

from __future__ import annotations

import pytest

from chart import HELM3, HELM4, OLDEST, VALUES, Helm

QUEUE = "queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n"

TYPOS = [
    ("queueURL: x", "at '': additional properties 'queueURL' not allowed"),
    ("settings: {registrationGrac: 5s}", "at '/settings': additional properties 'registrationGrac' not allowed"),
    ("settings: {registrationGrace: 5 sec}", "at '/settings/registrationGrace': '5 sec' does not match pattern"),
    ("settings: {registrationGrace: 30}", "at '/settings/registrationGrace': got number, want null or string"),
    ("settings: {drainTimeout: 10m}", "at '/settings/drainTimeout': got string, want null or object"),
    ("settings: {drainTimeout: {sopt: 1m}}", "at '/settings/drainTimeout': additional properties 'sopt' not allowed"),
    ("settings: {atDeadline: keep}", "at '/settings/atDeadline': value must be one of 'delete', 'leave'"),
    ("settings: {dryRun: 'yes'}", "at '/settings/dryRun': got string, want null or boolean"),
    ("settings: {taint: ['going:NoShedule']}", "at '/settings/taint/0': 'going:NoShedule' does not match pattern"),
    ("settings: {heartbeat: sometimes}", "at '/settings/heartbeat': 'sometimes' does not match pattern"),
    ("'on': {sopt: drain}", "at '/on': additional properties 'sopt' not allowed"),
    ("'on': {spot: ready}", "at '/on/spot': value must be one of 'drain', 'cordon', 'report', 'ignore'"),
    ("aws: {regoin: eu-west-1}", "at '/aws': additional properties 'regoin' not allowed"),
    ("aws: {region: Ireland}", "at '/aws/region': 'Ireland' does not match pattern"),
    ("image: {digest: abc}", "at '/image/digest': 'abc' does not match pattern"),
    ("terminationGracePeriodSeconds: 5", "at '/terminationGracePeriodSeconds': minimum: got 5, want 15"),
    ("serviceAccount: {annotations: {eks.amazonaws.com/role-arn: ebb}}", "role-arn': 'ebb' does not match pattern"),
    ("podMonitor: {enable: true}", "at '/podMonitor': additional properties 'enable' not allowed"),
    ("networkPolicy: {egressPorts: ['443']}", "at '/networkPolicy/egressPorts/0': got string, want integer"),
]
"""What the schema finds; helm puts a line around it."""

BLANKET = "tolerations must not tolerate node.kubernetes.io/unschedulable, as "
SENTENCES = [
    ("queueUrl: ''", "queueUrl must be set: give the URL of the SQS queue that EventBridge sends to, as in --set"),
    (
        "queueUrl: arn:aws:sqs:eu-west-1:123456789012:ebbtide",
        "queueUrl is an ARN, arn:aws:sqs:eu-west-1:123456789012:ebbtide: give the queue's URL; "
        "this queue's is https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide",
    ),
    ("queueUrl: ebbtide", 'queueUrl is no queue\'s URL, "ebbtide": the SQS console shows it, as https://sqs.REGION.'),
    ("queueUrl: https://sqs.eu-west-1.amazonaws.com", "queueUrl is no queue's URL"),
    ("aws: {region: us-east-1}", "aws.region is us-east-1, but queueUrl names a queue in eu-west-1: make them one"),
    ("on: {sopt: drain}", "on.sopt: there is no such kind; the kinds are asg-terminate, asg-launch, spot, rebalance,"),
    ("on: {spot: drian}", 'on.spot can\'t be "drian"; choose one of drain, cordon, report, ignore'),
    ("on: {asg-launch: drain}", 'on.asg-launch can\'t be "drain"; choose one of ready, report, ignore'),
    ("settings: {heartbeat: on}", "settings.heartbeat can't be true; choose auto, off, or a duration such as 30s"),
    ("settings: {startupTaint: [a]}", "settings.startupTaint does nothing without on.asg-launch: ready; set that,"),
    ("settings: {onFailedLaunch: abandon}", "settings.onFailedLaunch does nothing without on.asg-launch: ready"),
    ("tolerations: [{operator: Exists}]", BLANKET),
    ("tolerations: [{operator: Exists, effect: NoSchedule}]", BLANKET),
    ("tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]", BLANKET),
    ("extraEnv: [{name: EBBTIDE_DRY_RUN, value: 'true'}]", "must not set EBBTIDE_DRY_RUN: set settings.dryRun instead"),
    ("extraEnv: [{name: AWS_REGION, value: eu-west-1}]", "extraEnv must not set AWS_REGION: set aws.region instead"),
    ("podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}", "would count everything twice: choose one"),
    ("serviceMonitor: {enabled: true}\nservice: {enabled: false}", "serviceMonitor.enabled needs the Service: set"),
]
"""What the templates find."""

HELMS = [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)]


def given(values: str) -> str:
    """The values, with a queue if they name none."""
    return values if values.startswith("queueUrl:") else QUEUE + values


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(("values", "sentence"), TYPOS)
def test_typo(helm: Helm, values: str, sentence: str) -> None:
    done = helm.try_template(values=given(values))
    assert done.returncode != 0
    reasons = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert len(reasons) == 1, f"one sentence, not these: {done.stderr}"
    assert sentence in reasons[0]


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_sentence(helm: Helm, values: str, sentence: str) -> None:
    done = helm.try_template(values=given(values))
    assert done.returncode != 0
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert sentence in reason


@pytest.mark.parametrize("helm", HELMS, ids=lambda helm: helm.name)
def test_an_old_cluster(helm: Helm) -> None:
    done = helm.try_template(values=QUEUE, kubernetes="1.26.15")
    (reason,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "Kubernetes v1.26.15 is too old: this chart needs 1.27 or newer; upgrade the cluster, or" in reason
    # EKS names its versions so.
    for fine in (OLDEST, "1.27.16-eks-1552ad0", "1.34.1"):
        helm.template(values=QUEUE, kubernetes=fine)


@pytest.mark.parametrize("values", ["global: {shared: true}", "enabled: true"])
def test_as_a_part_of_another_chart(values: str) -> None:
    assert HELM4.template(values=QUEUE + values) == HELM4.template(values=(VALUES / "defaults.yaml").read_text())


@pytest.mark.parametrize(
    "values",
    [
        "tolerations: [{key: dedicated, operator: Exists}]",
        "tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 60}]",
        "settings: {heartbeat: off}",
        "settings: {drainTimeout: {all: 1h30m}}",
        "on: {spot: null}",
    ],
)
def test_what_is_right_is_taken(values: str) -> None:
    HELM4.template(values=QUEUE + values)
