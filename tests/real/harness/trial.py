"""AWS for examples/trial: moto, and what the trial needs besides: hooks that hold, and a node for each instance.

With `whole` also stand-ins for what moto lacks: experiments, launch hooks and their SenderId, instance refreshes,
CloudTrail, Health. They follow AWS's documentation, which is all that is known of it here.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cfn_template

from . import messages
from .aws import ACCOUNT, MANAGED_TAG, ZONE
from .hooks import LAUNCHING, TERMINATING, Action, Hook
from .kube import NODES
from .queues import REGION, client
from .recorder import COMPLETE, RECEIVE, SPOT_REQUESTS, Answer, Call, Recorder, _done, _spot_requests, _xml
from .wait import eventually
from .world import Node, World, cordoned

TEMPLATE = Path(__file__).parents[3] / "examples" / "trial" / "template.yaml"

SESSION = "AROAEXAMPLEEXAMPLE123:AutoScaling-SendNotification"
"""SenderId of a hook, a session of its role."""


class TrialAws(Recorder):
    """The endpoint of the trial. The service has its own, the world's, which shares the lifecycle actions."""

    def __init__(self, world: World, *, whole: bool) -> None:
        super().__init__(world.aws.address)
        self.world, self.whole = world, whole
        self.actions = world.recorder.actions
        self.group = ""
        """Name of the trial's group, once its stack exists."""
        self.hooks: list[Hook] = []
        self.refresh: threading.Thread | None = None
        self._joined: set[str] = set()
        self._marked: set[str] = set()
        self._ec2, self._groups, self._sqs = (client(each, world.aws.address) for each in ("ec2", "autoscaling", "sqs"))
        self._joining = threading.Lock()
        self.after = world.recorder.after = self._completed

    def source(self, name: str) -> str:
        """Creates a group of the cluster, whose launch template the trial uses; returns its name."""
        template = {"ImageId": "ami-12c6146b", "InstanceType": "t3.small"}
        made = self._ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=template)["LaunchTemplate"]
        (subnet,) = self._ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
        self._groups.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchTemplate={"LaunchTemplateId": made["LaunchTemplateId"], "Version": "1"},
            MinSize=0,
            MaxSize=0,
            VPCZoneIdentifier=subnet["SubnetId"],
            Tags=[{"Key": MANAGED_TAG, "Value": "true"}],
        )
        return name

    def instances(self) -> list[str]:
        """Returns the instances of the trial's group."""
        groups = self._groups.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])["AutoScalingGroups"]
        return [each["InstanceId"] for group in groups for each in group["Instances"]]

    def answer(
        self, action: str, asked: dict[str, Any], forward: Callable[[], Answer], caller: str, *, in_json: bool
    ) -> Answer:
        """Answers what moto lacks, and lets moto's answers have consequences."""
        own = getattr(self, f"_answer_{action}", None)
        if self.whole:
            own = own or getattr(self, f"_whole_{action}", None) or self._experiments(action)
        if own:
            return super().answer(action, asked, lambda: own(asked), caller, in_json=in_json)
        answer = super().answer(action, asked, forward, caller, in_json=in_json)
        if action == "CreateStack" and answer.status == 200:
            self._create_hooks(asked["StackName"])
        if action in ("SetDesiredCapacity", "UpdateAutoScalingGroup"):
            self._join()
        if self.whole:
            answer = self._completed_answer(action, answer)
        return answer

    # Hooks.

    def _create_hooks(self, stack: str) -> None:
        """moto's CloudFormation lacks hooks."""
        pseudo = {"AWS::StackName": stack, "AWS::AccountId": ACCOUNT}
        template = cfn_template.Stack(TEMPLATE, {}, pseudo, lambda _: stack)
        for each in template.resources("AWS::AutoScaling::LifecycleHook").values():
            names = (each["AutoScalingGroupName"], each["LifecycleHookName"])
            self.hooks.append(Hook(*names, each["HeartbeatTimeout"], each["LifecycleTransition"]))
            without = {key: value for key, value in each.items() if key not in ("NotificationTargetARN", "RoleARN")}
            self._groups.put_lifecycle_hook(**without)
        self.group = stack

    def _answer_TerminateInstanceInAutoScalingGroup(self, asked: dict[str, Any]) -> Answer:
        self._terminate(asked["InstanceId"])
        return _done("TerminateInstanceInAutoScalingGroup")

    def _terminate(self, instance: str) -> Action:
        (hook,) = (each for each in self.hooks if each.transition == TERMINATING)
        action = self.actions.begin(hook, instance)
        self.world.aws.put(messages.terminate_action(action))
        return action

    def _completed(self, call: Call) -> None:
        """Ends an instance whose terminating hook is completed. The group starts another one."""
        if call.action != COMPLETE or call.status != 200:
            return
        token = call.asked.get("LifecycleActionToken")
        (action,) = (each for each in self.actions.all() if each.token == token)
        if action.hook.transition == TERMINATING:
            self._end(action.instance)

    def _end(self, instance: str) -> None:
        self._groups.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=False)
        self._join()

    def _join(self) -> None:
        """Registers a node for each new instance, and removes those of ended ones, as the cloud controller does."""
        with self._joining:
            there = set(self.instances())
            for node in self.world.nodes:
                if node.instance in self._joined - there:
                    self.leave(node)
                    self._joined.discard(node.instance)
            for instance in sorted(there - self._joined):
                self._joined.add(instance)
                self.world.register(instance)
                if self.whole:
                    self._launch(instance)

    def leave(self, node: Node) -> None:
        """Removes the Node of an instance that has ended, as the cloud controller does."""
        self.world.kube.delete(f"{NODES}/{node.name}")

    # What only `whole` has.

    def _launch(self, instance: str) -> None:
        """Sends what launch hooks send: one to the queue, one to the topic, whose subscriber is the queue."""
        queue = self._sqs.get_queue_url(QueueName=f"{self.group}-copies")["QueueUrl"]
        for hook in self.hooks:
            if hook.transition == LAUNCHING:
                body = messages.bare(self.actions.begin(hook, instance))
                self.world.aws.send(queue, messages.sns(body) if hook.name.endswith("topic") else body)

    def _completed_answer(self, action: str, answer: Answer) -> Answer:
        if action == RECEIVE:
            received = json.loads(answer.body)
            for each in received.get("Messages", []):
                is_hook = "LifecycleActionToken" in json.loads(each["Body"])
                each.setdefault("Attributes", {})["SenderId"] = SESSION if is_hook else "AIDAEXAMPLEEXAMPLE123"
            return replace(answer, body=json.dumps(received).encode())
        if action == "DescribeInstances":
            request = rb"\1<spotInstanceRequestId>sir-\2</spotInstanceRequestId>"
            return replace(answer, body=re.sub(rb"(<instanceId>i-(\w+)</instanceId>)", request, answer.body))
        if action == SPOT_REQUESTS:
            return _spot_requests(sorted(self._marked))
        if action == "DescribeStacks":
            made = b"<member><OutputKey>%s</OutputKey><OutputValue>EXT1</OutputValue></member>"
            outputs = b"".join([b"<Outputs>", made % b"SpotTemplate", made % b"RebalanceTemplate"])
            return replace(answer, body=answer.body.replace(b"<Outputs>", outputs))
        return answer

    def _experiments(self, action: str) -> Callable[[dict[str, Any]], Answer] | None:
        """Returns what answers a path of Fault Injection Service."""
        if action.startswith("/actions/"):
            return lambda _: _json({"action": {"id": action}})
        if action == "/experiments":
            return self._start_experiment
        if action.startswith("/experiments/"):
            return lambda _: _json({"experiment": {"id": "EXP1", "state": {"status": "running"}}})
        return None

    def _start_experiment(self, asked: dict[str, Any]) -> Answer:
        wanted = {"tag-key": "ebbtide-trial-target", "instance-state-name": "running"}
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        ((made,),) = (each["Instances"] for each in self._ec2.describe_instances(Filters=filters)["Reservations"])
        (step,) = (each["Value"] for each in made["Tags"] if each["Key"] == "ebbtide-trial-target")
        threading.Thread(target=self._interrupt, args=(made["InstanceId"], step), daemon=True).start()
        return _json({"experiment": {"id": "EXP1"}})

    def _interrupt(self, instance: str, step: str) -> None:
        """Recommends and warns, and ends the instance once it is drained: the two minutes would only be waited for."""
        self.world.aws.put(messages.rebalance(instance))
        (node,) = (each for each in self.world.nodes if each.instance == instance)
        if step == "rebalance":
            eventually("the node is cordoned", lambda: cordoned(self.world.see(node)))
            time.sleep(12)  # Two minutes on AWS. The trial polls, and compares times of whole seconds.
        self._marked.add(instance)
        self.world.aws.put(messages.spot_warning(instance))
        eventually("the interrupted node is empty", lambda: not self.world.pods(node))
        self._marked.discard(instance)
        self._end(instance)

    def _whole_StartInstanceRefresh(self, asked: dict[str, Any]) -> Answer:
        self.refresh = threading.Thread(target=self._replace, args=(self.instances(),), daemon=True)
        self.refresh.start()
        return _result("StartInstanceRefresh", "<InstanceRefreshId>r-1</InstanceRefreshId>")

    def _replace(self, old: list[str]) -> None:
        for instance in old:
            action = self._terminate(instance)
            eventually("the hook is completed", lambda action=action: action.result)

    def _whole_DescribeInstanceRefreshes(self, asked: dict[str, Any]) -> Answer:
        assert self.refresh
        status = "InProgress" if self.refresh.is_alive() else "Successful"
        found = f"<member><Status>{status}</Status></member>"
        return _result("DescribeInstanceRefreshes", f"<InstanceRefreshes>{found}</InstanceRefreshes>")

    def _whole_LookupEvents(self, asked: dict[str, Any]) -> Answer:
        def events(calls: list[Call], agent: str) -> list[dict[str, str]]:
            given = [{key[0].lower() + key[1:]: value for key, value in each.asked.items()} for each in calls]
            return [{"CloudTrailEvent": json.dumps({"userAgent": agent, "requestParameters": each})} for each in given]

        own, service = (each.calls(COMPLETE) for each in (self, self.world.recorder))
        return _json({"Events": events(own, "aws-cli/2.0") + events(service, "aws-sdk-rust/1.0")})

    def _whole_DescribeEvents(self, asked: dict[str, Any]) -> Answer:
        return _json({"events": [{"arn": "arn:aws:health:eu-west-1::event/EC2/RETIREMENT/1"}]})

    def _whole_DescribeAffectedEntities(self, asked: dict[str, Any]) -> Answer:
        return _json({"entities": [{"entityValue": f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-0123456789abcdef0"}]})


def _json(content: dict[str, Any]) -> Answer:
    return Answer(200, "application/x-amz-json-1.1", json.dumps(content).encode())


def _result(action: str, content: str) -> Answer:
    return _xml(f"{action}Response", 200, f"<{action}Result>{content}</{action}Result>")
