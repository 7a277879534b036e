"""Lifecycle actions as Auto Scaling keeps them: what moto lacks. One is over when completed or expired."""

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
    """One instance held by a hook."""

    hook: Hook
    instance: str
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: float = field(default_factory=time.time)
    expires: float = 0.0
    result: str | None = None
    """CONTINUE or ABANDON, once completed."""

    @property
    def active(self) -> bool:
        """Whether Auto Scaling still waits."""
        return self.result is None and time.time() < self.expires

    def __str__(self) -> str:
        state = self.result or ("active" if self.active else "EXPIRED")
        left = self.expires - time.time()
        return f"{self.hook.group}/{self.hook.name} {self.instance} {self.token}: {state}, {left:+.1f} s to its expiry"


class Refused(Exception):
    """What Auto Scaling answers instead: an error code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Actions:
    """All actions of a test. Called from the recorder's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: list[Action] = []

    def begin(self, hook: Hook, instance: str) -> Action:
        """Auto Scaling begins to hold an instance."""
        action = Action(hook, instance)
        action.expires = action.began + hook.heartbeat_timeout
        with self._lock:
            self._actions.append(action)
        return action

    def all(self) -> list[Action]:
        """Every action that began, in order."""
        with self._lock:
            return list(self._actions)

    def heartbeat(self, asked: dict[str, str]) -> None:
        """RecordLifecycleActionHeartbeat: the timeout begins anew, within the global limit."""
        with self._lock:
            action = self._active(asked)
            timeout = action.hook.heartbeat_timeout
            limit = action.began + min(48 * 3600, 100 * timeout)
            action.expires = min(time.time() + timeout, limit)

    def complete(self, asked: dict[str, str]) -> None:
        """CompleteLifecycleAction: it is over."""
        result = asked.get("LifecycleActionResult")
        if result not in ("CONTINUE", "ABANDON"):
            raise Refused("ValidationError", f"LifecycleActionResult must be CONTINUE or ABANDON, not {result}")
        with self._lock:
            self._active(asked).result = result

    def _active(self, asked: dict[str, str]) -> Action:
        """The action that a call means: by token, or else by instance."""
        hook = (asked.get("AutoScalingGroupName"), asked.get("LifecycleHookName"))
        token, instance = asked.get("LifecycleActionToken"), asked.get("InstanceId")
        for action in self._actions:
            named = action.token == token if token else action.instance == instance
            if named and action.active and (action.hook.group, action.hook.name) == hook:
                return action
        named_by = f"token {token}" if token else f"instance ID {instance}"
        raise Refused("ValidationError", f"No active Lifecycle Action found with {named_by}")
