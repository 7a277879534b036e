"""The service deletes messages that it can't read, and handles the others."""

from __future__ import annotations

import json

import pytest

from harness import messages
from harness.wait import eventually
from harness.world import World, drained


def unreadable(instance: str) -> list[str]:
    """Returns malformed bodies, each with another defect."""
    event = messages.spot_warning(instance)
    return [
        "hello",
        " ",
        "null",
        "[]",
        "{}",
        "[" * 20_000,
        "\u00e9\u4e2d\U0001f30a" * 1_000,
        json.dumps(event)[:-20],
        json.dumps(event | {"detail": "text"}),
        json.dumps(event | {"detail": {}}),
        json.dumps(event | {"detail": {"instance-id": 7}}),
        json.dumps(event | {"detail": {"instance-id": "../../nodes"}}),
        json.dumps(event | {"time": "yesterday"}),
        json.dumps({key: value for key, value in event.items() if key != "detail"}),
        json.dumps(messages.sns("hello")),
        json.dumps(messages.sns("{}")),
        json.dumps(messages.sns(messages.sns("{}"))),
        json.dumps(event | {"detail": {"padding": "x" * 200_000}}),
    ]


def ignored(instance: str) -> list[str]:
    """Returns well-formed bodies that the service ignores."""
    event = messages.spot_warning(instance)
    return [
        json.dumps(event | {"detail-type": "EC2 Spot Instance Request Fulfillment"}),
        json.dumps(event | {"source": "aws.s3", "detail-type": "Object Created"}),
        json.dumps(messages.set_up_notification("drain", "group")),
        json.dumps(messages.state_change(instance, "running")),
    ]


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object, and fails on duplicate keys, which log collectors drop or refuse."""
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a log line has a duplicate key: {dict(pairs)}"
    return dict(pairs)


@pytest.mark.both_queues
def test_bad_messages_are_deleted_and_others_handled(world: World) -> None:
    first, last, bystander = world.node(), world.node(), world.node()
    for node in (first, last, bystander):
        world.run(f"web-{node.name}", on=node)
    service = world.service("--log-format", "json")

    world.send(messages.spot_warning(first.instance))
    world.send(*unreadable(bystander.instance), *ignored(bystander.instance))
    world.send(messages.spot_warning(last.instance))

    eventually("both valid messages' nodes are drained", lambda: drained(world, first) and drained(world, last))
    eventually("every message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert service.ready()
    assert world.apps(bystander), "bad messages drained a node"
    for line in service.process.log.read_text().splitlines():
        json.loads(line, object_pairs_hook=each_key_once)
