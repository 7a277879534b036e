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
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

PASSED, FAILED, NOT_RUN, MEASURED = "passed", "**FAILED**", "not run", "measured"

TAG = "ebbtide-trial"
"""Tag of the stack, the group and its instances; label of the nodes and of the namespace. Its value is the trial's name."""

TARGET = "ebbtide-trial-target"
"""Tag of the instance that an experiment interrupts."""

NODES = 2
"""Number of instances in the group."""

PODS = 6
"""Number of pods in workload.yaml. Its budget lets one leave at a time."""

HOOK_TIMEOUT = 60
"""Heartbeat timeout of the terminating hook in template.yaml, in seconds."""

ACTION = "aws:ec2:send-spot-instance-interruptions"

INJECTION_PRICE, INJECTION_MINUTES = 0.12, 10
"""Price of a minute of an experiment in USD, in the dearest regions, and the minutes of both experiments with a margin."""

INSTANCE_HOURS = 3
"""Upper bound of the instance hours: two instances, and five replacements for some minutes each."""

CONFIRMING = ("marked-for-",)
"""Prefixes of a spot request's status that confirm a warning to Ebbtide: src/pipeline/interruption/confirmation.rs."""

ROLE_SESSION = re.compile(r"AROA\w+:.+")
"""SenderId of a role's session, by which Ebbtide recognizes a hook that notifies its queue directly: src/pipeline/queue.rs."""

CLUSTER_TAGS = re.compile(r"kubernetes\.io/cluster/.+|aws-node-termination-handler/managed")
"""Tags by which Ebbtide's role may complete the hooks of a group, with the defaults of the templates."""

STEPS = ("hook", "spot", "rebalance", "refresh", "health", "cloudtrail")

KINDS = {
    "EC2 Instance-terminate Lifecycle Action": "asg-terminate",
    "EC2 Spot Instance Interruption Warning": "spot",
    "EC2 Instance Rebalance Recommendation": "rebalance",
    "EC2 Spot Instance Rebalance Recommended": "rebalance",
    "AWS Health Event": "health",
}

Json = Any


class CallError(Exception):
    """A call that AWS or the API server refused, or that got no answer."""


class NotRun(Exception):
    """The reason why a step can't run here."""


class Stop(Exception):
    """The reason why the trial can't start or continue."""


def call(words: list[str], within: float) -> str:
    """Runs a program to its end and returns its output."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CallError(f"{words[0]}: {error}") from error
    if done.returncode:
        raise CallError(" ".join(done.stderr.split()) or f"{words[0]} ended with {done.returncode}")
    return done.stdout


def aws(*words: str, within: float = 60) -> Json:
    """Calls AWS by its CLI, with its profiles, and returns the answer."""
    return json.loads(call(["aws", *words, "--output", "json"], within) or "{}")


@dataclass
class Cluster:
    """A cluster, by kubectl."""

    context: str

    def run(self, *words: str, within: float = 60) -> str:
        """Runs kubectl and returns its output."""
        return call(["kubectl", "--context", self.context, *words], within)

    def items(self, *words: str) -> list[Json]:
        """Returns a list of objects."""
        return json.loads(self.run("get", *words, "--output", "json"))["items"]


def epoch(text: str) -> float:
    """Returns the time of an RFC 3339 text, in seconds since the epoch."""
    return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text)).timestamp()


def mask(text: str) -> str:
    """Hides account IDs and the unique part of IDs of roles and users: the table is for an issue."""
    return re.sub(r"\b(A[A-Z]{3})[A-Z0-9]{12,}", r"\1…", re.sub(r"\b\d{12}\b", "ACCOUNT", text))


# What is found.


@dataclass
class Row:
    """A line of the table."""

    check: str
    result: str
    seconds: float | None
    found: str

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}".removesuffix(".0")
        return f"| {self.check} | {self.result} | {seconds} | {mask(self.found).replace('|', '/')} |"


@dataclass
class Copy:
    """A copy of a message that Ebbtide's queue may get, too."""

    way: str
    """How it came: `EventBridge`, `hook` (directly), or `SNS`."""
    kind: str
    at: float
    """AWS's time of the event, mostly in whole seconds."""
    sent: float
    """Time of its arrival in the queue, by SQS."""
    sender: str
    instance: str
    body: Json


def read(message: Json) -> Copy:
    """Returns a message of the queue with the copies."""
    body, way = json.loads(message["Body"]), "hook"
    if body.get("Type") == "Notification":
        body, way = json.loads(body["Message"]), "SNS"
    detail = body
    if "detail-type" in body:
        detail, way = body["detail"], way if way == "SNS" else "EventBridge"
    kind = KINDS.get(body.get("detail-type", ""), body.get("LifecycleTransition", body.get("Event", "unknown")))
    attributes = message["Attributes"]
    at, sent = body.get("time") or body.get("Time"), int(attributes["SentTimestamp"]) / 1000
    return Copy(
        way=way,
        kind=kind,
        at=epoch(at) if at else sent,
        sent=sent,
        sender=attributes.get("SenderId", ""),
        instance=detail.get("instance-id") or detail.get("EC2InstanceId") or "",
        body=body,
    )


@dataclass
class Victim:
    """The node that a step interrupts."""

    name: str
    instance: str
    pods: int


@dataclass
class Observation:
    """What was seen of a drain. Times are seconds since the epoch, and late by up to the pause between two polls."""

    cordoned: float | None = None
    drained: float | None = None
    evicted: float | None = None
    """The first time with fewer pods."""
    least: int = PODS
    """Minimum number of ready pods."""
    blocked: float = 0.0
    """Longest time for which the budget allowed no eviction while pods were to leave."""
    over: float | None = None


class Ec2States(threading.Thread):
    """Asks EC2 about an instance and its spot request without a pause, and keeps each change."""

    def __init__(self, instance: str, request: str) -> None:
        super().__init__(daemon=True)
        self.instance, self.request = instance, request
        self.changes: list[tuple[float, str, str, float | None]] = []
        """Time of the question, status of the request, state of the instance, EC2's time of the status."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Asks until `ended` is set."""
        while not self.ended.wait(0.2):
            asked = time.time()
            try:
                requests = aws("ec2", "describe-spot-instance-requests", "--spot-instance-request-ids", self.request)
                status = requests["SpotInstanceRequests"][0].get("Status", {})
                state = describe(self.instance)["State"]["Name"]
            except (CallError, LookupError):
                continue
            updated = epoch(status["UpdateTime"]) if status.get("UpdateTime") else None
            if not self.changes or self.changes[-1][1:3] != (status.get("Code", ""), state):
                self.changes.append((asked, status.get("Code", ""), state, updated))


def describe(instance: str) -> Json:
    """Returns EC2's description of an instance."""
    found = aws("ec2", "describe-instances", "--instance-ids", instance)["Reservations"]
    return found[0]["Instances"][0]


@dataclass
class Metrics:
    """The sums of Ebbtide's samples over its replicas."""

    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Adds a replica's answer."""
        for line in text.splitlines():
            found = re.match(r"([a-z_]+)(?:\{(.*)\})? (\S+)$", line)
            if found:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                self.samples.append((found[1], labels, float(found[3])))

    def sum(self, metric: str, **labels: str) -> float:
        """Returns the sum of a metric's samples with these labels."""
        return sum(value for name, has, value in self.samples if name == metric and labels.items() <= has.items())


class Trial:
    """One trial: its stack, its namespace, and what it has found."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        self.options, self.cluster = options, cluster
        self.name: str = options.name
        self.began = time.time()
        self.rows: list[Row] = []
        self.copies: list[Copy] = []
        self.instances: set[str] = set()
        """All instances that the trial's group has had. Only these are touched."""
        self.next_group = 0.0
        """Time from which the group is asked again."""
        self.nodes: dict[str, str] = {}
        """Names of their Nodes."""
        self.outputs: dict[str, str] = {}
        self.injects = ""
        """Why there are no experiments; empty if there are."""
        self.tokens: dict[str, str] = {}
        """Answers to the completions of the launch hooks, by the way of completing."""

    # Reports.

    def note(self, text: str) -> None:
        """Shows the progress."""
        print(f"{time.time() - self.began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def row(self, check: str, result: str | bool, seconds: float | None, found: str) -> None:
        """Adds a line to the table."""
        word = {True: PASSED, False: FAILED}.get(result, result) if isinstance(result, bool) else result
        self.rows.append(Row(check, word, seconds, found))
        self.note(f"{word.strip('*')}: {check}: {found}")

    def until(self, what: str, look: Callable[[], Any], within: float) -> Any:
        """Calls `look` until it returns a true value, and meanwhile does what the group needs. Returns None at the end of `within`."""
        self.note(f"waiting until {what}")
        end = time.time() + within
        while True:
            try:
                self.tick()
                value = look()
                if value:
                    return value
            except CallError as error:
                # A call may fail; the deadline ends the wait.
                self.note(f"{error}"[:200])
            if time.time() >= end:
                return None
            time.sleep(0.5)

    # What the group needs all the time.

    def tick(self) -> None:
        """Reads the copies, completes launch hooks, and keeps the pods of others off new nodes."""
        if not self.outputs:
            return
        if time.time() >= self.next_group:
            self.instances |= {each["InstanceId"] for group in self.groups() for each in group["Instances"]}
            self.next_group = time.time() + 5
        for copy in self.receive():
            self.copies.append(copy)
            if copy.kind.endswith("EC2_INSTANCE_LAUNCHING"):
                self.complete(copy)
        for node in self.cluster.items("nodes"):
            instance = node["spec"].get("providerID", "").rpartition("/")[2]
            if instance in self.instances and instance not in self.nodes:
                name = node["metadata"]["name"]
                self.cluster.run("label", "node", name, f"{TAG}={self.name}", "--overwrite")
                self.cluster.run("taint", "node", name, f"{TAG}={self.name}:NoSchedule", "--overwrite")
                self.nodes[instance] = name

    def groups(self) -> list[Json]:
        """Returns the trial's group, if there is one, in a list. A group of this name without the tag is not the trial's."""
        named = aws("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", self.name)["AutoScalingGroups"]
        if not all(is_tagged(each, self.name) for each in named):
            raise Stop(f"the group {self.name} does not have the tag {TAG}: it is left alone")
        return named

    def receive(self) -> list[Copy]:
        """Takes the messages off the queue with the copies."""
        url = ("--queue-url", self.outputs["CopiesUrl"])
        names = ("--attribute-names", "SenderId", "SentTimestamp", "--max-number-of-messages", "10", "--wait-time-seconds", "1")
        messages = aws("sqs", "receive-message", *url, *names).get("Messages", [])
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            aws("sqs", "delete-message-batch", *url, "--entries", json.dumps(entries))
        return [read(each) for each in messages]

    def complete(self, copy: Copy) -> None:
        """Completes a launch hook by its token alone, and once with the right token and another instance."""
        others = sorted(self.instances - {copy.instance})
        way, instance = "token", ()
        if copy.way == "SNS" and others and "token and another instance" not in self.tokens:
            way, instance = "token and another instance", ("--instance-id", others[0])
        answer = self.complete_by(copy, *instance)
        if instance:
            # Whether that has ended the token's action, or that of the other instance, or nothing.
            answer += f"; afterwards, by the token alone: {self.complete_by(copy)}"
        self.tokens.setdefault(way, answer)

    def complete_by(self, copy: Copy, *instance: str) -> str:
        body = copy.body
        hook = ("--auto-scaling-group-name", body["AutoScalingGroupName"], "--lifecycle-hook-name", body["LifecycleHookName"])
        token = ("--lifecycle-action-token", body["LifecycleActionToken"], "--lifecycle-action-result", "CONTINUE")
        try:
            aws("autoscaling", "complete-lifecycle-action", *hook, *token, *instance)
        except CallError as error:
            return re.sub(r"[0-9a-f-]{36}", "TOKEN", re.sub(r"\bi-[0-9a-f]+", "INSTANCE", str(error)))
        return "accepted"

    def mine(self, instance: str) -> str:
        """Returns the instance, which must be the trial's."""
        if instance not in self.instances:
            raise Stop(f"{instance} is not an instance of the trial's group: it is left alone")
        return instance

    # Set-up.

    def check(self) -> None:
        """Reads what the trial needs, asks for consent, and changes nothing."""
        options, cluster = self.options, self.cluster
        server = cluster.run("config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}")
        replicas = self.metrics()
        version = {has["version"] for name, has, _ in replicas.samples if name == "ebbtide_build_info"}
        if not version:
            raise Stop(f"no ready Ebbtide in the namespace {options.namespace} of {cluster.context}: install it first, see docs/install.md")
        identity = aws("sts", "get-caller-identity")
        groups = aws("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", options.group)["AutoScalingGroups"]
        if not groups:
            raise Stop(f"there is no Auto Scaling group {options.group} in this region and account")
        (group,) = groups
        mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("LaunchTemplateSpecification")
        template = group.get("LaunchTemplate") or mixed
        if not template:
            raise Stop(f"{options.group} has no launch template: name a group that has one")
        which = ("--launch-template-id", template["LaunchTemplateId"], "--versions", template.get("Version", "$Default"))
        (found,) = aws("ec2", "describe-launch-template-versions", *which)["LaunchTemplateVersions"]
        data = found["LaunchTemplateData"]
        overrides = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
        kind = data.get("InstanceType") or next((each["InstanceType"] for each in overrides if "InstanceType" in each), "")
        if not data.get("InstanceType"):
            raise Stop(f"the launch template of {options.group} names no instance type: name a group whose template does")
        key, value = options.tag.split("=", 1) if options.tag else self.cluster_tag(group)
        self.parameters = {
            "LaunchTemplateId": template["LaunchTemplateId"],
            "LaunchTemplateVersion": str(found["VersionNumber"]),
            "SubnetIds": group["VPCZoneIdentifier"],
            "TagKey": key,
            "TagValue": value,
            "AsksForSpot": "true" if data.get("InstanceMarketOptions") else "false",
        }
        if self.stacks():
            raise Stop(f"the stack {self.name} exists: --delete removes what an earlier trial left, --name selects another name")
        if cluster.items("namespaces", "--field-selector", f"metadata.name={self.name}"):
            raise Stop(f"the namespace {self.name} exists: --delete removes what an earlier trial left, --name selects another name")
        try:
            aws("fis", "get-action", "--id", ACTION)
        except CallError as error:
            self.injects = f"{ACTION}: {error}"
        self.parameters["FaultInjection"] = "false" if self.injects else "true"
        self.region = group["AutoScalingGroupARN"].split(":")[3]
        kubernetes = json.loads(cluster.run("get", "--raw", "/version"))["gitVersion"]
        self.head = (
            f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, {self.region}, Kubernetes {kubernetes}, Ebbtide {', '.join(sorted(version))} "
            f"({replicas.sum('ebbtide_build_info'):.0f} replicas), {call(['aws', '--version'], 60).split()[0]}, instances {kind}"
        )
        self.confirm(server, identity["Account"], kind)

    def cluster_tag(self, group: Json) -> tuple[str, str]:
        """Returns the tag of a group by which Ebbtide's role may complete its hooks."""
        tags = [(each["Key"], each["Value"]) for each in group["Tags"] if CLUSTER_TAGS.fullmatch(each["Key"])]
        if len(tags) != 1:
            raise Stop(f"{self.options.group} has {len(tags)} tags of a cluster: --tag KEY=VALUE names the one for which Ebbtide's role may act")
        return tags[0]

    def confirm(self, server: str, account: str, kind: str) -> None:
        """Shows what the trial creates and costs, and asks for consent."""
        price = f"about {INSTANCE_HOURS * self.spot_price(kind):.2f} USD for instances"
        if not self.injects:
            price += f", {INJECTION_PRICE * INJECTION_MINUTES:.2f} USD for Fault Injection Service"
        print(
            f"Account {account}, {self.region}; cluster {self.cluster.context}, {server}\n"
            f"Creates the CloudFormation stack {self.name}: an Auto Scaling group of {NODES} spot instances {kind}, like those of\n"
            f"{self.options.group}, two roles, a queue, a topic, a rule. And the namespace {self.name} with {PODS} small pods.\n"
            f"Interrupts and terminates only instances of that group. Removes all of it at the end, also after Ctrl-C.\n"
            f"Costs at most {price}. Takes about half an hour.",
            flush=True,
        )
        if not self.options.yes:
            try:
                answer = input("Continue? [y/N] ")
            except EOFError:
                answer = ""
            if not answer.lower().startswith("y"):
                raise Stop("nothing was changed")

    def spot_price(self, kind: str) -> float:
        """Returns the highest spot price of an instance type now, in USD an hour; 0.5 if EC2 does not show it."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        which = ("--instance-types", kind, "--product-descriptions", "Linux/UNIX", "--start-time", now)
        try:
            history = aws("ec2", "describe-spot-price-history", *which)["SpotPriceHistory"]
        except CallError:
            history = []
        return max((float(each["SpotPrice"]) for each in history), default=0.5)

    def stacks(self) -> list[Json]:
        """Returns the trial's stack, if there is one, in a list."""
        try:
            return aws("cloudformation", "describe-stacks", "--stack-name", self.name)["Stacks"]
        except CallError as error:
            if "does not exist" in str(error):
                return []
            raise

    def set_up(self) -> None:
        """Creates the stack, and waits for its nodes."""
        began = time.time()
        given = [{"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()]
        body = ("--template-body", f"file://{HERE / 'template.yaml'}", "--parameters", json.dumps(given))
        rights = ("--capabilities", "CAPABILITY_IAM", "--tags", f"Key={TAG},Value={self.name}")
        aws("cloudformation", "create-stack", "--stack-name", self.name, *body, *rights)

        def complete() -> Json:
            (stack,) = self.stacks()
            if "ROLLBACK" in stack["StackStatus"] or "FAILED" in stack["StackStatus"]:
                events = aws("cloudformation", "describe-stack-events", "--stack-name", self.name)["StackEvents"]
                why = [each.get("ResourceStatusReason", "") for each in events if each["ResourceStatus"].endswith("FAILED")]
                raise Stop(f"the stack could not be created: {why[-1] if why else stack['StackStatus']}")
            return stack if stack["StackStatus"] == "CREATE_COMPLETE" else None

        stack = self.until("the stack is complete", complete, 600)
        if not stack:
            raise Stop("the stack is not complete after ten minutes")
        self.outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
        aws("autoscaling", "set-desired-capacity", "--auto-scaling-group-name", self.name, "--desired-capacity", str(NODES))
        if not self.until(f"{NODES} nodes are Ready", lambda: len(self.ready()) >= NODES, 900):
            activities = aws("autoscaling", "describe-scaling-activities", "--auto-scaling-group-name", self.name)["Activities"]
            why = next((each["StatusMessage"] for each in activities if each.get("StatusMessage")), "their Nodes did not come, or are not Ready")
            raise Stop(f"{len(self.ready())} of {NODES} nodes after 15 minutes: {why}")
        self.row("set-up: stack, instances, nodes", True, time.time() - began, f"{NODES} nodes are Ready")

    def ready(self) -> list[Json]:
        """Returns the trial's nodes that are Ready and take pods."""

        def is_ready(node: Json) -> bool:
            status = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions", [])}
            return status.get("Ready") == "True" and not node["spec"].get("unschedulable")

        return [each for each in self.cluster.items("nodes", "--selector", f"{TAG}={self.name}") if is_ready(each)]

    def pods(self) -> list[Json]:
        """Returns the workload's pods."""
        return self.cluster.items("pods", "--namespace", self.name)

    def place(self) -> Victim:
        """Runs the workload anew on two nodes, and returns the node with the most pods."""
        workload = (HERE / "workload.yaml").read_text().replace("NAME", self.name)
        here = ("--namespace", self.name)
        if self.cluster.items("namespaces", "--field-selector", f"metadata.name={self.name}"):
            self.cluster.run("delete", "deployment/web", *here, "--ignore-not-found", "--wait=false")
            if not self.until("the pods of the last step are gone", lambda: not self.pods(), 180):
                raise Stop("the pods of the last step do not leave")
        if not self.until(f"{NODES} nodes take pods", lambda: len(self.ready()) >= NODES, 900):
            raise NotRun(f"only {len(self.ready())} of {NODES} nodes are Ready and take pods")
        made = subprocess.run(
            ["kubectl", "--context", self.cluster.context, "apply", "--filename", "-"],
            input=workload,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if made.returncode:
            raise Stop(f"the workload could not be created: {made.stderr.strip()}")

        def runs() -> bool:
            ready = [each for each in self.pods() if is_running(each)]
            return len(ready) == PODS

        if not self.until(f"{PODS} pods are ready", runs, 300):
            raise NotRun(f"not all of {PODS} pods became ready: kubectl --namespace {self.name} describe pods")
        on = [each["spec"]["nodeName"] for each in self.pods()]
        name = max(set(on), key=on.count)
        (instance,) = (instance for instance, node in self.nodes.items() if node == name)
        foreign = [
            f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in self.cluster.items("pods", "--all-namespaces", "--field-selector", f"spec.nodeName={name}")
            if each["metadata"]["namespace"] != self.name
            and not {owner["kind"] for owner in each["metadata"].get("ownerReferences", [])} & {"DaemonSet", "Node"}
        ]
        if foreign:
            raise NotRun(f"pods that are not the trial's run on the node: {', '.join(foreign[:5])}")
        return Victim(name, self.mine(instance), on.count(name))

    # Observations.

    def metrics(self) -> Metrics:
        """Returns Ebbtide's metrics now."""
        found = Metrics()
        if self.options.metrics:
            for url in self.options.metrics:
                try:
                    with urllib.request.urlopen(url, timeout=30) as answer:
                        found.add(answer.read().decode())
                except OSError as error:
                    raise CallError(f"{url}: {error}") from error
            return found
        namespace = self.options.namespace
        for pod in self.cluster.items("pods", "--namespace", namespace, "--selector", "app.kubernetes.io/name=ebbtide"):
            name = pod["metadata"]["name"]
            if is_running(pod):
                found.add(self.cluster.run("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}:8080/proxy/metrics"))
        return found

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
            now = time.time()
            nodes = {each["metadata"]["name"]: each for each in self.cluster.items("nodes", "--selector", f"{TAG}={self.name}")}
            objects = self.cluster.items("pods,poddisruptionbudgets", "--namespace", self.name)
            pods = [each for each in objects if each["kind"] == "Pod"]
            budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
            on = [each for each in pods if each["spec"].get("nodeName") == victim.name]
            node = nodes.get(victim.name)
            if node and node["spec"].get("unschedulable") and "ebbtide/kind" in node["metadata"]["labels"]:
                seen.cordoned = seen.cordoned or now
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
            return bool(seen.over)

        self.until(f"{victim.name} is drained and the interruption is over", look, within)
        return seen

    # Steps.

    def hook(self) -> None:
        """Has the group terminate an instance: the hook must wait for the drain, by heartbeats, and then not any longer."""
        victim, before, start = self.place(), self.metrics(), time.time()
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
        is_right = bool(seen.over and seen.drained and seen.over >= seen.drained and completed)
        self.row("hook: completed once the node is drained", is_right, ended, f"{late}; completions: {completed:.0f}")
        beats = self.change(before, "ebbtide_heartbeats_total", result="sent")
        took = (seen.over or time.time()) - copy.at
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
        self.row(f"{step}: cordon", cordon is not None, cordon, "after the event's time" if cordon is not None else "no cordon by Ebbtide was seen")
        self.until("the drain is counted", lambda: self.change(before, "ebbtide_notices_total", kind=kind, outcome="drained"), 30)
        drained = self.change(before, "ebbtide_notices_total", kind=kind, outcome="drained")
        took = None if seen.drained is None else seen.drained - at
        evicted, deleted = (
            self.change(before, f"ebbtide_{what}_total", result=result)
            for what, result in (("evictions", "evicted"), ("deletions", "deleted"))
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

    def experiment(self, step: str, minutes: int) -> None:
        """Interrupts a spot instance with Fault Injection Service."""
        if self.injects:
            raise NotRun(self.injects)
        victim = self.place()
        request = describe(victim.instance).get("SpotInstanceRequestId")
        if not request:
            raise NotRun("the instance is not a spot instance")
        aws("ec2", "create-tags", "--resources", self.mine(victim.instance), "--tags", f"Key={TARGET},Value={step}")
        before, states, start = self.metrics(), Ec2States(victim.instance, request), time.time()
        states.start()
        try:
            template = self.outputs["SpotTemplate" if step == "spot" else "RebalanceTemplate"]
            made = aws("fis", "start-experiment", "--experiment-template-id", template)["experiment"]["id"]
            recommended, warned, seen = self.warnings(step, victim, made, minutes)
            if warned:
                end = warned.at + 120

                def is_over() -> bool:
                    return time.time() > end + 60 or (bool(states.changes) and states.changes[-1][2] not in ("pending", "running"))

                seen = self.watch(victim, is_over, 300, seen)
        finally:
            states.ended.set()
            states.join(130)
        if recommended:
            self.row(f"{step}: arrival of the recommendation", MEASURED, recommended.sent - recommended.at, f"{recommended.at - start:.0f} s after the start of the experiment")
        if not warned:
            return
        self.row(f"{step}: arrival of the warning", MEASURED, warned.sent - warned.at, f"{warned.at - start:.0f} s after the start of the experiment")
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
        early = seen.cordoned is not None and seen.cordoned < warned.sent
        ended = self.change(before, "ebbtide_notices_total", kind="rebalance")
        after = seen.cordoned - recommended.at if seen.cordoned else None
        moved = "pods were evicted" if seen.evicted and seen.evicted < warned.sent else "no pod was moved before the warning"
        found = f"cordoned: {'yes' if early else 'no'}; {moved}; notices `rebalance` that ended: {ended:.0f}"
        # Other settings than the default, cordon, end the notice at once.
        self.row("rebalance: the node is cordoned, or the notice ended as your settings say", early or ended > 0, after if early else None, found)

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

    def spot(self) -> None:
        """Recommendation and warning at the same time."""
        self.experiment("spot", 2)

    def rebalance(self) -> None:
        """The recommendation two minutes before the warning."""
        self.experiment("rebalance", 4)

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

    def health(self) -> None:
        """Reads how AWS Health has named instances."""
        home = ("--region", "us-gov-west-1" if self.region.startswith("us-gov") else "us-east-1")
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
            found_text = f"{len(some)} calls; parameters: {', '.join(keys)}; resources: {', '.join(resources) or 'none'}; names the instance: {'yes' if names else 'no'}"
            self.row(f"CloudTrail: completions {title}", MEASURED if some else NOT_RUN, None, found_text if some else "none is shown")
        errors = sorted({f"{each['errorCode']}: {each.get('errorMessage', '')}" for each in ebbtide if each.get("errorCode")})
        if ebbtide:
            self.row("CloudTrail: AWS accepts Ebbtide's completions", not errors, None, "; ".join(errors) or "no error")

    # The whole.

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

    def remove(self) -> list[str]:
        """Removes what the trial has created; returns what is left."""
        left: list[str] = []

        def attempt(what: str, action: Callable[[], Any]) -> Any:
            try:
                return action()
            except Exception as error:  # the rest must be removed all the same
                left.append(f"{what}: {error}")
                return None

        labelled = ("--selector", f"{TAG}={self.name}", "--field-selector", f"metadata.name={self.name}")
        spaces = attempt("the namespace", lambda: self.cluster.items("namespaces", *labelled))
        if spaces:
            attempt("the namespace", lambda: self.cluster.run("delete", "namespace", self.name, "--wait=false"))
        stacks = attempt("the stack", self.stacks) or []
        if stacks and is_tagged(stacks[0], self.name):
            self.outputs = {}
            attempt("the group", self.empty_group)
            attempt("the stack", lambda: aws("cloudformation", "delete-stack", "--stack-name", self.name))
            if attempt("the stack", lambda: self.until("the stack is deleted", lambda: not self.stacks() or self.is_stuck(), 600)) is None:
                left.append(f"the stack {self.name}, which is still being deleted")
        elif stacks:
            left.append(f"the stack {self.name}, which does not have the tag {TAG}: it is not the trial's")
        if spaces and not self.until("the namespace is gone", lambda: not self.cluster.items("namespaces", *labelled), 300):
            left.append(f"the namespace {self.name}")
        return left

    def is_stuck(self) -> bool:
        (stack,) = self.stacks()
        if stack["StackStatus"] == "DELETE_FAILED":
            raise Stop(f"{self.name} could not be deleted: {stack.get('StackStatusReason', '')}")
        return False

    def empty_group(self) -> None:
        """Ends the instances of the trial's group without its hooks, which would keep each for its timeout."""
        which = ("--auto-scaling-group-name", self.name)
        if self.groups():
            for hook in aws("autoscaling", "describe-lifecycle-hooks", *which)["LifecycleHooks"]:
                aws("autoscaling", "delete-lifecycle-hook", *which, "--lifecycle-hook-name", hook["LifecycleHookName"])
            aws("autoscaling", "update-auto-scaling-group", *which, "--min-size", "0", "--desired-capacity", "0")

        if not self.until("the instances are gone", lambda: not any(each["Instances"] for each in self.groups()), 300):
            raise Stop(f"the group {self.name} still has instances")

    def table(self) -> str:
        """Returns the report in Markdown."""
        counts = [f"{sum(row.result == word for row in self.rows)} {word.strip('*')}" for word in (PASSED, FAILED, MEASURED, NOT_RUN)]
        lines = ["### Ebbtide's trial on an AWS account", "", f"{mask(self.head)}. {', '.join(counts)}; {(time.time() - self.began) / 60:.0f} minutes.", ""]
        return "\n".join([*lines, "| check | result | seconds | found |", "| --- | --- | ---: | --- |", *map(str, self.rows)])


def is_tagged(made: Json, name: str) -> bool:
    """Returns whether a stack or a group is the trial's of this name."""
    return any((tag["Key"], tag["Value"]) == (TAG, name) for tag in made.get("Tags", []))


def is_running(pod: Json) -> bool:
    """Returns whether a pod is ready and is not to leave."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


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
    parser.add_argument("--tag", help="KEY=VALUE, the tag of groups whose hooks Ebbtide's role may complete; by default from the group")
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
    if options.tag and "=" not in options.tag:
        parser.error("--tag takes KEY=VALUE")
    if not options.group and not options.delete:
        parser.error("--group is required")
    return options


def delete(trial: Trial) -> int:
    """Removes what an earlier trial left."""
    left = trial.remove()
    for each in left:
        print(f"left: {each}", file=sys.stderr)
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
