"""ebbtide doctor on real parts: a good set-up is ok; each fault has its own sentence and exit code 1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import cfn_template
import pytest

from harness import admission, chart, roles
from harness.control_plane import SERVICE
from harness.doctor import ALWAYS_SKIPPED, REVIEWS, Report, SetUp, examine, run
from harness.kube import Object
from harness.recorder import COMPLETE, RECEIVE
from harness.wait import eventually
from harness.world import World

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"

ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{SERVICE}"

CHANGING = {"create", "update", "patch", "delete", "deletecollection"}
"""Verbs that change objects."""


@pytest.fixture(autouse=True)
def policies(world: World) -> Iterator[list[Object]]:
    """The chart's admission policies, as they are by default."""
    values = world.folder / "policies.yaml"
    values.write_text("queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n")
    with admission.policies(world.kube, chart.rendered(values, world.name, world.name)) as made:
        yield made


@pytest.fixture
def good(world: World) -> SetUp:
    """Sets up a node, two pods, and everything that the service needs."""
    node = world.node()
    world.run("web", replicas=2)
    return SetUp(world, node)


def faults(world: World, *expected: str, flags: Sequence[str] = (), queue_url: str | None = None) -> Report:
    """Waits until the report has only these faults, because objects of earlier tests may still exist; returns it."""

    def as_expected() -> Report:
        report = examine(world, *flags, queue_url=queue_url)
        assert report.faults == list(expected), [check for check in report.checks if check["status"] != "ok"]
        return report

    return eventually(f"the doctor finds {expected or 'nothing'}", as_expected)


def text_of(world: World) -> list[str]:
    """Waits until the text report has no fault, because calls may time out on a busy machine; returns its lines."""

    def well() -> list[str]:
        done = run(world)
        assert done.returncode == 0, done.stdout
        assert done.stdout.endswith("0 warning, 0 failure, 2 skipped\n"), done.stdout
        return done.stdout.splitlines()

    return eventually("the doctor reports no fault", well)


def test_receives_are_checked_if_the_service_runs_here(world: World, good: SetUp) -> None:
    service = world.service()
    report = faults(world, flags=("--admin-address", service.address))
    assert report.skipped == ["queue region"], "receives are no longer skipped"
    assert "the service on this machine is ready" in report.found("calls", "receive")
    eventually("the service is at rest", service.at_rest)


def test_a_good_set_up_is_ok(world: World, good: SetUp) -> None:
    world.send("left alone")

    report = faults(world)

    assert report.code == 0
    assert {check["area"] for check in report.checks} == {
        *("credentials", "queue", "rules", "groups", "calls", "permissions", "cluster", "clock")
    }
    asked = world.audit.requests()
    changes = [one for one in asked if one.verb in CHANGING and one.resource not in REVIEWS and not one.dry_run]
    assert not changes, changes
    assert [one for one in asked if one.dry_run and one.resource == "nodes"], "what marks write was not tried"
    assert world.recorder.calls(COMPLETE), "the doctor did not try a completion"
    assert not world.recorder.calls(RECEIVE)
    assert world.backlog().visible == 1
    text = text_of(world)
    assert all(len(line) <= 100 for line in text), [line for line in text if len(line) > 100]


def test_a_missing_cluster_permission_is_reported(world: World, good: SetUp) -> None:
    rules = [rule for rule in roles.default_rules() if rule["resources"] != ["pods/eviction"]]
    world.kube.patch(ROLE, {"rules": rules})
    try:
        report = faults(world, "permissions pods/eviction failure")
    finally:
        world.kube.patch(ROLE, {"rules": roles.default_rules()})
    assert report.code == 1
    said = report.said("permissions", "pods/eviction")
    assert "Not allowed to create pods/eviction: no pod is evicted." in said
    assert 'resources: ["pods/eviction"]\n    verbs: ["create"]' in said
    faults(world)


def test_policies_that_are_not_the_charts_are_reported(
    world: World, good: SetUp, policies: list[Object]
) -> None:
    """Each is put back as it was."""
    api = "/apis/admissionregistration.k8s.io/v1"
    by = {(each["kind"], each["metadata"]["labels"]["ebbtide/policy"]): each for each in policies}
    policy, binding = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
    paths = {policy: f"{api}/validatingadmissionpolicies", binding: f"{api}/validatingadmissionpolicybindings"}

    marks = by[policy, "marks"]
    path, validations = f"{paths[policy]}/{marks['metadata']['name']}", marks["spec"]["validations"]
    world.kube.patch(path, {"spec": {"validations": [validations[0] | {"expression": "true"}]}})
    said = faults(world, "cluster policies warning").said("cluster", "policies")
    assert f"{marks['metadata']['name']} is not the policy of this version's chart" in said
    world.kube.patch(path, {"spec": {"validations": validations}})
    faults(world)

    for kind, what, expected in (
        (binding, "marks", "no binding with the action Deny enforces"),
        (policy, "kubelets", "NAME-kubelets does not exist"),
    ):
        each = by[kind, what]
        world.kube.delete(f"{paths[kind]}/{each['metadata']['name']}")
        assert expected in faults(world, "cluster policies warning").said("cluster", "policies")
        meta = {key: each["metadata"][key] for key in ("name", "labels")}
        world.kube.create(paths[kind], {"metadata": meta, "spec": each["spec"]})
        faults(world)


def test_a_missing_aws_permission_is_reported(world: World, good: SetUp) -> None:
    denied = "User: testing is not authorized to perform: autoscaling:CompleteLifecycleAction"
    world.recorder.refuse(COMPLETE, 100, "AccessDenied", denied)

    report = faults(world, "calls complete failure")

    assert report.code == 1
    assert f"autoscaling:CompleteLifecycleAction is not allowed on {good.group}" in report.said("calls", "complete")


def test_without_its_permissions_the_doctor_skips_what_it_cannot_read(world: World, good: SetUp) -> None:
    for action in cfn_template.granted({"DoctorPermissions": "true"}) - cfn_template.granted({}):
        name, denied = action.partition(":")[2], f"User: testing is not authorized to perform: {action}"
        world.recorder.refuse(name, 100, "AccessDeniedException", denied)

    def without_faults() -> Report:
        report = examine(world)
        assert {check["status"] for check in report.checks} == {"ok", "skipped"}, report.checks
        return report

    report = eventually("the doctor finds nothing", without_faults)
    assert report.code == 0
    skipped = {"queue exists", "rules rules", "groups groups", "calls complete"}
    assert set(report.skipped) == skipped | {" ".join(each) for each in ALWAYS_SKIPPED}
    section = PAGE.read_text().split("\n## AWS permissions\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+ \w+)`", section, re.MULTILINE)) == skipped, "docs/doctor.md names other checks"


def test_a_missing_queue_is_reported(world: World, good: SetUp) -> None:
    def missing() -> Report:
        report = examine(world, queue_url=f"{world.queue_url}-of-another")
        assert "queue exists failure" in report.faults, report.faults
        return report

    report = eventually("the doctor finds no queue", missing)

    assert report.code == 1
    said = report.said("queue", "exists")
    assert "There is no such queue in eu-west-1" in said
    assert "aws sqs list-queues" in said


def test_a_queue_in_another_region_is_reported(world: World, good: SetUp) -> None:
    name = world.queue.rpartition("/")[2]

    report = faults(world, "queue region failure", queue_url=f"https://sqs.us-east-1.amazonaws.com/123456789012/{name}")

    assert report.code == 1
    said = report.said("queue", "region")
    assert "The queue is in us-east-1, and calls to AWS go to eu-west-1" in said
    assert "Set AWS_REGION=us-east-1" in said


def test_a_missing_rule_is_reported(world: World, good: SetUp) -> None:
    world.aws.remove_rule(good.rule("spot"))

    report = faults(world, "rules spot failure")

    assert report.code == 1
    said = report.said("rules", "spot")
    assert "No rule sends these events to the queue." in said
    assert "aws events put-rule --name ebbtide-spot" in said
    assert good.arn in said


def test_a_short_hook_timeout_is_reported(world: World) -> None:
    set_up = SetUp(world, world.node(), heartbeat_timeout=30)

    report = faults(world, "groups hook failure", flags=("--heartbeat", "off"))

    assert report.code == 1
    said = report.said("groups", "hook")
    assert f"Hook drain of group {set_up.group} leaves a drain 27s" in said
    assert f"put-lifecycle-hook --auto-scaling-group-name {set_up.group}" in said


def test_an_unreachable_api_server_is_reported(world: World, good: SetUp) -> None:
    kubeconfig = world.control_plane.kubeconfig.read_text()
    nowhere = world.folder / "nowhere.kubeconfig"
    nowhere.write_text(kubeconfig.replace("https://127.0.0.1:", "https://127.0.0.2:"))

    def reported() -> bool:
        done = run(world, kubeconfig=nowhere)
        assert done.returncode == 1, done.stdout
        assert "failure   permissions api-server" in done.stdout, done.stdout
        assert "ok        queue policy" in done.stdout, done.stdout
        return True

    eventually("the doctor reports the missing API server, and checks AWS", reported)


def test_an_invalid_flag_is_refused(world: World) -> None:
    done = run(world, "--on", "spot=explode")

    assert done.returncode == 2
    assert "--on" in done.stderr


def test_the_service_checks_the_set_up_at_start(world: World, good: SetUp) -> None:
    world.aws.remove_rule(good.rule("spot"))

    service = world.checked_service(
        lambda: world.service("--check-at-start"), lambda counts: counts["failure"] == 1
    )
    eventually("the service is at rest", service.at_rest)
    warnings = [line for line in service.process.log.read_text().splitlines() if "the set-up has a fault" in line]
    assert any("WARN" in line and 'check="spot"' in line and "put-rule" in line for line in warnings), warnings
