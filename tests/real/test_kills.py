"""Two replicas, one of which is killed again and again, at calls that a seed chooses, until all drains have ended.

    EBBTIDE_SEED=7 EBBTIDE_DRAINS=50 EBBTIDE_KILLS=25 tests/real/run test_kills.py -s -k full

repeats a run: the same nodes, messages and points in the same order. Which process comes to a point first may differ.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

import pytest

from harness import manifests, messages, once
from harness.hooks import Action
from harness.kills import AFTER, BEFORE, Point, Replica, Trap
from harness.recorder import COMPLETE, HEARTBEAT, RECEIVE
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, marks

FLAGS = ("--heartbeat", "5s")

HEARTBEAT_TIMEOUT = 900
"""Heartbeat timeout in seconds: no kill makes a hook expire, so each hook must be completed."""

MAX_RECEIVES = 10
"""Default of deploy/aws. Each kill costs the messages of its process one receive."""

PODS = 3
STAY = 2
"""Number of nodes that nobody takes away."""

WEB = 6
"""Number of pods of a Deployment with a budget, which move from drained nodes to others."""

SLOW = 7.0
"""Seconds until a drain's last pod stops: at least one heartbeat."""

LONG = 45.0
"""The same for a long drain: the message is extended; when another process gets it after 30 s, pods still stop."""

REACHED_WITHIN = 240.0
HANDLED_WITHIN = 600.0


@dataclass
class Campaign:
    """One run: what was sent, and what was seen."""

    world: World
    seed: int
    drains: int
    kills: int
    rng: random.Random = field(init=False)
    actions: list[Action] = field(default_factory=list)
    drained: list[Node] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    """Pods that were on a node when its hook was completed."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._looking = threading.Lock()
        self._kube = self.world.kube.another()

    def set_up(self) -> tuple[list[Node], list[Node]]:
        """Adds nodes with pods; returns those that go, and those that stay."""
        world = self.world
        nodes = world.several_nodes(self.drains + STAY)
        going, staying = nodes[STAY:], nodes[:STAY]
        world.run("web", WEB, stops_after=1)
        budgets = f"/apis/policy/v1/namespaces/{world.name}/poddisruptionbudgets"
        world.kube.create(budgets, manifests.budget_of("web", max_unavailable=2))
        return going, staying

    def send(self, node: Node, with_hook: bool, long: bool) -> None:
        """Gives a node its pods and sends its notice, sometimes twice."""
        world = self.world
        stops = [self.rng.choice([0.2, 1.0, 3.0]) for _ in range(PODS - 1)] + [LONG if long else SLOW]
        for number, stops_after in enumerate(stops, 1):
            annotations = {manifests.STOPS_AFTER: str(stops_after)}
            world.run_pod(f"{node.name}-{number}", node, annotations=annotations)
        if with_hook:
            action = world.hold(node.instance, HEARTBEAT_TIMEOUT)
            self.actions.append(action)
            event = messages.terminate_action(action)
        else:
            event = messages.spot_warning(node.instance)
        self.drained.append(node)
        world.send(*[event] * self.rng.choice([1, 1, 1, 1, 2]))

    def point(self, hooks: int, drains: int, long: bool) -> Point:
        """Returns a point that these new drains reach, perhaps with what older ones have left to do."""
        rng = self.rng
        when = rng.choice([BEFORE, AFTER])
        points = [
            Point(COMPLETE, rng.randint(1, hooks), when),
            Point(COMPLETE, 1, AFTER),
            Point(HEARTBEAT, 1, when),
            Point("DeleteMessageBatch", 1, when),
            Point(RECEIVE, 1, AFTER),
            Point("aws", rng.randint(1, 5), when),
            Point("create pods/eviction 201", rng.randint(1, PODS * drains), AFTER),
            Point("patch nodes 200", rng.randint(1, drains), AFTER),
            Point("list pods 200", rng.randint(1, drains), AFTER),
            Point("kube", rng.randint(1, 4 * drains), AFTER),
        ]
        if long:
            points = [
                Point("ChangeMessageVisibilityBatch", 1, when),
                Point("create pods/eviction 201", PODS * drains, AFTER),
                Point(HEARTBEAT, 2, when),
            ]
        return rng.choice(points)

    def look(self, action: str, asked: dict[str, Any]) -> None:
        """Notes the pods that are on a node when its hook is about to be completed."""
        if action != COMPLETE:
            return
        with self._looking:
            held = next(each for each in self.actions if each.token == asked["LifecycleActionToken"])
            node = next(node for node in self.drained if node.instance == held.instance)
            pods = self._kube.items("/api/v1/pods", fields=f"spec.nodeName={node.name}")
            self.early += [f"{pod['metadata']['name']} on {node.name}" for pod in pods]

    def run(self) -> str:
        """Runs the campaign and checks its end; returns the figures."""
        world, rng = self.world, self.rng
        dead = world.dead_letters(MAX_RECEIVES)
        going, staying = self.set_up()
        replicas = [Replica(world, name, FLAGS) for name in ("a", "b")]
        began: dict[str, list[float]] = {replica.user: [] for replica in replicas}
        trap = Trap(world, replicas, self.look)
        points = []

        def start(replica: Replica) -> None:
            began[replica.user].append(time.time())
            replica.start()

        for replica in replicas:
            start(replica)
            replica.service.wait_ready()
        with trap.watching():
            for round in range(self.kills):
                share = going[round :: self.kills]
                long = round == 0 or rng.random() < 0.3
                hooks = 1 + sum(rng.random() < 0.7 for _ in share[1:])
                point = self.point(hooks, len(share), long)
                points.append(point)
                trap.set(point)
                for number, node in enumerate(share):
                    self.send(node, number < hooks, long)
                try:
                    killed = trap.killed.get(timeout=REACHED_WITHIN)
                except Empty:
                    raise AssertionError(f"seed {self.seed}, round {round}: not reached: {point}") from None
                print(f"round {round}: {killed.service.name} killed {point}", flush=True)
                start(killed)
                if rng.random() < 0.5:
                    killed.service.wait_ready()
            self.settle(replicas)
        return self.verdict(dead, staying, began, points)

    def settle(self, replicas: list[Replica]) -> None:
        """Waits until all is handled and both replicas are at rest."""
        world = self.world
        for replica in replicas:
            replica.service.wait_ready()
        eventually("every message is handled", world.acknowledged, HANDLED_WITHIN)
        for replica in replicas:
            eventually(f"{replica.service.name} is at rest", replica.service.at_rest)
            gauges = {name: value for name, _, value in replica.service.metrics()}
            assert gauges["ebbtide_pods_blocked"] == 0
        beats = len(world.recorder.calls(HEARTBEAT))
        always("no heartbeat follows", lambda: len(world.recorder.calls(HEARTBEAT)) == beats, during=12)

    def verdict(self, dead: str, staying: list[Node], began: dict[str, list[float]], points: list[Point]) -> str:
        """Checks what holds after any kills; returns the figures."""
        world = self.world
        requests = world.audit.requests()
        assert world.queues.backlog(dead).empty, "a message is a dead letter"
        assert not (found := once.completed_twice(world.recorder, self.actions)), found
        assert not (found := once.beats_after_completion(world.recorder, self.actions)), found
        assert not self.early, f"a hook was completed before the pods were gone: {self.early}"
        left = {node.name: world.apps(node) for node in self.drained if world.pods(node)}
        assert not left, f"pods were left: {left}"
        for node in self.drained:
            assert world.cordoned_with_notice(node), f"{node.name} is not cordoned with a notice"
        for node in staying:
            seen = world.see(node)
            assert not marks(seen), f"marks on {node.name}: {marks(seen)}"
            assert not cordoned(seen), f"{node.name} is cordoned"
        repeated = once.repeated(requests)
        nodes = {pod: self.node_of(pod) for pod in repeated}
        for pod, evictions in repeated.items():
            print(f"{pod} on {nodes[pod]} evicted again: {[(each.user, each.came, each.at) for each in evictions]}")
        assert not (found := once.needless(requests, began, nodes)), found
        calls = world.recorder.calls()
        refused = sum(call.status != 200 for call in calls if call.action == COMPLETE)
        return (
            f"{self.drains} drains ({len(self.actions)} hooks), {len(points)} kills, {world.deliveries()} deliveries, "
            f"{len(repeated)} pods evicted again unknowingly, {refused} completions refused"
        )

    def node_of(self, pod: str) -> str:
        """Returns the node of a pod that is gone, as the scheduler said."""
        of_node = next((node.name for node in self.drained if pod.startswith(f"{node.name}-")), None)
        scheduled = (event for event in self.world.events("Pod", pod) if event["reason"] == "Scheduled")
        return of_node or next(scheduled)["message"].rpartition(" ")[2]


@pytest.mark.both_queues
@pytest.mark.parametrize(
    ("drains", "kills"),
    [pytest.param(6, 3, id="short"), pytest.param(50, 25, id="full", marks=pytest.mark.slow)],
)
def test_kills_lose_nothing_and_repeat_nothing(
    world: World, capsys: pytest.CaptureFixture[str], drains: int, kills: int
) -> None:
    seed = int(os.environ.get("EBBTIDE_SEED") or random.SystemRandom().randrange(1_000_000))
    drains = int(os.environ.get("EBBTIDE_DRAINS") or drains)
    kills = min(int(os.environ.get("EBBTIDE_KILLS") or kills), drains)
    with capsys.disabled():
        print(f"\nEBBTIDE_SEED={seed} EBBTIDE_DRAINS={drains} EBBTIDE_KILLS={kills}", flush=True)
    figures = Campaign(world, seed, drains, kills).run()
    with capsys.disabled():
        print(figures)
