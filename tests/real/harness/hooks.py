"""Lifecycle actions, which moto lacks, with the rules of Auto Scaling."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field

TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"
LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"


@dataclass(frozen=True)
class Hook:
    """A lifecycle hook of a group."""

    group: str
    name: str
    heartbeat_timeout: float
    transition: str


@dataclass
class Action:
    """One instance held by a hook, until the action is completed or expires."""

    hook: Hook
    instance: str
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: float = field(default_factory=time.time)
    expires: float = 0.0
    result: str | None = None
    """CONTINUE or ABANDON after the completion."""

    @property
    def active(self) -> bool:
        """Returns whether Auto Scaling still waits."""
        return self.result is None and time.time() < self.expires

    def __str__(self) -> str:
        state = self.result or ("active" if self.active else "EXPIRED")
        left = self.expires - time.time()
        return f"{self.hook.group}/{self.hook.name} {self.instance} {self.token}: {state}, {left:+.1f} s to its expiry"


class Refused(Exception):
    """An error answer of Auto Scaling: a code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Actions:
    """All lifecycle actions of a test. The recorder's threads call these methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: list[Action] = []

    def begin(self, hook: Hook, instance: str) -> Action:
        """Starts a lifecycle action, as Auto Scaling does when a hook begins to hold an instance."""
        action = Action(hook, instance)
        action.expires = action.began + hook.heartbeat_timeout
        with self._lock:
            self._actions.append(action)
        return action

    def all(self) -> list[Action]:
        """Returns all actions, in the order of their starts."""
        with self._lock:
            return list(self._actions)

    def held(self, asked: dict[str, str]) -> list[Action]:
        """Returns the actions that hold one of the instances that DescribeAutoScalingInstances names."""
        asked_about = {value for name, value in asked.items() if name.startswith("InstanceIds.")}
        with self._lock:
            return [action for action in self._actions if action.active and action.instance in asked_about]

    def heartbeat(self, asked: dict[str, str]) -> None:
        """Handles RecordLifecycleActionHeartbeat: restarts the timeout, within the global limit."""
        with self._lock:
            action = self._active(asked)
            timeout = action.hook.heartbeat_timeout
            limit = action.began + min(48 * 3600, 100 * timeout)
            action.expires = min(time.time() + timeout, limit)

    def complete(self, asked: dict[str, str]) -> None:
        """Handles CompleteLifecycleAction: ends the action."""
        result = asked.get("LifecycleActionResult")
        if result not in ("CONTINUE", "ABANDON"):
            raise Refused("ValidationError", f"LifecycleActionResult must be CONTINUE or ABANDON, not {result}")
        with self._lock:
            self._active(asked).result = result

    def _active(self, asked: dict[str, str]) -> Action:
        """Returns the action that a call names by its token, or else by its instance."""
        hook = (asked.get("AutoScalingGroupName"), asked.get("LifecycleHookName"))
        token, instance = asked.get("LifecycleActionToken"), asked.get("InstanceId")
        for action in self._actions:
            named = action.token == token if token else action.instance == instance
            if named and action.active and (action.hook.group, action.hook.name) == hook:
                return action
        named_by = f"token {token}" if token else f"instance ID {instance}"
        raise Refused("ValidationError", f"No active Lifecycle Action found with {named_by}")
