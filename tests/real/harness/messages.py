"""Messages as AWS writes them: EventBridge events, and the two other formats."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from .aws import ACCOUNT
from .hooks import Action
from .queues import REGION

Event = dict[str, Any]


def _event(
    source: str,
    detail_type: str,
    resources: Sequence[str],
    detail: dict[str, Any],
    ago: timedelta = timedelta(),
) -> Event:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": detail_type,
        "source": source,
        "account": ACCOUNT,
        "time": _rfc3339(datetime.now(UTC) - ago),
        "region": REGION,
        "resources": list(resources),
        "detail": detail,
    }


def _rfc3339(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _instance_arn(instance: str) -> str:
    return f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{instance}"


def _group_arn(group: str) -> str:
    return f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:{uuid.uuid4()}:autoScalingGroupName/{group}"


def spot_warning(instance: str, ago: timedelta = timedelta()) -> Event:
    """Returns a spot interruption warning, sent `ago`. EC2 takes the instance two minutes after the warning."""
    detail = {"instance-id": instance, "instance-action": "terminate"}
    return _event("aws.ec2", "EC2 Spot Instance Interruption Warning", [_instance_arn(instance)], detail, ago)


def spot_deadline(warning: Event) -> float:
    """Returns the time at which EC2 takes the instance of a spot warning, in seconds since the epoch."""
    return datetime.fromisoformat(warning["time"]).timestamp() + 120


def rebalance(instance: str) -> Event:
    """Returns a rebalance recommendation."""
    detail = {"instance-id": instance}
    return _event("aws.ec2", "EC2 Instance Rebalance Recommendation", [_instance_arn(instance)], detail)


def state_change(instance: str, state: str) -> Event:
    """Returns the notification of an instance's new state."""
    detail = {"instance-id": instance, "state": state}
    return _event("aws.ec2", "EC2 Instance State-change Notification", [_instance_arn(instance)], detail)


def terminate_action(action: Action) -> Event:
    """Returns EventBridge's event about a terminating hook that holds an instance."""
    return _lifecycle_action(action, "EC2 Instance-terminate Lifecycle Action", "AutoScalingGroup", "EC2")


def launch_action(action: Action) -> Event:
    """Returns EventBridge's event about a launching hook that holds an instance."""
    return _lifecycle_action(action, "EC2 Instance-launch Lifecycle Action", "EC2", "AutoScalingGroup")


def _lifecycle_action(action: Action, detail_type: str, origin: str, destination: str) -> Event:
    detail = {
        "LifecycleActionToken": action.token,
        "AutoScalingGroupName": action.hook.group,
        "LifecycleHookName": action.hook.name,
        "EC2InstanceId": action.instance,
        "LifecycleTransition": action.hook.transition,
        "NotificationMetadata": "additional-info",
        "Origin": origin,
        "Destination": destination,
    }
    resources = [_group_arn(action.hook.group), _instance_arn(action.instance)]
    return _event("aws.autoscaling", detail_type, resources, detail)


def bare(action: Action) -> Event:
    """Returns the direct notification of a terminating hook that holds an instance."""
    return {
        "Origin": "AutoScalingGroup",
        "LifecycleHookName": action.hook.name,
        "Destination": "EC2",
        "AccountId": ACCOUNT,
        "RequestId": str(uuid.uuid4()),
        "LifecycleTransition": action.hook.transition,
        "AutoScalingGroupName": action.hook.group,
        "Service": "AWS Auto Scaling",
        "Time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "EC2InstanceId": action.instance,
        "LifecycleActionToken": action.token,
    }


def scheduled_change(instances: Sequence[str], begins_in: timedelta) -> Event:
    """Returns AWS Health's event about the retirement of instances."""
    code = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"
    start = datetime.now(UTC) + begins_in
    detail = {
        "eventArn": f"arn:aws:health:{REGION}::event/EC2/{code}/{code}_{uuid.uuid4()}",
        "service": "EC2",
        "eventTypeCode": code,
        "eventTypeCategory": "scheduledChange",
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "communicationId": str(uuid.uuid4()),
        "startTime": format_datetime(start, usegmt=True),
        "endTime": format_datetime(start + timedelta(hours=1), usegmt=True),
        "lastUpdatedTime": format_datetime(datetime.now(UTC), usegmt=True),
        "statusCode": "upcoming",
        "eventRegion": REGION,
        "eventDescription": [{"language": "en_US", "latestDescription": "The instance runs on degraded hardware."}],
        "affectedEntities": [{"entityValue": instance} for instance in instances],
        "affectedAccount": ACCOUNT,
        "page": "1",
        "totalPages": "1",
    }
    return _event("aws.health", "AWS Health Event", list(instances), detail)


def zonal_shift(kind: str, away_from: str) -> Event:
    """Returns an event about a zonal shift of a cluster away from a zone, which is known by its ID."""
    cluster = f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/blue"
    detail = {"version": "0.0.1", "data": "", "metadata": {"awayFrom": away_from, "notes": ""}}
    return _event("aws.arc-zonal-shift", kind, [cluster], detail)


def set_up_notification(hook: str, group: str) -> Event:
    """Returns the test notification that Auto Scaling sends for a new hook."""
    return {
        "AccountId": ACCOUNT,
        "RequestId": str(uuid.uuid4()),
        "AutoScalingGroupARN": _group_arn(group),
        "AutoScalingGroupName": group,
        "Service": "AWS Auto Scaling",
        "Event": "autoscaling:TEST_NOTIFICATION",
        "Time": _rfc3339(datetime.now(UTC)),
        "LifecycleHookName": hook,
    }


def sns(message: Event | str) -> Event:
    """Returns a message as an SNS topic forwards it."""
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:interruptions"
    return {
        "Type": "Notification",
        "MessageId": str(uuid.uuid4()),
        "TopicArn": topic,
        "Message": message if isinstance(message, str) else json.dumps(message),
        "Timestamp": _rfc3339(datetime.now(UTC)),
        "SignatureVersion": "1",
        "Signature": "EXAMPLE",
        "SigningCertURL": "https://sns.example.com/SimpleNotificationService.pem",
        "UnsubscribeURL": "https://sns.example.com/?Action=Unsubscribe",
    }
