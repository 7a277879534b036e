"""What the trial creates: its stack, its nodes and its pods. Nothing else is touched."""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from calls import CallError, Cluster, Json, NotRun, Stop, aws, call
from observed import CLOCK, PODS, Copy, Metrics, Victim, is_running, read
from report import Report

HERE = Path(__file__).resolve().parent

TAG = "ebbtide-trial"
"""Tag of the stack, the group and its instances; label of the nodes and of the namespace. Its value is the trial's name."""

NODES = 2
"""Number of instances in the group."""

ACTION = "aws:ec2:send-spot-instance-interruptions"

INJECTION_PRICE, INJECTION_MINUTES = 0.12, 10
"""Price of a minute of an experiment in USD, in the dearest regions, and the minutes of both experiments with a margin."""

INSTANCE_HOURS = 3
"""Upper bound of the instance hours: two instances, and five replacements for some minutes each."""

MANAGED_TAG = "aws-node-termination-handler/managed"
"""Default of Ebbtide's settings.managedTag."""

CLUSTER_TAGS = re.compile(rf"kubernetes\.io/cluster/.+|{MANAGED_TAG}")
"""Tags of groups whose hooks Ebbtide's role may complete, and whose instances it handles, with the defaults of templates and chart."""


class Made(Report):
    """The stack, the namespace, and what keeps them in order."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        super().__init__()
        self.options, self.cluster = options, cluster
        self.name: str = options.name
        self.copies: list[Copy] = []
        self.instances: set[str] = set()
        """All instances that the trial's group has had. Only these are touched."""
        self.next_group = 0.0
        """Time from which the group is asked again."""
        self.nodes: dict[str, str] = {}
        """Names of their Nodes."""
        self.outputs: dict[str, str] = {}
        self.region = ""
        self.parameters: dict[str, str] = {}
        self.ahead = 0.0
        """Lead of this machine's clock over AWS's, in seconds."""
        self.injects = ""
        """Why there are no experiments; empty if there are."""
        self.found = False
        """Whether the last clean-up has found a stack or a namespace."""
        self.tokens: dict[str, str] = {}
        """Answers to the completions of the launch hooks, by the way of completing."""

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
        """Returns AWS's answer to a completion."""
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

    # Before anything is created.

    def check(self) -> None:
        """Reads what the trial needs, asks for consent, and changes nothing."""
        options, cluster = self.options, self.cluster
        server = cluster.run("config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}")
        if any(map(is_dry_run, self.replicas())):
            raise Stop(f"Ebbtide in the namespace {options.namespace} is a dry run, which drains nothing: set settings.dryRun to false first")
        metrics = self.metrics()
        version = {has["version"] for name, has, _ in metrics.samples if name == "ebbtide_build_info"}
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
        if not kind:
            raise Stop(f"{options.group} names no instance type: name a group that does")
        tags = self.tags(group)
        self.refuse_settings(group, tags)
        self.parameters = {
            "LaunchTemplateId": template["LaunchTemplateId"],
            "LaunchTemplateVersion": str(found["VersionNumber"]),
            "SubnetIds": group["VPCZoneIdentifier"],
            "InstanceType": kind,
            "AsksForSpot": "true" if data.get("InstanceMarketOptions") else "false",
        }
        for which, (key, value) in zip(("Tag", "SecondTag"), tags.items()):
            self.parameters |= {f"{which}Key": key, f"{which}Value": value}
        if self.stacks():
            raise Stop(f"the stack {self.name} exists: --delete removes what an earlier trial left, --name selects another name")
        if cluster.items("namespaces", "--field-selector", f"metadata.name={self.name}"):
            raise Stop(f"the namespace {self.name} exists: --delete removes what an earlier trial left, --name selects another name")
        try:
            aws("fis", "get-action", "--id", ACTION)
        except CallError as error:
            self.injects = f"{ACTION}: {error}"[:160]
        self.parameters["FaultInjection"] = "false" if self.injects else "true"
        self.region = group["AutoScalingGroupARN"].split(":")[3]
        kubernetes = json.loads(cluster.run("get", "--raw", "/version"))["gitVersion"]
        self.head = (
            f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, {self.region}, Kubernetes {kubernetes}, Ebbtide {', '.join(sorted(version))} "
            f"({metrics.sum('ebbtide_build_info'):.0f} replicas), {call(['aws', '--version'], 60).split()[0]}, instances {kind}"
        )
        self.confirm(server, identity["Account"], kind)

    def tags(self, group: Json) -> dict[str, str]:
        """Returns the tags of a group that let Ebbtide's role complete its hooks, and that Ebbtide may require on its instances."""
        found = {each["Key"]: each["Value"] for each in group["Tags"] if CLUSTER_TAGS.fullmatch(each["Key"])}
        tags = dict(each.split("=", 1) for each in self.options.tag) or found
        if len(tags) not in (1, 2):
            raise Stop(f"{self.options.group} has {len(tags)} tags of a cluster: --tag KEY=VALUE, once or twice, names those that Ebbtide needs")
        return tags

    def refuse_settings(self, group: Json, tags: dict[str, str]) -> None:
        """Stops if Ebbtide would leave the trial's nodes alone, which are like those of a group."""
        members = {each["InstanceId"] for each in group["Instances"]}

        def nodes(*which: str) -> list[Json]:
            return [each for each in self.cluster.items("nodes", *which) if each["spec"].get("providerID", "").rpartition("/")[2] in members]

        for pod in self.replicas():
            selector = setting(pod, "node-selector")
            if selector and not nodes():
                raise Stop(f"{self.options.group} has no nodes in this cluster to compare with settings.nodeSelector, {selector}: name one that has")
            if selector and not nodes("--selector", selector):
                raise Stop(f"settings.nodeSelector, {selector}, excludes the nodes of {self.options.group}: name another group")
            key, _, value = (setting(pod, "managed-tag") or MANAGED_TAG).partition("=")
            if setting(pod, "require-tag") == "true" and (key not in tags or value not in ("", tags[key])):
                raise Stop(f"settings.requireTag asks for the tag {key}, which the trial's group would lack: add it by --tag")

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

    # Set-up.

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
        self.compare_clocks()
        self.row("set-up: stack, instances, nodes", True, time.time() - began, f"{NODES} nodes are Ready")

    def compare_clocks(self) -> None:
        """Sends a message to the queue with the copies: its time is SQS's."""
        before = time.time()
        aws("sqs", "send-message", "--queue-url", self.outputs["CopiesUrl"], "--message-body", json.dumps({"Event": CLOCK}))
        middle = (before + time.time()) / 2
        clock = self.until("the clocks are compared", lambda: next((each for each in self.copies if each.kind == CLOCK), None), 60)
        # The program takes about a second to call.
        self.ahead = middle - clock.sent if clock and abs(middle - clock.sent) > 2 else 0.0

    def now(self) -> float:
        """Returns the time by AWS's clock, in seconds since the epoch."""
        return time.time() - self.ahead

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
            if not self.until("the pods of the last step are gone", lambda: not self.pods(), 300):
                raise NotRun("pods of the last step have not left")
        if not self.until(f"{NODES} nodes take pods", lambda: len(self.ready()) >= NODES, 900):
            raise NotRun(f"only {len(self.ready())} of {NODES} nodes are Ready and take pods")
        self.cluster.run("apply", "--filename", "-", given=workload)

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
        for pod in self.replicas():
            if is_running(pod):
                address = f"{pod['metadata']['name']}:{metrics_port(pod)}"
                found.add(self.cluster.run("get", "--raw", f"/api/v1/namespaces/{self.options.namespace}/pods/{address}/proxy/metrics"))
        return found

    def replicas(self) -> list[Json]:
        """Returns the pods of Ebbtide."""
        return self.cluster.items("pods", "--namespace", self.options.namespace, "--selector", "app.kubernetes.io/name=ebbtide")

    # Clean-up.

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
        self.found = bool(spaces or stacks)
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
        """Returns False while the stack is being deleted."""
        for stack in self.stacks():
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


def is_tagged(made: Json, name: str) -> bool:
    """Returns whether a stack or a group is the trial's of this name."""
    return any((tag["Key"], tag["Value"]) == (TAG, name) for tag in made.get("Tags", []))


def metrics_port(pod: Json) -> int:
    """Returns the port of a replica's metrics, by its name in the chart."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports", []))
    return next((port["containerPort"] for port in ports if port.get("name") == "metrics"), 8080)


def is_dry_run(pod: Json) -> bool:
    """Returns whether a replica runs with --dry-run."""
    return setting(pod, "dry-run") == "true"


def setting(pod: Json, flag: str) -> str:
    """Returns a setting of a replica, which its extraArgs set or else the chart's variable; empty if neither does."""
    containers = pod["spec"]["containers"]
    for words in (each.get("args", []) for each in containers):
        for word, following in zip(words, [*words[1:], "--"]):
            name, is_given, value = word.partition("=")
            if name == f"--{flag}":
                return value if is_given else "true" if following.startswith("-") else following
    variable = f"EBBTIDE_{flag.upper().replace('-', '_')}"
    return next((each.get("value", "") for one in containers for each in one.get("env", []) if each["name"] == variable), "")
