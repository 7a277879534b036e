"""What the service expects of SQS, on two implementations that share no code."""

from __future__ import annotations

import json
import signal

import pytest

from harness import messages
from harness.elasticmq import ElasticMq
from harness.recorder import HEARTBEAT, RECEIVE, Call
from harness.service import Service
from harness.wait import always, eventually
from harness.world import Node, World, drained

CHANGE = "ChangeMessageVisibilityBatch"
DELETE = "DeleteMessageBatch"

BATCH = 10
"""Maximum number of messages in a call."""

LONG_POLL = 20
"""Wait time in seconds of a long poll."""

PAST_VISIBILITY = 45
"""Seconds until a pod stops: longer than the visibility timeout of 30 s."""

LEAVE = ("--at-deadline", "leave")


def stuck(world: World) -> Node:
    """Adds a node with a pod that a budget holds."""
    node = world.node()
    world.run("db", on=node)
    world.close_budget("db")
    return node


def finished(world: World, node: Node, *services: Service) -> None:
    """Waits until the node is drained, no message is left, and these services are at rest."""
    eventually("the node is drained", lambda: drained(world, node))
    eventually("no message is left", world.acknowledged)
    for service in services:
        eventually(f"{service.name} is at rest", service.at_rest)


def entries(calls: list[Call]) -> list[int]:
    """Returns the number of entries of each accepted batch."""
    return [len(call.asked["Entries"]) for call in calls if call.status == 200]


@pytest.mark.both_queues(quick=True)
def test_batches_and_a_long_poll(world: World) -> None:
    node = world.node()
    world.run("web", on=node)
    service = world.service()
    eventually("a first receive is answered", lambda: world.recorder.calls(RECEIVE))

    world.send(messages.spot_warning(node.instance))
    finished(world, node, service)
    # Two full batches and a rest, of messages that need no drain.
    for _ in range(2):
        world.queues.send_together(world.queue, ["unreadable"] * BATCH)
    world.queues.send_together(world.queue, [messages.state_change(node.instance, "running")] * (BATCH // 2))
    sent = 1 + 2 * BATCH + BATCH // 2

    eventually("every message is received", lambda: world.deliveries() == sent)
    eventually("every message is deleted", lambda: world.acknowledged())
    eventually("the service is at rest", service.at_rest)
    first = next(call for call in world.recorder.calls(RECEIVE) if call.messages)
    assert first.asked["WaitTimeSeconds"] == LONG_POLL, "the first message did not end a long poll"
    deleted = entries(world.recorder.calls(DELETE))
    assert sum(deleted) == sent, f"a message was deleted twice, or not: {deleted}"
    assert 1 < max(deleted) <= BATCH, f"deletions are not in batches: {deleted}"


@pytest.mark.slow
@pytest.mark.both_queues
def test_a_message_stays_invisible_until_its_drain_ends(world: World) -> None:
    node = world.node()
    world.run("web", stops_after=PAST_VISIBILITY, on=node)
    service = world.service()
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(messages.terminate_action(action))
    eventually("the message is held", lambda: world.backlog().in_flight == 1)

    finished(world, node, service)
    extended = [call for call in world.recorder.calls(CHANGE) if call.status == 200]
    assert extended, "nothing extended the visibility timeout"
    assert world.deliveries() == 1, "the message became visible during its drain"
    assert world.completions(action) == ["CONTINUE"]


@pytest.mark.both_queues
def test_a_dead_letter_is_handled_after_its_redrive(world: World) -> None:
    dead = world.dead_letters(max_receives=1)
    node = stuck(world)
    first = world.service(*LEAVE)
    action = world.hold(node.instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the budget holds the pod", lambda: world.audit.refused(world.name))

    first.terminate()
    second = world.service(*LEAVE)

    # The second receive, which the queue refuses.
    eventually("the message is a dead letter", lambda: world.queues.backlog(dead).visible == 1)
    assert world.deliveries() == 1, "the second process received a message that had its last receive"
    assert world.acknowledged()
    assert second.at_rest()
    assert not world.completions(action)
    world.open_budget("db")
    # One receive more is not enough: it may answer a poll of the first process, which has ended.
    world.dead_letters(max_receives=10)
    (letter,) = world.queues.receive(dead)
    world.send(json.dumps(letter))
    finished(world, node, second)
    assert world.completions(action) == ["CONTINUE"]


@pytest.mark.slow
@pytest.mark.both_queues
def test_a_message_of_two_processes_completes_its_hook_once(world: World) -> None:
    node = stuck(world)
    paused = world.service(*LEAVE)
    action = world.hold(node.instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the budget holds the pod", lambda: world.audit.refused(world.name))

    paused.process.signal(signal.SIGSTOP)
    other = world.service(*LEAVE)
    eventually("the other process has the message, too", lambda: world.deliveries() == 2)
    paused.process.signal(signal.SIGCONT)
    world.open_budget("db")

    finished(world, node, paused, other)
    beats = world.heartbeats(action)
    always("no heartbeat follows", lambda: world.heartbeats(action) == beats, during=2)
    ages = {labels["receipt"]: n for labels, n in other.samples("ebbtide_message_age_seconds_count")}
    # On moto the paused process releases the message with its old receipt, so that it is received once more.
    assert ages["again"] >= 1, f"ages by number of receives: {ages}"
    assert not ages["first"], "ApproximateReceiveCount of a second receive is 1"
    assert world.completions(action) == ["CONTINUE"]


@pytest.mark.slow
@pytest.mark.parametrize("queues", ["elasticmq"], indirect=True)
def test_a_queue_that_restarts_keeps_its_messages(world: World, elasticmq: ElasticMq) -> None:
    node = stuck(world)
    service = world.service(*LEAVE)
    action = world.hold(node.instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the budget holds the pod", lambda: world.audit.refused(world.name))

    elasticmq.stop()
    world.open_budget("db")
    eventually("the hook is completed without a queue", lambda: world.completions(action))
    elasticmq.start()

    finished(world, node, service)
    assert world.completions(action) == ["CONTINUE"]
    assert not [call for call in world.recorder.of_token(HEARTBEAT, action.token) if call.status != 200]
