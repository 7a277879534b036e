"""examples/trial runs to its end: on moto, which lacks a half of it, and on stand-ins for all of AWS that it uses."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import aws_cli, messages
from harness.hooks import LAUNCHING, Action, Hook
from harness.kube import NAMESPACES, NODES
from harness.process import Process
from harness.queues import CREDENTIALS, REGION
from harness.trial import TrialAws
from harness.wait import eventually
from harness.world import World

SCRIPT = Path(__file__).parents[2] / "examples" / "trial" / "trial.py"
SOURCE = Path(__file__).parents[2] / "src" / "pipeline"
NAME = "trial"

MAYBE = {"hook: heartbeats", "hook: Events"}
"""Checks that depend on how long the drain takes: a quick one needs no heartbeat, and nothing blocks it for long."""

Rows = dict[str, tuple[str, str]]
"""Result and finding of each check."""


@contextmanager
def cli(world: World, trial: TrialAws) -> Iterator[dict[str, str]]:
    """Yields the variables of a user with the programs aws and kubectl."""
    programs = world.folder / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(world.control_plane.kubectl.program)
    path = world.folder / "aws.socket"
    aws_cli.client(programs / "aws", path)
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(world.folder),
        "KUBECONFIG": str(world.control_plane.kubectl.kubeconfig),
        "AWS_ENDPOINT_URL": trial.url,
        "AWS_DEFAULT_REGION": REGION,
        **CREDENTIALS,
    }
    server = Process("aws", [sys.executable, "-m", "harness.aws_cli", str(path)], world.folder / "aws.log", variables)
    try:
        eventually("the AWS CLI is loaded", path.exists)
        yield variables
    finally:
        server.stop()


@pytest.fixture
def trial(world: World, request: pytest.FixtureRequest) -> Iterator[TrialAws]:
    """AWS for the trial, and the service on the world's queue, which gets all events."""
    world.aws.rule(world.name, {"source": [{"prefix": "aws."}]}, world.queues.queue_arn(world.queue))
    made = TrialAws(world, whole=request.param)
    world.service("--events=all")
    yield made
    made.stop()
    world.aws.remove_rule(world.name)


@pytest.fixture
def user(world: World, trial: TrialAws) -> Iterator[dict[str, str]]:
    """The variables of a user."""
    with cli(world, trial) as variables:
        yield variables


def start(world: World, variables: dict[str, str], *arguments: str) -> Process:
    """Starts the script as a user does."""
    command = [sys.executable, str(SCRIPT), "--name", NAME, *arguments]
    return Process("trial", command, world.folder / "trial.log", variables)


def of(world: World, trial: TrialAws) -> tuple[str, ...]:
    """Returns the arguments of a trial that asks for nothing."""
    (service,) = world.services
    return ("--yes", "--group", trial.source(f"{world.name}-source"), "--metrics", f"http://{service.address}/metrics")


def rows(log: str) -> Rows:
    """Returns the table of the report."""
    cells = [line.strip("| ").split(" | ") for line in log.splitlines() if line.startswith("| ")]
    return {check: (result, found) for check, result, _, found in cells[2:]}


def as_on_aws(found: Rows) -> None:
    """Checks what the stand-ins for AWS let the trial see."""
    for step in ("spot", "rebalance"):
        assert found[f"{step}: drained within the two minutes"][0] == "passed"
        assert found[f"{step}: EC2 confirms the warning as Ebbtide expects"][0] == "passed"
    recommended = found["rebalance: the node is cordoned, or the notice ended as your settings ask"]
    assert "cordoned: yes; no pod was moved" in recommended[1]
    assert found["refresh: all instances are replaced"] == ("passed", "Successful; 2 nodes before")
    assert "AROA…:AutoScaling" in found["SenderId of messages by a hook itself"][1]
    assert found["CompleteLifecycleAction with the token alone"] == ("measured", "accepted")
    assert "ARN of an instance" in found["health: how AWS Health names instances"][1]
    assert "names the instance: no" in found["CloudTrail: completions of the token alone"][1]
    assert "names the instance: yes" in found["CloudTrail: completions of Ebbtide"][1]


def left(world: World, trial: TrialAws) -> list[str]:
    """Returns what the trial has not removed."""
    spaces = [f"{NAMESPACES}/{NAME}"] if world.kube.find(f"{NAMESPACES}/{NAME}") else []
    made = [*world.aws.queues(), *world.aws.rules(), *trial.instances()]
    return spaces + [each for each in made if each == NAME or each.startswith((f"{NAME}-", "i-"))]


@pytest.mark.slow
@pytest.mark.parametrize("trial", [False], indirect=True)
def test_the_trial_on_moto(world: World, trial: TrialAws, user: dict[str, str]) -> None:
    bystander = world.node()
    script = start(world, user, *of(world, trial))
    assert script.wait(1200) == 0, script.log.read_text()
    found = rows(script.log.read_text())
    assert {check for check, (result, _) in found.items() if result == "passed"} - MAYBE == {
        "set-up: stack, instances, nodes",
        "hook: cordon",
        "hook: drain",
        "hook: budget",
        "hook: completed once the node is drained",
        "SenderId of messages by EventBridge",
        "clean-up",
    }
    # What moto lacks.
    assert {check for check, (result, _) in found.items() if result == "not run"} - MAYBE == {
        "spot",
        "rebalance",
        "refresh",
        "health",
        "SenderId of messages by a hook itself",
        "SenderId of messages by SNS",
        "CompleteLifecycleAction with the token alone",
        "CompleteLifecycleAction with the token of one instance and the ID of another",
        "cloudtrail",
    }
    assert world.audit.evicted(NAME).total() == 3, "not each pod of a node was evicted once"
    assert not left(world, trial)
    assert "ebbtide-trial" not in world.see(bystander)["metadata"]["labels"]
    assert not world.see(bystander)["spec"].get("taints")


@pytest.mark.slow
@pytest.mark.parametrize("trial", [True], indirect=True)
def test_the_trial_with_stand_ins_for_all_of_aws(world: World, trial: TrialAws, user: dict[str, str]) -> None:
    script = start(world, user, *of(world, trial))
    assert script.wait(2000) == 0, script.log.read_text()
    found = rows(script.log.read_text())
    assert not {check for check, (result, _) in found.items() if result == "not run"} - MAYBE
    as_on_aws(found)
    assert not re.search(r"\d{12}", script.log.read_text().partition("###")[2]), "an account ID"
    assert not left(world, trial)


@pytest.mark.slow
@pytest.mark.parametrize("trial", [False], indirect=True)
def test_ctrl_c_leaves_nothing_and_a_yes_is_needed(world: World, trial: TrialAws, user: dict[str, str]) -> None:
    (_, *arguments) = of(world, trial)
    refused = start(world, user, *arguments)
    assert refused.wait(600) == 2
    assert "nothing was changed" in refused.log.read_text()
    assert not trial.group

    script = start(world, user, "--yes", *arguments)
    label = f"ebbtide-trial={NAME}"
    eventually("the nodes have the trial's label", lambda: len(world.kube.items(NODES, labels=label)) == 2)
    script.signal(signal.SIGINT)
    assert script.wait(900) == 130, script.log.read_text()
    assert rows(script.log.read_text())["the trial"] == ("not run", "interrupted by the user")
    assert not left(world, trial)


@pytest.mark.slow
@pytest.mark.parametrize("trial", [False], indirect=True)
def test_a_stack_and_a_namespace_of_others_are_left_alone(world: World, trial: TrialAws, user: dict[str, str]) -> None:
    queue = world.aws.apply(NAME, {})["QueueUrl"]
    world.kube.create(NAMESPACES, {"metadata": {"name": NAME}})
    refused = start(world, user, *of(world, trial))
    assert refused.wait(600) == 2
    assert f"the stack {NAME} exists" in refused.log.read_text()
    deleted = start(world, user, "--delete")
    assert deleted.wait(600) == 1
    assert f"the stack {NAME}, which does not have the tag ebbtide-trial" in deleted.log.read_text()
    assert world.aws.attributes(queue)
    assert world.kube.find(f"{NAMESPACES}/{NAME}")["metadata"].get("deletionTimestamp") is None
    world.aws.remove(NAME)
    world.kube.delete(f"{NAMESPACES}/{NAME}")
    eventually("the next test finds none", lambda: world.kube.find(f"{NAMESPACES}/{NAME}") is None, within=120)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trial that has not begun."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    trial = import_module("trial")
    return trial.Trial(SimpleNamespace(name=NAME), trial.Cluster("none"))


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("marked-for-termination", "passed"),
        # Of an interruption for lack of capacity, by AWS's documentation.
        ("instance-terminated-no-capacity", "passed"),
        ("instance-terminated-by-user", "**FAILED**"),
        ("fulfilled", "**FAILED**"),
    ],
)
def test_a_status_that_ebbtide_does_not_read_fails(report: Any, code: str, result: str) -> None:
    states = SimpleNamespace(changes=[(99.0, "fulfilled", "running", None), (102.5, code, "running", 101.0)])
    report.state_rows("spot", SimpleNamespace(at=100.0), states)
    measured, judged = report.rows
    assert (measured.result, measured.seconds) == ("measured", None if code == "fulfilled" else 2.5)
    assert f"+2.5 s `{code}`, running (EC2's time: +1 s)" in measured.found
    assert judged.result == result


@pytest.mark.parametrize(
    ("way", "sender", "result"),
    [
        ("hook", "AROAEXAMPLEEXAMPLE123:AutoScaling", "passed"),
        ("hook", "AIDAEXAMPLEEXAMPLE123", "**FAILED**"),
        ("SNS", "AROAEXAMPLEEXAMPLE123:AutoScaling", "**FAILED**"),
    ],
)
def test_a_sender_that_ebbtide_does_not_expect_fails(report: Any, way: str, sender: str, result: str) -> None:
    report.copies = [SimpleNamespace(way=way, sender=sender)]
    report.sender_rows()
    (row,) = (each for each in report.rows if each.result != "not run")
    assert row.result == result
    assert "EXAMPLE" not in str(row), "a unique ID"


def test_a_dry_run_is_refused(report: Any) -> None:
    report.options.namespace = "ebbtide"
    pod = {"spec": {"containers": [{"env": [{"name": "EBBTIDE_DRY_RUN", "value": "true"}]}]}}
    report.cluster = SimpleNamespace(run=lambda *_: "", items=lambda *_: [pod])
    with pytest.raises(import_module("calls").Stop, match="ebbtide is a dry run, which drains nothing"):
        report.check()


def replica(*words: str, **variables: str) -> Any:
    """Returns a pod of Ebbtide with these arguments and variables."""
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {"spec": {"containers": [{"args": list(words), "env": env}]}}


MANAGED = {"aws-node-termination-handler/managed": ""}


@pytest.mark.parametrize(
    ("pod", "tags", "refusal"),
    [
        (replica("run"), {}, None),
        (replica(EBBTIDE_NODE_SELECTOR="pool=a"), {}, None),
        (replica(EBBTIDE_NODE_SELECTOR="!pool"), {}, "settings.nodeSelector, !pool, excludes the nodes of mine"),
        (replica("--node-selector", "!pool"), {}, "settings.nodeSelector, !pool, excludes"),
        (replica(EBBTIDE_REQUIRE_TAG="true"), MANAGED, None),
        (replica(EBBTIDE_REQUIRE_TAG="true"), {"team": "sea"}, f"the tag {next(iter(MANAGED))}, which"),
        (replica("--require-tag", EBBTIDE_MANAGED_TAG="team=sea"), {"team": "sea"}, None),
        (replica("--require-tag", EBBTIDE_MANAGED_TAG="team=sea"), {"team": "air"}, "the tag team, which"),
    ],
)
def test_settings_that_leave_the_trials_nodes_alone_are_refused(
    report: Any, pod: Any, tags: dict[str, str], refusal: str | None
) -> None:
    node = {"metadata": {"labels": {"pool": "a"}}, "spec": {"providerID": "aws:///eu-west-1a/i-1"}}

    def items(kind: str, *which: str) -> list[Any]:
        return [pod] if kind == "pods" else [] if which == ("--selector", "!pool") else [node]

    report.options.namespace, report.options.group = "ebbtide", "mine"
    report.cluster = SimpleNamespace(items=items)
    group = {"Instances": [{"InstanceId": "i-1"}]}
    if not refusal:
        report.refuse_settings(group, tags)
        return
    with pytest.raises(import_module("calls").Stop, match=refusal):
        report.refuse_settings(group, tags)


def test_a_selector_that_no_node_can_be_compared_with_is_refused(report: Any) -> None:
    selector = [replica("run", EBBTIDE_NODE_SELECTOR="pool=a")]
    report.options.namespace, report.options.group = "ebbtide", "mine"
    report.cluster = SimpleNamespace(items=lambda kind, *_: selector if kind == "pods" else [])
    for instances in ([], [{"InstanceId": "i-1"}]):
        with pytest.raises(import_module("calls").Stop, match="mine has no nodes in this cluster to compare with"):
            report.refuse_settings({"Instances": instances}, {})
    selector[:] = [replica("run")]
    report.refuse_settings({"Instances": []}, {})


@pytest.mark.parametrize(
    ("region", "home"), [("eu-west-1", "us-east-1"), ("us-gov-east-1", "us-gov-west-1"), ("cn-north-1", "cn-northwest-1")]
)
def test_aws_health_is_asked_where_the_partition_has_it(
    report: Any, monkeypatch: pytest.MonkeyPatch, region: str, home: str
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(import_module("trial"), "aws", lambda *words: asked.append(words) or {})
    report.region = region
    with pytest.raises(import_module("calls").NotRun, match="no recent event"):
        report.health()
    (words,) = asked
    assert words[words.index("--region") + 1] == home


def test_the_trial_has_both_tags_of_the_group(report: Any) -> None:
    both = MANAGED | {"kubernetes.io/cluster/blue": "owned"}
    group = {"Tags": [{"Key": key, "Value": value} for key, value in (both | {"Name": "mine"}).items()]}
    report.options.group, report.options.tag = "mine", []
    assert report.tags(group) == both
    report.options.tag = ["team=sea=side"]
    assert report.tags(group) == {"team": "sea=side"}
    report.options.tag = []
    for wrong in ({}, both | {"kubernetes.io/cluster/green": "owned"}):
        with pytest.raises(import_module("calls").Stop, match=f"mine has {len(wrong)} tags of a cluster"):
            report.tags({"Tags": [{"Key": key, "Value": value} for key, value in wrong.items()]})


def test_a_clean_up_that_finds_nothing_says_where_it_looked(
    report: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-south-1")
    report.cluster = SimpleNamespace(context="blue", items=lambda *_: [])
    monkeypatch.setattr(report, "stacks", list)
    assert import_module("trial").delete(report) == 0
    assert capsys.readouterr().out == f"nothing of {NAME} in eu-south-1 and blue\n"


def test_messages_are_read_whichever_way_they_come(report: Any) -> None:
    read = import_module("observed").read
    action = Action(Hook("group", "hook", 60, LAUNCHING), "i-1")
    for body, way, kind, instance in (
        (messages.spot_warning("i-1"), "EventBridge", "spot", "i-1"),
        (messages.bare(action), "hook", LAUNCHING, "i-1"),
        (messages.sns(messages.bare(action)), "SNS", LAUNCHING, "i-1"),
        (messages.set_up_notification("hook", "group"), "hook", "autoscaling:TEST_NOTIFICATION", ""),
        (messages.scheduled_change(["i-1"], timedelta(hours=1)), "EventBridge", "health", ""),
        ({"Event": "clock"}, "trial", "clock", ""),
    ):
        copy = read({"Body": json.dumps(body), "Attributes": {"SentTimestamp": "1000", "SenderId": "AIDA"}})
        assert (copy.way, copy.kind, copy.instance, copy.sent) == (way, kind, instance, 1.0)


def test_the_trial_expects_what_the_service_reads() -> None:
    script = SCRIPT.read_text()
    (prefixes,) = re.findall(r"^CONFIRMING = \((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    source = (SOURCE / "interruption" / "confirmation.rs").read_text()
    (statuses,) = re.findall(r"^const INTERRUPTED: .*?= \[(.*?)\];$", source, re.MULTILINE | re.DOTALL)
    assert re.findall(r'"([^"]+)"', prefixes) == [each.rstrip("*") for each in re.findall(r'"([^"]+)"', statuses)]
    (role,) = re.findall(r'^ROLE_SESSION = re.compile\(r"([A-Z]+)', script, re.MULTILINE)
    assert f'"{role}"' in (SOURCE / "queue.rs").read_text()
