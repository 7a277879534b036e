"""deploy/aws on moto: events on the bus reach the stack's queue, and the service drains with the stack's resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import messages
from harness.aws import Aws
from harness.hooks import LAUNCHING, TERMINATING
from harness.wait import eventually
from harness.world import World, drained

EVENTS = Path(__file__).parents[1] / "fixtures" / "events"

EVERY_KIND = {
    kind: "true"
    for kind in (
        "AsgTerminate",
        "AsgLaunch",
        "Spot",
        "Rebalance",
        "StateChange",
        "ScheduledChange",
        "CapacityReservation",
    )
}

FORWARDED = {
    "asg-terminate.json": "AsgTerminate",
    "asg-terminate-to-warm-pool.json": "AsgTerminate",
    "asg-launch.json": "AsgLaunch",
    "spot.json": "Spot",
    "rebalance.json": "Rebalance",
    "state-stopping.json": "StateChange",
    "health-maintenance-three.json": "ScheduledChange",
    "health-retirement.json": "ScheduledChange",
    "capacity-reservation.json": "CapacityReservation",
}
"""Events that a rule sends to the queue, and the parameter that disables the rule."""

NOT_FORWARDED = ["health-issue.json", "health-other-service.json", "state-running.json", "unknown-type.json"]
"""Events that no rule sends to the queue, because the service ignores them."""


def fixture(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / name).read_text())
    return event


@pytest.fixture
def stack(request: pytest.FixtureRequest, aws: Aws) -> Iterator[str]:
    """Yields a stack's name, and deletes the stack at the end."""
    name = "stack-" + request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-[]")
    yield name
    if name in aws.queues():
        aws.remove(name)


def test_only_supported_events_reach_the_queue(aws: Aws, stack: str) -> None:
    queue = aws.apply(stack, EVERY_KIND)["QueueUrl"]
    for name in [*FORWARDED, *NOT_FORWARDED]:
        aws.put(fixture(name))
    arrived = [(event["detail-type"], event["detail"]) for event in aws.receive(queue)]
    assert arrived == [(fixture(name)["detail-type"], fixture(name)["detail"]) for name in FORWARDED]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_disabled_kind_does_not_reach_the_queue(aws: Aws, stack: str, kind: str) -> None:
    queue = aws.apply(f"{stack}-{kind}", EVERY_KIND | {kind: "false"})["QueueUrl"]
    for name in FORWARDED:
        aws.put(fixture(name))
    expected = [fixture(name)["detail-type"] for name, switch in FORWARDED.items() if switch != kind]
    assert [event["detail-type"] for event in aws.receive(queue)] == expected
    aws.remove(f"{stack}-{kind}")


def test_the_queue_is_configured_and_deleted_with_the_stack(aws: Aws, stack: str) -> None:
    outputs = aws.apply(stack, {})
    queue, dead = aws.attributes(outputs["QueueUrl"]), aws.attributes(outputs["DeadLetterQueueUrl"])
    assert outputs["QueueArn"] == queue["QueueArn"]
    assert yaml.safe_load(outputs["HelmValues"]) == {
        "queueUrl": "https://sqs.eu-west-1.amazonaws.com/" + outputs["QueueUrl"].split("/", 3)[3],
        "aws": {"region": "eu-west-1"},
        "serviceAccount": {"name": "ebbtide"},
    }
    assert json.loads(queue["RedrivePolicy"]) == {"deadLetterTargetArn": dead["QueueArn"], "maxReceiveCount": 10}
    assert int(queue["MessageRetentionPeriod"]) > 48 * 3600, "a hook can wait 48 hours"
    assert int(dead["MessageRetentionPeriod"]) > int(queue["MessageRetentionPeriod"])
    assert queue["VisibilityTimeout"] == "30"
    assert queue["SqsManagedSseEnabled"] == dead["SqsManagedSseEnabled"] == "true"

    aws.remove(stack)
    assert not [name for name in [*aws.queues(), *aws.rules()] if name.startswith(stack)]


def test_a_spot_warning_on_the_bus_drains_the_node(world: World) -> None:
    outputs = world.aws.apply(world.name + "-stack", {})
    world.queue = outputs["QueueUrl"]
    node = world.node()
    world.run("web", 2, on=node)
    service = world.service()

    world.aws.put(messages.spot_warning(node.instance))

    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    world.aws.remove(world.name + "-stack")


def test_a_hook_of_hooks_yaml_is_completed(world: World) -> None:
    group = f"{world.name}-group"
    outputs = world.aws.apply(world.name + "-stack", {"AsgLaunch": "true"})
    world.queue = outputs["QueueUrl"]
    world.aws.hooks({"Groups": f"{group},{group}-other", "LaunchHooks": "true", "HeartbeatTimeoutSeconds": "60"})
    hook = world.aws.hook_of(group, TERMINATING)
    assert hook.heartbeat_timeout == 60
    assert world.aws.hook_of(f"{group}-other", TERMINATING).name == "ebbtide"
    assert world.aws.hook_of(group, LAUNCHING).name == "ebbtide-launch"
    node = world.node()
    world.run("web", on=node)
    world.service()

    action = world.recorder.actions.begin(hook, node.instance)
    world.aws.put(messages.terminate_action(action))

    eventually("the node is drained", lambda: drained(world, node))
    eventually("the hook is completed", lambda: world.completions(action) == ["CONTINUE"])
    eventually("the message is deleted", world.acknowledged)
    may = {action.partition(":")[2] for action in world.aws.may(outputs["RoleArn"])}
    asked = {call.action.removesuffix("Batch") for call in world.recorder.calls()}
    assert {"ReceiveMessage", "DeleteMessage", "CompleteLifecycleAction", "DescribeLifecycleHooks"} <= asked <= may
    world.aws.remove(world.name + "-stack")
