"""Reports for the page: what the service would say in a calm night, at work, blocked, in a storm, under attack."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 23, 11, 20, tzinfo=UTC)
HERE = "ebbtide-7d9f8c6b5-x2lkq"
OTHER = "ebbtide-7d9f8c6b5-m8wtz"
SLOTS = 144

# Turns the text after it around.
RIGHT_TO_LEFT = "\u202e"
HOSTILE_POD = 'default/<img src=x onerror="document.title=1"><script>alert(1)</script>'
HOSTILE_NODE = f"ip-10-0-6-6{RIGHT_TO_LEFT}moc.live\u0007\u0000.internal"

Report = dict[str, Any]


def at(seconds: float) -> str:
    """Returns the time this many seconds from the report's."""
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def node(number: int) -> str:
    """Returns the name of a Node as EC2 makes it."""
    return f"ip-10-0-{number // 256}-{number % 256}.eu-west-1.compute.internal"


def replica(name: str, **changed: Any) -> Report:
    """Returns a replica that is well."""
    queue = {"held": 0, "oldestSeconds": None, "failing": None}
    common = {"here": name == HERE, "ready": True, "started": at(-3 * 86_400), "nodes": 214, "queue": queue}
    return {"name": name, **common, "silent": None} | changed


def day(busy: dict[int, int] | None = None, failed: dict[int, int] | None = None) -> Report:
    """Returns the last day: notices and failures by slot."""
    return {
        "since": at(-SLOTS * 600),
        "minutesPerSlot": 10,
        "notices": [(busy or {}).get(slot, 0) for slot in range(SLOTS)],
        "failed": [(failed or {}).get(slot, 0) for slot in range(SLOTS)],
    }


def drain(number: int, **changed: Any) -> Report:
    """Returns a drain that goes on."""
    common = {"node": node(number), "since": at(-40), "deadline": at(80), "hard": True, "pods": 12, "gone": 7}
    return {**common, "leftAlone": 4, "blocked": [], "blockedMore": 0, "outcome": None} | changed


def interruption(number: int, **changed: Any) -> Report:
    """Returns a spot interruption that drains."""
    return {
        "id": f"{HERE}/{number}",
        "replica": HERE,
        "message": f"7d1f{number:04x}-5a51-4c0e-8f6a-2b6f4d1c7e90",
        "kind": "spot",
        "action": "drain",
        "instance": f"i-0{0xABC000000000000 + number:x}",
        "node": node(number),
        "copies": 0,
        "since": at(-40),
        "deadline": at(80),
        "hard": True,
        "phase": "draining",
        "drains": [drain(number)],
        "waits": [],
        "heartbeats": None,
        "hook": None,
        "problem": None,
        "ended": None,
    } | changed


def ended(number: int, seconds: float, outcome: str = "drained", **changed: Any) -> Report:
    """Returns an interruption that ended this many seconds ago."""
    failed = outcome in ("blocked", "timed-out", "failed", "hook-failed")
    gone = "2 of 3 pods gone; default/db-0: its budget" if failed else "3 of 3 pods gone"
    times = {"since": at(-seconds - 90), "deadline": at(-seconds)}
    done = drain(number, pods=3, gone=2 if failed else 3, outcome=outcome, **times)
    common = {"since": at(-seconds - 93), "deadline": at(27 - seconds), "phase": "ended", "drains": [done]}
    end = {"at": at(-seconds), "outcome": outcome, "failed": failed, "report": gone, "waited": "volumes: met"}
    return interruption(number, **common, ended=end) | changed


def held(pod: str = "default/db-0", budget: str = "db") -> Report:
    """Returns a pod that its budget holds back."""
    return {
        "pod": pod,
        "by": f"The disruption budget {budget} needs 2 healthy pods and has 2 currently",
        "since": at(-34),
        "advice": "Make another pod of the budget Ready elsewhere, or relax the budget. Shortly before the deadline the pod is deleted, "
        "unless --at-deadline=leave.",
    }


def wait(name: str, reason: str, since: float, until: float) -> Report:
    """Returns a wait that lasts."""
    return {"wait": name, "reason": reason, "since": at(since), "until": at(until)}


def said(state: str, text: str) -> Report:
    """Returns the first line. The page shows its text."""
    numbers = ("replicas", "starting", "stopping", "silent", "unwatched", "acted", "troubled", "denied", "draining", "blocked", "failed")
    names = ("queue", "held", "lastFailed", "lastEnd")
    others = {"unasked": False, "recorded": []}
    return {"state": state, "text": text, "basis": dict.fromkeys(numbers, 0) | dict.fromkeys(names) | others}


def report(health: str, text: str, **changed: Any) -> Report:
    """Returns a report without interruptions."""
    return {
        "version": 1,
        "time": at(0),
        "program": "0.1.0",
        "dryRun": False,
        "health": said(health, text),
        "replicas": [replica(HERE), replica(OTHER)],
        "interruptions": [],
        "storms": [],
        "day": day(),
        "pools": [],
    } | changed


def calm() -> Report:
    """Returns the report of a quiet day: nothing runs, little has happened."""
    quiet = {11: 1, 30: 2, 31: 1, 58: 1, 90: 3, 121: 1}
    return report(
        "ok",
        "All is well. The last interruption ended 3 hours ago, in time.",
        day=day(quiet),
        interruptions=[ended(10 + i, seconds) for i, seconds in enumerate((13_400, 31_500, 31_800, 32_100))],
        pools=pools()[:3],
    )


def empty() -> Report:
    """Returns the report of a service that has just started."""
    return report("ok", "All is well.")


def working() -> Report:
    """Returns the report of a few drains, each in another phase."""
    hook = {"kind": "asg-terminate", "hook": "open", "heartbeats": {"sent": 3, "failed": 0, "last": at(-21)}}
    volumes = wait("volumes", "2 volumes are attached: pvc-data-0, pvc-data-1", -12, 48)
    hold = wait("hold-before-drain", "ebbtide/release is not set to before-drain", -50, 540)
    problem = "Patching the Node failed: 429 Too Many Requests"
    completing = {"deadline": at(262), "phase": "completing"}
    two = [drain(5, pods=6, gone=6, outcome="drained"), drain(6, pods=9, gone=2)]
    return report(
        "working",
        "5 nodes are being drained, all in time. The next deadline is at 11:21:20.",
        day=day({11: 1, 30: 2, 58: 1, 90: 3, 121: 1, 142: 2, 143: 4}),
        interruptions=[
            interruption(1),
            interruption(2, **hook, **completing, waits=[volumes], drains=[drain(2, pods=9, gone=9)]),
            interruption(3, **hook, deadline=at(1140), hard=False, phase="waiting", waits=[hold], drains=[]),
            interruption(4, kind="scheduled-change", deadline=None, phase="marked", drains=[], node=None),
            interruption(5, deadline=at(101), drains=two, copies=2, problem=problem),
            ended(20, 340),
        ],
        pools=pools()[:5],
    )


def blocked() -> Report:
    """Returns the report of a drain that a budget blocks."""
    base = working() | {"storms": [a_storm(since=at(-39_000), until=at(-36_900))]}
    swell = {slot: round(160 * math.exp(-((slot - 80) ** 2) / 5)) for slot in range(74, 87)}
    base["day"] = day({8: 2, 22: 1, 23: 4, 41: 9, 109: 3, 127: 14, 128: 2, 142: 2, 143: 4} | swell, {80: 8, 142: 1})
    stopped = interruption(7, deadline=at(86), drains=[drain(7, pods=12, gone=11, blocked=[held()], deadline=at(86))])
    failed = ended(21, 900, "blocked")
    base["interruptions"] = [*base["interruptions"][:3], stopped, *base["interruptions"][3:], failed]
    text = (
        "The drain of ip-10-0-0-7.eu-west-1.compute.internal is blocked. default/db-0 is held back: The disruption budget db "
        "needs 2 healthy pods and has 2 currently. 2 other drains continue."
    )
    base["health"] = said("blocked", text)
    return base


def a_storm(**changed: Any) -> Report:
    """Returns a storm that was mostly in time."""
    outcomes = ["timed-out", "blocked", "blocked"] * 3
    failures = [{"node": node(500 + i), "kind": "spot", "outcome": outcomes[i]} for i in range(8)]
    return {
        "id": f"{HERE}/s1",
        "replica": HERE,
        "since": at(-2700),
        "until": at(-2280),
        "notices": 1000,
        "running": 0,
        "ended": 1000,
        "inTime": 992,
        "failed": 8,
        "kinds": {"spot": 990, "asg-terminate": 10},
        "slowest": {"node": node(731), "seconds": 93.2},
        "failures": failures,
        "failuresMore": 0,
    } | changed


def pools() -> list[Report]:
    """Returns more pools than the page shows at first."""
    types = ("m6i.large", "m6a.xlarge", "c7g.2xlarge", "r6i.large", "c6i.xlarge", "m7g.large")
    zones = ("eu-west-1a", "eu-west-1b")
    named = [(kind, zone) for zone in zones for kind in types]
    return [
        {"kind": "spot", "instanceType": kind, "zone": zone, "group": "blue", "interruptions": max(1, 62 - 9 * i)}
        for i, (kind, zone) in enumerate(named)
    ]


def storm(count: int = 1000) -> Report:
    """Returns the report of a thousand interruptions at once, some of them blocked, and of a storm before them."""
    rows = []
    for i in range(count):
        left = 20 + i * 100 // count
        common = {"deadline": at(left), "since": at(left - 120)}
        if i % 97 == 5:
            two = [held(f"data/kafka-{i}", "kafka"), held(f"data/zk-{i}", "zk")]
            pods = [held(f"shop/cart-{i}", "cart")] if i % 2 else two
            rows.append(interruption(i, **common, drains=[drain(i, pods=9, gone=7, blocked=pods, deadline=at(left))]))
        elif i % 5 == 0:
            rows.append(interruption(i, **common, phase="waiting", drains=[]))
        else:
            rows.append(interruption(i, **common, drains=[drain(i, pods=10 + i % 7, gone=i % 10, deadline=at(left))]))
    swell = {slot: round(30 * math.exp(-((slot - 96) ** 2) / 40)) for slot in range(70, 125)}
    busy = swell | {139: 940, 140: 60, 143: count}
    counts = {"notices": count, "running": count, "ended": 0, "inTime": 0, "failed": 0}
    running = a_storm(id=f"{HERE}/s2", since=at(-70), until=None, slowest=None, failures=[], **counts)
    return report(
        "blocked",
        f"11 of {count:,} drains are blocked. The others are in time; the next deadline is at 11:20:20.",
        replicas=[
            replica(HERE, nodes=2400, queue={"held": 512, "oldestSeconds": 4.2, "failing": None}),
            replica(OTHER, nodes=2400, queue={"held": 488, "oldestSeconds": 3.7, "failing": None}),
        ],
        interruptions=[*rows, *(ended(2000 + i, 2300 + i, "blocked" if i < 8 else "drained") for i in range(60))],
        storms=[running, a_storm()],
        day=day(busy, {139: 7, 140: 1, 97: 2}),
        pools=pools(),
    )


def hostile() -> Report:
    """Returns a report full of markup, turned and invisible characters, and words that the page does not know."""
    pod = {"pod": HOSTILE_POD, "by": "</p><b>bold</b>", "since": at(-30), "advice": "javascript:alert(1) " + "x" * 5000}
    bad = interruption(
        6,
        kind="quantum-flux",
        action="\u2066dance\u2069",
        node=HOSTILE_NODE,
        message='"><svg onload=alert(1)>',
        phase="__proto__",
        drains=[drain(6, node=HOSTILE_NODE, blocked=[pod])],
        waits=[wait("<i>", "&lt;b&gt; ${alert(1)}", -3, 9)],
        problem="a\u200bb\ud83d",
        hook="<hr>",
    )
    return report(
        "blocked",
        "<h1>Pwned</h1>. \u202eThe end.",
        program="<b>0</b>",
        interruptions=[bad, ended(9, 30, outcome="vapourised")],
        storms=[a_storm(kinds={"<u>": 1}, slowest={"node": HOSTILE_NODE, "seconds": 1}, failures=[])],
        pools=[pools()[0] | {"kind": "<u>", "instanceType": "__proto__", "zone": "constructor", "group": HOSTILE_POD}],
        replicas=[replica("<script>here</script>", here=True)],
    )


def silent() -> Report:
    """Returns a report in which another replica does not answer."""
    unknown = {"ready": None, "started": None, "nodes": None, "queue": None}
    return calm() | {"replicas": [replica(HERE), replica("10.0.3.7", **unknown, silent="no answer within 2 s")]}


def dead() -> Report:
    """Returns a report after a replica has died in the middle of two drains, one of them blocked by a budget."""
    unknown = {"ready": None, "started": None, "nodes": None, "queue": None}
    why = "default/db-0 is held back by: The disruption budget db needs 2 healthy pods and has 2 currently"
    base = report(
        "blocked",
        f"The drain of {node(7)} is blocked; another replica acts on it, or did. {why}.",
        replicas=[replica(HERE), replica("10.0.3.7", **unknown, silent="connection refused")],
        interruptions=[
            interruption(1),
            interruption(7, phase="elsewhere", action=None, drains=[], problem=why),
            interruption(8, phase="elsewhere", action=None, drains=[]),
            # This replica has begun to act on it since.
            interruption(9, phase="elsewhere", action=None, drains=[], instance="i-taken-over", node=node(9)),
            interruption(10, instance="i-taken-over", node=node(9)),
        ],
    )
    recorded = [{"node": node(n), "instance": f"i-0{0xABC000000000000 + n:x}", "blocked": why if n == 7 else None} for n in (7, 8)]
    base["health"]["basis"] |= {"replicas": 2, "silent": 1, "acted": 2, "draining": 2, "recorded": recorded}
    return base


def unready() -> Report:
    """Returns the report of a replica that can't receive messages."""
    queue = {"held": 0, "oldestSeconds": None, "failing": "denied"}
    text = "This replica is not ready. Receiving messages fails: denied."
    return report("unready", text, replicas=[replica(HERE, ready=False, queue=queue, nodes=0)])


ALL = {make.__name__: make for make in (calm, empty, working, blocked, storm, hostile, silent, dead, unready)}
