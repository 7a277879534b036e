"""AWS as a user sets it up, on moto: a queue, instances with their tags, groups with their hooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import cfn_template
import requests

from .hooks import TERMINATING, Hook
from .process import Process, free_port
from .queues import REGION, Queues, client
from .wait import eventually

ZONE = "eu-west-1a"
ACCOUNT = "123456789012"
MANAGED_TAG = "aws-node-termination-handler/managed"

_IMAGE = "ami-12c6146b"

_ONE_BY_ONE = """
from moto import server

run = server.run_simple
server.run_simple = lambda *given, **named: run(*given, **named | {"threaded": False})
server.main()
"""
"""moto's server, which answers one request at a time. In threads, its queues give one message to two receives, which SQS
rarely does, and lose what is sent or deleted at the same time, which SQS never does."""


class Aws(Queues):
    """moto's server with its queues, and the tests' own calls, which bypass the recorder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", free_port()))
        host, port = self.address
        command = [sys.executable, "-c", _ONE_BY_ONE, "--host", host, "--port", str(port)]
        self.process = Process("moto", command, folder / "moto.log")
        try:
            eventually("moto answers", self._answers, within=300)
        except BaseException:
            self.process.stop()
            raise
        self._ec2 = client("ec2", self.address)
        self._groups = client("autoscaling", self.address)
        self._events = client("events", self.address)
        self._stacks = client("cloudformation", self.address)
        self._roles = client("iam", self.address)
        self._balancers = client("elbv2", self.address)
        self._groups.create_launch_configuration(
            LaunchConfigurationName="nodes", ImageId=_IMAGE, InstanceType="t3.small"
        )

    def stop(self) -> None:
        """Stops moto's server."""
        self.process.stop()

    def rule(self, name: str, pattern: dict[str, Any], target: str) -> None:
        """Creates a rule that sends to a target."""
        self._events.put_rule(Name=name, EventPattern=json.dumps(pattern))
        self._events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": target}])

    def remove_rule(self, name: str) -> None:
        """Deletes a rule."""
        self._events.remove_targets(Rule=name, Ids=["queue"])
        self._events.delete_rule(Name=name)

    def group_of(self, group: str, instance: str, hook: str, heartbeat_timeout: int) -> None:
        """Creates a group of this instance, with a terminating hook."""
        self.hook(group, hook, heartbeat_timeout, TERMINATING, most=1)
        self._groups.attach_instances(AutoScalingGroupName=group, InstanceIds=[instance])

    def enlarge(self, group: str, instance: str) -> None:
        """Adds an instance to a group, which has room for more then."""
        self._groups.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=9)
        self._groups.attach_instances(AutoScalingGroupName=group, InstanceIds=[instance])

    def attach(self, group: str, instances: Sequence[str]) -> None:
        """Adds instances to an empty group."""
        self._groups.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=len(instances))
        self._groups.attach_instances(AutoScalingGroupName=group, InstanceIds=list(instances))

    def target_group(self, name: str, group: str, instance: str, port: int) -> str:
        """Creates a target group of an Auto Scaling group's instance, whose targets moto registers itself; returns its ARN."""
        vpc = self._ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        made = self._balancers.create_target_group(Name=name, Protocol="HTTP", Port=port, VpcId=vpc)
        arn: str = made["TargetGroups"][0]["TargetGroupArn"]
        self.attach(group, [instance])
        self._groups.attach_load_balancer_target_groups(AutoScalingGroupName=group, TargetGroupARNs=[arn])
        assert self.targets(arn) == [instance]
        return arn

    def service_target_group(self, cluster: str, service: str, instance: str, port: int) -> str:
        """Creates the target group of a Service's Network Load Balancer as cloud-provider-aws does, with this target; returns its ARN."""
        vpc = self._ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        tags = {f"kubernetes.io/cluster/{cluster}": "owned", "kubernetes.io/service-name": service}
        made = self._balancers.create_target_group(
            Name=f"k8s-{service.replace('/', '-')}-{cluster}",
            Protocol="TCP",
            Port=port,
            VpcId=vpc,
            TargetType="instance",
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )
        arn: str = made["TargetGroups"][0]["TargetGroupArn"]
        self._balancers.register_targets(TargetGroupArn=arn, Targets=[{"Id": instance, "Port": port}])
        assert self.targets(arn) == [instance]
        return arn

    def targets(self, target_group: str) -> list[str]:
        """Returns the registered targets of a target group."""
        health = self._balancers.describe_target_health(TargetGroupArn=target_group)["TargetHealthDescriptions"]
        return [each["Target"]["Id"] for each in health]

    def deregister(self, target_group: str, target: str) -> None:
        """Deregisters a target, as a controller does."""
        self._balancers.deregister_targets(TargetGroupArn=target_group, Targets=[{"Id": target}])

    def instance(self, *, managed: bool = True, cluster: str = "") -> str:
        """Runs an instance, with the tag of a cluster if it has a name; returns its ID."""
        tags = [{"Key": MANAGED_TAG, "Value": "true"}] if managed else [{"Key": "Name", "Value": "another cluster's"}]
        if cluster:
            tags.append({"Key": f"kubernetes.io/cluster/{cluster}", "Value": "owned"})
        answer = self._ec2.run_instances(
            ImageId=_IMAGE,
            InstanceType="t3.small",
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": ZONE},
            MetadataOptions={"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        instance: str = answer["Instances"][0]["InstanceId"]
        return instance

    def stop_instance(self, instance: str) -> None:
        """Stops an instance."""
        self._ec2.stop_instances(InstanceIds=[instance])

    def terminate_instance(self, instance: str) -> None:
        """Terminates an instance, which EC2 shows as terminated from then on."""
        self._ec2.terminate_instances(InstanceIds=[instance])

    def hook(self, group: str, name: str, heartbeat_timeout: int, transition: str, most: int = 0) -> Hook:
        """Creates a group with a hook."""
        self._group(group, most)
        self._groups.put_lifecycle_hook(
            AutoScalingGroupName=group,
            LifecycleHookName=name,
            LifecycleTransition=transition,
            HeartbeatTimeout=heartbeat_timeout,
            DefaultResult="CONTINUE",
        )
        return Hook(group, name, heartbeat_timeout, transition)

    def put(self, event: dict[str, Any]) -> None:
        """Puts an event on the bus, as AWS's services do; the bus sets its ID and its account."""
        entry = {
            "Source": event["source"],
            "DetailType": event["detail-type"],
            "Detail": json.dumps(event["detail"]),
            "Time": datetime.fromisoformat(event["time"]),
            "Resources": [event["resources"]] if isinstance(event["resources"], str) else event["resources"],
        }
        answer = self._events.put_events(Entries=[entry])
        assert not answer["FailedEntryCount"], answer

    def apply(self, name: str, parameters: dict[str, str]) -> dict[str, str]:
        """Creates the stack of deploy/aws/cloudformation.yaml; returns its outputs, with URLs at moto.

        moto's CloudFormation lacks queue policies and EKS, so this method sets the template's queue policies itself.
        """
        given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
        self._stacks.create_stack(
            StackName=name,
            TemplateBody=cfn_template.STACK.read_text(),
            Parameters=given,
            Capabilities=["CAPABILITY_IAM"],
        )
        (stack,) = self._stacks.describe_stacks(StackName=name)["Stacks"]
        assert stack["StackStatus"] == "CREATE_COMPLETE", stack
        outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        for key in ("QueueUrl", "DeadLetterQueueUrl"):
            outputs[key] = f"http://{self.address[0]}:{self.address[1]}/{outputs[key].split('/', 3)[3]}"
        template = cfn_template.of_stack(name, parameters, REGION, ACCOUNT)
        for policy in template.resources("AWS::SQS::QueuePolicy").values():
            for queue in policy["Queues"]:
                attributes = {"Policy": json.dumps(policy["PolicyDocument"])}
                self._sqs.set_queue_attributes(
                    QueueUrl=self._sqs.get_queue_url(QueueName=queue)["QueueUrl"], Attributes=attributes
                )
        return outputs

    def remove(self, stack: str) -> None:
        """Deletes a stack."""
        self._stacks.delete_stack(StackName=stack)

    def rules(self) -> list[str]:
        """Returns the names of all rules on the bus."""
        return [rule["Name"] for rule in self._events.list_rules()["Rules"]]

    def may(self, role_arn: str) -> set[str]:
        """Returns the actions that a role's policies allow."""
        role = role_arn.rsplit("/", 1)[1]
        names = self._roles.list_role_policies(RoleName=role)["PolicyNames"]
        documents = [self._roles.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names]
        return {action for document in documents for action in cfn_template.allowed(document)}

    def hooks(self, parameters: dict[str, str]) -> None:
        """Creates groups with the hooks of deploy/aws/hooks.yaml, one by one: moto lacks the resource type."""
        template = cfn_template.Stack(cfn_template.HOOKS, parameters, {})
        for group in parameters["Groups"].split(","):
            self._group(group)
        for properties in template.resources().values():
            self._groups.put_lifecycle_hook(**properties)

    def hook_of(self, group: str, transition: str) -> Hook:
        """Returns a group's hook, as Auto Scaling describes it."""
        hooks = self._groups.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
        (hook,) = (hook for hook in hooks if hook["LifecycleTransition"] == transition)
        return Hook(group, hook["LifecycleHookName"], hook["HeartbeatTimeout"], transition)

    def _group(self, group: str, most: int = 0) -> None:
        self._groups.create_auto_scaling_group(
            AutoScalingGroupName=group,
            LaunchConfigurationName="nodes",
            AvailabilityZones=[ZONE],
            MinSize=0,
            MaxSize=most,
        )

    def _answers(self) -> bool:
        self.process.must_run()
        return requests.get(f"http://{self.address[0]}:{self.address[1]}/moto-api/", timeout=30).ok
