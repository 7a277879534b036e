#!/usr/bin/env python3
"""Tries Ebbtide on your own AWS account and cluster, and prints a table for an issue: README.md has the steps and the costs.

Creates a group of two spot instances and interrupts only these, in each way that AWS offers. Reads Ebbtide's metrics, Events, CloudTrail and
copies of AWS's messages. Removes at the end what it has created. Needs the programs aws and kubectl, and no Python packages.

    examples/trial/trial.py --group GROUP              all steps, about half an hour
    examples/trial/trial.py --group GROUP --only hook  some of them
    examples/trial/trial.py --delete                   removes what a trial left that was killed
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from calls import CallError, Cluster, Json, NotRun, Stop, aws, call
from made import TAG, Made
from observed import PODS, Copy, Ec2States, Metrics, Observation, Victim, describe, is_running
from report import FAILED, MEASURED, NOT_RUN

TARGET = "ebbtide-trial-target"
"""Tag of the instance that an experiment interrupts."""

HOOK_TIMEOUT = 60
"""Heartbeat timeout of the terminating hook in template.yaml, in seconds."""

CONFIRMING = (
    "marked-for-",
    "instance-terminated-no-capacity",
    "instance-terminated-by-price",
    "instance-terminated-launch-group-constraint",
    "instance-terminated-by-experiment",
)
"""Prefixes of a spot request's status that confirm a warning to Ebbtide: src/pipeline/interruption/confirmation.rs."""

ROLE_SESSION = re.compile(r"AROA\w+:.+")
"""SenderId of a role's session: so Ebbtide recognizes a hook that notifies its queue directly: src/pipeline/queue.rs."""

HEALTH = {"cn-": "cn-northwest-1", "us-gov-": "us-gov-west-1"}
"""Region of AWS Health's API, by the prefix of a region; us-east-1 for the others."""

STEPS = ("hook", "spot", "rebalance", "refresh", "health", "cloudtrail")


class Trial(Made):
    """The steps, and what each of them checks."""

    def run(self) -> None:
        """Runs the wanted steps, one after the other."""
        self.set_up()
        steps = {name: getattr(self, name) for name in STEPS if name in self.options.only and name != "cloudtrail"}
        for name, step in steps.items():
            self.note(f"--- {name}")
            try:
                step()
            except NotRun as reason:
                self.row(name, NOT_RUN, None, str(reason))
            except CallError as error:
                self.row(name, NOT_RUN, None, str(error)[:300])
        self.sender_rows()

    def change(self, before: Metrics, metric: str, **labels: str) -> float:
        """Returns by how much a counter has grown."""
        return self.metrics().sum(metric, **labels) - before.sum(metric, **labels)

    def first(self, kind: str, instance: str, way: str = "EventBridge") -> Copy | None:
        """Returns the first copy of a kind about an instance."""
        return next((each for each in self.copies if (each.kind, each.instance, each.way) == (kind, instance, way)), None)

    def watch(self, victim: Victim, is_over: Callable[[], Any], within: float, seen: Observation | None = None) -> Observation:
        """Observes a drain until `is_over`."""
        seen = seen or Observation()
        since: float | None = None

        def look() -> bool:
            nonlocal since
            now = self.now()
            nodes = {each["metadata"]["name"]: each for each in self.cluster.items("nodes", "--selector", f"{TAG}={self.name}")}
            objects = self.cluster.items("pods,poddisruptionbudgets", "--namespace", self.name)
            pods = [each for each in objects if each["kind"] == "Pod"]
            budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
            on = [each for each in pods if each["spec"].get("nodeName") == victim.name]
            node = nodes.get(victim.name)
            if node and node["spec"].get("unschedulable") and "ebbtide/kind" in node["metadata"]["labels"]:
                seen.cordoned = seen.cordoned or now
                seen.kind = seen.kind or node["metadata"]["labels"]["ebbtide/kind"]
            if len([each for each in on if "deletionTimestamp" not in each["metadata"]]) < victim.pods:
                seen.evicted = seen.evicted or now
            if not on:
                seen.drained = seen.drained or now
            seen.least = min(seen.least, sum(is_running(each) for each in pods))
            stay = [each for each in on if "deletionTimestamp" not in each["metadata"]]
            refused = stay and seen.cordoned and any(each.get("status", {}).get("disruptionsAllowed") == 0 for each in budgets)
            since = (since or now) if refused else None
            seen.blocked = max(seen.blocked, now - since if since else 0)
            if is_over():
                seen.over = seen.over or now
            # The last pod may have left since the pods were read.
            return bool(seen.over and (seen.drained or now > seen.over + 10))

        self.until(f"{victim.name} is drained and the interruption is over", look, within)
        return seen

    # A lifecycle hook.

    def hook(self) -> None:
        """Has the group terminate an instance: the hook must wait for the drain, by heartbeats, and then not any longer."""
        victim, before, start = self.place(), self.metrics(), self.now()
        which = ("--instance-id", self.mine(victim.instance), "--no-should-decrement-desired-capacity")
        aws("autoscaling", "terminate-instance-in-auto-scaling-group", *which)
        copy = self.until("the event comes", lambda: self.first("asg-terminate", victim.instance), 120)
        if not copy:
            self.row("hook: the event", NOT_RUN, None, "no event of the terminating hook within two minutes of the call")
            return
        self.row("hook: arrival of the event", MEASURED, copy.sent - copy.at, f"{copy.sent - start:.1f} s after the call")
        seen = self.watch(victim, lambda: not self.waits(victim.instance), 900)
        self.until("the hook's completion is counted", lambda: self.change(before, "ebbtide_completions_total", result="continue"), 30)
        completed = self.change(before, "ebbtide_completions_total", result="continue")
        self.drain_rows("hook", victim, copy.at, seen, before, "asg-terminate")
        ended = None if not seen.over else seen.over - copy.at
        late = f"{seen.over - seen.drained:.0f} s after the last pod" if seen.over and seen.drained else "the drain did not end before it"
        # The polls are some seconds apart.
        is_right = bool(seen.over and seen.drained and seen.over + 5 > seen.drained and completed)
        self.row("hook: completed once the node is drained", is_right, ended, f"{late}; completions: {completed:.0f}")
        beats = self.change(before, "ebbtide_heartbeats_total", result="sent")
        took = (seen.over or self.now()) - copy.at
        if not beats and took < HOOK_TIMEOUT:
            self.row("hook: heartbeats", NOT_RUN, None, f"the drain took {took:.0f} s, less than the hook's timeout of {HOOK_TIMEOUT} s")
        else:
            self.row("hook: heartbeats", beats > 0, took, f"{beats:.0f} heartbeats; the hook's timeout is {HOOK_TIMEOUT} s")

    def waits(self, instance: str) -> bool:
        """Returns whether the instance waits at a terminating hook, or will."""
        found = aws("autoscaling", "describe-auto-scaling-instances", "--instance-ids", instance)["AutoScalingInstances"]
        return any(each["LifecycleState"] in ("InService", "Terminating", "Terminating:Wait") for each in found)

    def drain_rows(self, step: str, victim: Victim, at: float, seen: Observation, before: Metrics, kind: str) -> None:
        """Adds what holds for each drain."""
        cordon = None if seen.cordoned is None else seen.cordoned - at
        # Polls may miss a short drain. Ebbtide counts its cordons, and how late they were.
        counted, late = (self.change(before, f"ebbtide_cordon_delay_seconds_{part}", kind=kind) for part in ("count", "sum"))
        found = f"Ebbtide's own count: {counted:.0f}, {late:.1f} s after the notice" if counted else "not counted by Ebbtide for this notice"
        self.row(f"{step}: cordon", cordon is not None or counted > 0, late if counted else cordon, found)
        self.until("the drain is counted", lambda: self.change(before, "ebbtide_notices_total", kind=kind, outcome="drained"), 30)
        drained = self.change(before, "ebbtide_notices_total", kind=kind, outcome="drained")
        took = None if seen.drained is None else seen.drained - at
        evicted, deleted = (
            self.change(before, f"ebbtide_{what}_total", result=result) for what, result in (("evictions", "evicted"), ("deletions", "deleted"))
        )
        pods = f"{victim.pods} pods; evictions: {evicted:.0f}, deletions: {deleted:.0f}; notices `{kind}` that ended as drained: {drained:.0f}"
        self.row(f"{step}: drain", bool(seen.drained and drained), took, pods)
        self.row(f"{step}: budget", seen.least >= PODS - 1, None, f"at least {seen.least} of {PODS} pods were ready; the budget asks for {PODS - 1}")
        self.event_row(step, victim, seen)

    def event_row(self, step: str, victim: Victim, seen: Observation) -> None:
        """Adds whether Events on the Node report what has blocked the drain."""
        events = self.cluster.items("events", "--all-namespaces", "--field-selector", f"involvedObject.kind=Node,involvedObject.name={victim.name}")
        reasons = sorted({each["reason"] for each in events if "ebbtide" in each.get("source", {}).get("component", "")})
        found = f"Events on the Node: {', '.join(reasons) or 'none'}; no eviction was allowed for up to {seen.blocked:.0f} s"
        # Ebbtide reports what blocks a drain for five seconds. The observation is late by a few.
        result = "DrainBlocked" in reasons if seen.blocked >= 12 else (MEASURED if reasons else NOT_RUN)
        self.row(f"{step}: Events", result, None, found)

    # Fault Injection Service.

    def spot(self) -> None:
        """Recommendation and warning at the same time."""
        self.experiment("spot", 2)

    def rebalance(self) -> None:
        """The recommendation two minutes before the warning."""
        self.experiment("rebalance", 4)

    def experiment(self, step: str, minutes: int) -> None:
        """Interrupts a spot instance with Fault Injection Service."""
        if self.injects:
            raise NotRun(self.injects)
        victim = self.place()
        request = describe(victim.instance).get("SpotInstanceRequestId")
        if not request:
            raise NotRun("the instance is not a spot instance")
        aws("ec2", "create-tags", "--resources", self.mine(victim.instance), "--tags", f"Key={TARGET},Value={step}")
        before, states, start = self.metrics(), Ec2States(victim.instance, request, self.ahead), self.now()
        states.start()
        try:
            template = self.outputs["SpotTemplate" if step == "spot" else "RebalanceTemplate"]
            made = aws("fis", "start-experiment", "--experiment-template-id", template)["experiment"]["id"]
            recommended, warned, seen = self.warnings(step, victim, made, minutes)
            if warned:
                end = warned.at + 120

                def is_over() -> bool:
                    return self.now() > end + 60 or (bool(states.changes) and states.changes[-1][2] not in ("pending", "running"))

                seen = self.watch(victim, is_over, 300, seen)
        finally:
            states.ended.set()
            states.join(130)
        for what, copy in (("recommendation", recommended), ("warning", warned)):
            if copy:
                found = f"its time is {copy.at - start:.0f} s after the start of the experiment"
                self.row(f"{step}: arrival of the {what}", MEASURED, copy.sent - copy.at, found)
        if not warned:
            return
        self.drain_rows(step, victim, warned.at, seen, before, "spot")
        left = None if seen.drained is None else warned.at + 120 - seen.drained
        self.row(f"{step}: drained within the two minutes", bool(left and left > 0), left, "left at the end of the drain")
        unusual = self.change(before, "ebbtide_unusual_notices_total")
        self.row(f"{step}: notices that waited for room or for AWS", MEASURED, None, f"{unusual:.0f}")
        self.state_rows(step, warned, states)

    def warnings(self, step: str, victim: Victim, made: str, minutes: int) -> tuple[Copy | None, Copy | None, Observation]:
        """Waits for recommendation and warning; checks what Ebbtide does between them."""
        failure: list[str] = []

        def experiment_failed() -> bool:
            state = aws("fis", "get-experiment", "--id", made)["experiment"]["state"]
            if state["status"] in ("failed", "stopped", "cancelled"):
                failure.append(f"the experiment is {state['status']}: {state.get('reason', '')}")
            return bool(failure)

        seen, before = Observation(), self.metrics()
        within = minutes * 60 + 120
        seen = self.watch(victim, lambda: self.first("spot", victim.instance) or experiment_failed(), within, seen)
        seen.over = None
        recommended, warned = (self.first(kind, victim.instance) for kind in ("rebalance", "spot"))
        if not recommended:
            self.row(f"{step}: the recommendation", NOT_RUN, None, failure[0] if failure else "none came")
        elif step == "rebalance" and warned and warned.at > recommended.at + 10:
            self.recommendation_rows(recommended, warned, seen, before)
        if not warned:
            self.row(f"{step}: the warning", NOT_RUN, None, failure[0] if failure else f"none came within {within} s")
        return recommended, warned, seen

    def recommendation_rows(self, recommended: Copy, warned: Copy, seen: Observation, before: Metrics) -> None:
        """Adds what Ebbtide did about a recommendation before the warning came."""
        early = seen.kind == "rebalance"
        ended = self.change(before, "ebbtide_notices_total", kind="rebalance")
        after = seen.cordoned - recommended.at if seen.cordoned else None
        moved = "pods were evicted" if seen.evicted and seen.evicted < warned.sent else "no pod was moved before the warning"
        found = f"cordoned: {'yes' if early else 'no'}; {moved}; notices `rebalance` that ended: {ended:.0f}"
        # Other settings than the default, cordon, end the notice at once.
        self.row("rebalance: the node is cordoned, or the notice ended as your settings ask", early or ended > 0, after if early else None, found)

    def state_rows(self, step: str, warned: Copy, states: Ec2States) -> None:
        """Adds how EC2's own state followed the warning."""
        if not states.changes:
            self.row(f"{step}: EC2's state after the warning", NOT_RUN, None, "EC2 did not answer")
            return
        path = [
            f"{asked - warned.at:+.1f} s `{code}`, {state}" + (f" (EC2's time: {updated - warned.at:+.0f} s)" if updated else "")
            for asked, code, state, updated in states.changes
        ]
        during = [each for each in states.changes if each[0] < warned.at + 120 and each[1] not in ("fulfilled", "")]
        lag = during[0][0] - warned.at if during else None
        self.row(f"{step}: EC2's state after the warning", MEASURED, lag, "; ".join(path))
        confirmed = [each for each in during if each[1].startswith(CONFIRMING)]
        code = f"`{during[0][1]}`" if during else "no new status within the two minutes"
        found = f"EC2 shows {code}; Ebbtide takes `{'`, `'.join(each + '*' for each in CONFIRMING)}` as a confirmation"
        self.row(f"{step}: EC2 confirms the warning as Ebbtide expects", bool(confirmed), confirmed[0][0] - warned.at if confirmed else None, found)

    # An instance refresh.

    def refresh(self) -> None:
        """Replaces all instances: each must be drained within the budget."""
        victim, before = self.place(), self.metrics()
        old = {each["metadata"]["name"] for each in self.ready()}
        wishes = {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 150, "InstanceWarmup": 0, "SkipMatching": False}
        start = time.time()
        which = ("--auto-scaling-group-name", self.name)
        made = aws("autoscaling", "start-instance-refresh", *which, "--preferences", json.dumps(wishes))["InstanceRefreshId"]

        def status() -> str:
            found = aws("autoscaling", "describe-instance-refreshes", *which, "--instance-refresh-ids", made)["InstanceRefreshes"]
            return str(found[0]["Status"])

        ends = ("Successful", "Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful")
        seen = self.watch(victim, lambda: status() in ends, 1200)
        took = time.time() - start
        self.until("the completions are counted", lambda: self.change(before, "ebbtide_completions_total", result="continue") >= len(old), 60)
        completed = self.change(before, "ebbtide_completions_total", result="continue")
        drained = self.change(before, "ebbtide_notices_total", kind="asg-terminate", outcome="drained")
        state = status()
        self.row("refresh: all instances are replaced", state == "Successful", took, f"{state}; {len(old)} nodes before")
        self.row("refresh: hooks", min(completed, drained) >= len(old), None, f"completions: {completed:.0f}, drained: {drained:.0f}")
        self.row("refresh: budget", seen.least >= PODS - 1, None, f"at least {seen.least} of {PODS} pods were ready; the budget asks for {PODS - 1}")

    # What is only read.

    def health(self) -> None:
        """Reads how AWS Health has named instances."""
        home = ("--region", next((region for prefix, region in HEALTH.items() if self.region.startswith(prefix)), "us-east-1"))
        wanted = {"services": ["EC2"], "eventTypeCategories": ["scheduledChange", "issue"]}
        events = aws("health", "describe-events", *home, "--filter", json.dumps(wanted), "--max-items", "10").get("events", [])
        forms = set()
        for event in events:
            of = json.dumps({"eventArns": [event["arn"]]})
            entities = aws("health", "describe-affected-entities", *home, "--filter", of, "--max-items", "5").get("entities", [])
            forms |= {form(each.get("entityValue", "")) for each in entities}
        of_rule = {
            form(each.get("entityValue", ""))
            for copy in self.copies
            if copy.kind == "health"
            for each in copy.body["detail"].get("affectedEntities", [])
        }
        if not forms | of_rule:
            raise NotRun("not seen: AWS Health has no recent event of EC2 with affected instances in this account")
        found = f"by its API: {', '.join(sorted(forms)) or 'not seen'}; by EventBridge: {', '.join(sorted(of_rule)) or 'not seen'}"
        self.row("health: how AWS Health names instances", MEASURED, None, found)

    def sender_rows(self) -> None:
        """Adds as whom AWS sends, which Ebbtide uses to recognize a hook that notifies its queue."""
        for way, is_session in (("hook", True), ("SNS", False), ("EventBridge", False)):
            senders = sorted({copy.sender for copy in self.copies if copy.way == way and copy.sender})
            title = f"SenderId of messages by {'a hook itself' if way == 'hook' else way}"
            if not senders:
                self.row(title, NOT_RUN, None, "no message came this way")
            else:
                found = f"{', '.join(senders)}; expected: {'a session of a role' if is_session else 'no session of a role'}"
                self.row(title, all(bool(ROLE_SESSION.fullmatch(each)) == is_session for each in senders), None, found)
        for way in ("token", "token and another instance"):
            title = f"CompleteLifecycleAction with {'the token alone' if way == 'token' else 'the token of one instance and the ID of another'}"
            self.row(title, MEASURED if way in self.tokens else NOT_RUN, None, self.tokens.get(way, "no launch hook held an instance"))

    def cloudtrail(self) -> None:
        """Reads the completions of the trial's hooks in CloudTrail, which shows a call some minutes later."""
        start = datetime.fromtimestamp(self.began, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = ("--lookup-attributes", "AttributeKey=EventName,AttributeValue=CompleteLifecycleAction", "--start-time", start)

        def records() -> list[Json]:
            events = aws("cloudtrail", "lookup-events", *wanted, "--max-items", "200")["Events"]
            read = [json.loads(each["CloudTrailEvent"]) for each in events]
            return [each for each in read if (each.get("requestParameters") or {}).get("autoScalingGroupName") == self.name]

        def is_own(record: Json) -> bool:
            return "aws-cli" in record.get("userAgent", "")

        def both() -> list[Json]:
            found = records()
            return found if {is_own(each) for each in found} == {True, False} else []

        records()  # A missing right ends the step at once.
        found = self.until("CloudTrail shows the completions", both, 900) or records()
        if not found:
            raise NotRun("CloudTrail shows no completion of the trial's hooks after 15 minutes")
        own, ebbtide = ([each for each in found if is_own(each) is wanted] for wanted in (True, False))
        alone = [each for each in own if not (each["requestParameters"] or {}).get("instanceId")]
        for title, some in (("of the token alone", alone), ("of Ebbtide", ebbtide)):
            keys = sorted({key for each in some for key in each["requestParameters"]})
            resources = sorted({each.get("type", "?") for record in some for each in record.get("resources") or []})
            names = any(re.search(r"\bi-[0-9a-f]{8,}", json.dumps(each)) for each in some)
            shown = f"{len(some)} calls; parameters: {', '.join(keys)}; resources: {', '.join(resources) or 'none'}; "
            shown += f"names the instance: {'yes' if names else 'no'}"
            self.row(f"CloudTrail: completions {title}", MEASURED if some else NOT_RUN, None, shown if some else "none is shown")
        errors = sorted({f"{each['errorCode']}: {each.get('errorMessage', '')}" for each in ebbtide if each.get("errorCode")})
        if ebbtide:
            self.row("CloudTrail: AWS accepts Ebbtide's completions", not errors, None, "; ".join(errors) or "no error")


def form(entity: str) -> str:
    """Returns in which form AWS Health names an entity."""
    if re.fullmatch(r"i-[0-9a-f]+", entity):
        return "ID of an instance"
    if re.fullmatch(r"arn:[^:]+:ec2:[^:]*:[^:]*:instance/.+", entity):
        return "ARN of an instance"
    return "another resource"


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", help="Auto Scaling group of the cluster whose launch template and subnets the trial uses")
    tag = "KEY=VALUE, a tag that Ebbtide's role or settings.requireTag needs, once or twice; by default those of the group"
    parser.add_argument("--tag", action="append", default=[], help=tag)
    parser.add_argument("--context", help="context of the kubeconfig; by default the current one")
    parser.add_argument("--namespace", default="ebbtide", help="namespace of Ebbtide; by default ebbtide")
    parser.add_argument("--metrics", action="append", help="URL of a replica's metrics, repeatable; by default through the API server")
    parser.add_argument("--name", default="ebbtide-trial", help="name of stack, group and namespace; by default ebbtide-trial")
    parser.add_argument("--only", default=",".join(STEPS), help=f"steps, separated by commas: {', '.join(STEPS)}")
    parser.add_argument("--output", type=Path, help="file for the table, which is also printed")
    parser.add_argument("--yes", action="store_true", help="does not ask")
    parser.add_argument("--delete", action="store_true", help="removes what an earlier trial left")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if set(options.only) - set(STEPS):
        parser.error(f"--only takes {', '.join(STEPS)}")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", options.name):
        parser.error("--name takes up to 30 lower-case letters, digits and hyphens")
    if not all("=" in each for each in options.tag):
        parser.error("--tag takes KEY=VALUE")
    if not options.group and not options.delete:
        parser.error("--group is required")
    return options


def delete(trial: Trial) -> int:
    """Removes what an earlier trial left."""
    left = trial.remove()
    for each in left:
        print(f"left: {each}", file=sys.stderr)
    if not left and not trial.found:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "the region of the profile"
        print(f"nothing of {trial.name} in {region} and {trial.cluster.context}")
    return 1 if left else 0


def main() -> int:
    """Returns 0, 1 if a check failed or something is left, 2 if the trial can't start, 130 after Ctrl-C."""
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        context = options.context or call(["kubectl", "config", "current-context"], 60).strip()
        trial = Trial(options, Cluster(context))
        if options.delete:
            return delete(trial)
        trial.check()
    except (Stop, CallError) as error:
        print(f"examples/trial: {error}", file=sys.stderr)
        return 2
    code = 0
    try:
        trial.run()
    except (Stop, CallError) as error:
        trial.row("the trial", False, None, f"ended early: {error}")
    except Exception as error:  # what the trial has created must be removed all the same
        traceback.print_exc()
        trial.row("the trial", False, None, f"ended early by a fault of trial.py: {error!r}")
    except KeyboardInterrupt:
        trial.row("the trial", NOT_RUN, None, "interrupted by the user")
        code = 130
    code = clean_up(trial) or code
    if "cloudtrail" in options.only and not code:
        try:
            trial.cloudtrail()
        except (CallError, NotRun) as error:
            trial.row("cloudtrail", NOT_RUN, None, str(error)[:300])
        except KeyboardInterrupt:
            trial.row("cloudtrail", NOT_RUN, None, "interrupted by the user")
    print(trial.table())
    if options.output:
        options.output.write_text(trial.table() + "\n")
    return code or (1 if any(row.result == FAILED for row in trial.rows) else 0)


def clean_up(trial: Trial) -> int:
    """Removes what the trial has created; returns 130 if the user did not wait for that."""
    began = time.time()
    trial.note("--- removing all of it; a second Ctrl-C leaves the rest in place")
    try:
        left = trial.remove()
    except KeyboardInterrupt:
        trial.row("clean-up", False, None, "interrupted by the user; --delete removes the rest")
        return 130
    trial.row("clean-up", not left, time.time() - began, "; ".join(left) or "nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
