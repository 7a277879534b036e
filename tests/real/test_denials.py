"""Whoever denies evictions other than a budget is named as what blocks a drain, and overridden at a hard deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest

from harness import admission, messages
from harness.service import Service
from harness.status import report
from harness.wait import eventually
from harness.world import Node, World, drained

LEFT = 20
"""Seconds from the spot warning to the instance's end: a quarter of them are for tries."""

SOFT = 8
"""Seconds of the drain that deletes nothing: Events follow 5 s after the first refusal."""

WEBHOOK = "denies.ebbtide.test"
SILENT = "silent.ebbtide.test"
POLICY = "keep.ebbtide.test"

DENIED = {
    "webhook-400": (400, f'admission webhook "{WEBHOOK}" denied the request'),
    "webhook-403": (403, f'admission webhook "{WEBHOOK}" denied the request'),
    "webhook-500": (500, f'admission webhook "{WEBHOOK}" denied the request'),
    "silent": (500, f'failed calling webhook "{SILENT}"'),
    "policy": (422, f"ValidatingAdmissionPolicy '{POLICY}'"),
}
"""Status and words with which the API server denies each pod's eviction. A number in a name is the webhook's answer."""

BY_NODE = [["webhook-400", "webhook-403", "webhook-500"], ["silent"], ["policy"]]
"""The pods of each node: an Event names three at most."""


def blocked(service: Service) -> float:
    """Returns the number of pods that are held back now."""
    ((_, value),) = service.samples("ebbtide_pods_blocked")
    return value


@contextmanager
def denying(world: World) -> Iterator[None]:
    """Denies evictions by a webhook, a webhook that does not answer, and a policy."""
    certificates = world.control_plane.kubeconfig.parent
    place = (world.kube, certificates, world.name)
    with (
        admission.denied_evictions(*place, "webhook-", WEBHOOK, lambda pod: int(pod.split("-")[1])),
        admission.silent_webhook(*place, "silent-", SILENT),
        admission.denying_policy(world.kube, world.name, "policy-", POLICY),
    ):
        yield


def is_denied(world: World, pod: str, code: int, words: str) -> bool:
    """Returns whether the API server denies the eviction of a pod like this, in a dry run."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    status = world.kube.refusal(f"{world.pods_path(pod)}/eviction", eviction)
    assert (status["code"], words in status["message"]) == (code, True), status
    return True


def says_who(world: World, node: Node, names: list[str]) -> bool:
    """Returns whether a Node's Event and its condition say who has held back each of these pods until the end."""
    ends = [event["message"] for event in world.events("Node", node.name) if event["reason"] == "DrainEnded"]
    conditions = world.see(node)["status"]["conditions"]
    ours = [each["message"] for each in conditions if (each["type"], each["status"]) == ("EbbtideDraining", "False")]
    assert (len(ends), len(ours)) == (1, 1), f"Events {ends}, conditions {ours}"
    for name in names:
        held = f"{name}-soft is held back: "
        for text in (ends[0], ours[0]):
            assert DENIED[name][1] in text.partition(held)[2].partition(";")[0], f"{name}: {text}"
    return True


@pytest.mark.versions
def test_who_denies_an_eviction_is_named_and_overridden_at_a_hard_deadline(world: World) -> None:
    nodes = world.several_nodes(2 * len(BY_NODE))
    hard, soft = nodes[: len(BY_NODE)], nodes[len(BY_NODE) :]
    for node, names in zip(hard, BY_NODE, strict=True):
        for name in names:
            world.run_pod(f"{name}-hard", node)
    for node, names in zip(soft, BY_NODE, strict=True):
        for name in names:
            world.run_pod(f"{name}-soft", node)
    world.run_pod("free", hard[0])
    with denying(world):
        for name, (code, words) in DENIED.items():
            # The API server learns of them after a delay.
            eventually(f"the eviction of {name} is denied", partial(is_denied, world, f"{name}-hard", code, words))
        before = world.kube.version(world.pods_path())
        service = world.service("--on", "rebalance=drain", "--drain-timeout", f"rebalance={SOFT}s")
        ago = timedelta(seconds=120 - LEFT)
        world.send(*(messages.spot_warning(node.instance, ago) for node in hard))
        world.send(*(messages.rebalance(node.instance) for node in soft))

        eventually("the pods count as blocked", lambda: blocked(service) >= len(DENIED))
        for node in hard:
            eventually("the node is drained", partial(drained, world, node))
        eventually("the messages are deleted", world.acknowledged)
        for node, names in zip(soft, BY_NODE, strict=True):
            eventually("the Node says who blocked its drain", partial(says_who, world, node, names))
            (event,) = (each for name in names for each in world.events("Pod", f"{name}-soft"))
            assert event["reason"] == "EvictionBlocked" and DENIED[names[0]][1] in event["message"], event
        eventually("the service is at rest", service.at_rest)

    assert (service.ended("spot"), service.ended("rebalance")) == ({"drained": 3}, {"blocked": 3})
    assert blocked(service) == 0
    reports = {row["node"]: row["ended"]["report"] for row in report(service.status)["interruptions"]}
    for node, names in zip(soft, BY_NODE, strict=True):
        assert DENIED[names[0]][1] in reports[node.name], reports
    tried = {(each.name, each.status) for each in world.audit.evictions(world.name)}
    denied = {(f"{name}-{kind}", code) for name, (code, _) in DENIED.items() for kind in ("hard", "soft")}
    assert denied <= tried, f"not denied: {denied - tried}"
    assert world.audit.evicted(world.name) == {"free": 1}
    deleted = sorted((each.name, each.status) for each in world.audit.deletions(world.name))
    assert deleted == sorted((f"{name}-hard", 200) for name in DENIED)
    for name, (_, words) in DENIED.items():
        condition = world.disrupted(f"{name}-hard", before)
        assert (condition["reason"], words in condition["message"]) == ("DeletionByEbbtide", True), condition
    assert world.disrupted("free", before)["reason"] == "EvictionByEvictionAPI"
