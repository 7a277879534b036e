"""Kubeconfigs of users: with a proxy, a credentials program, or a mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World

KIND = "client.authentication.k8s.io/v1"


def of(world: World, name: str, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    """Writes the service's kubeconfig with more settings of the cluster, or another user; returns its path."""
    config = json.loads(world.control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"].update(cluster or {})
    if user is not None:
        config["users"][0]["user"] = user
    file = world.folder / f"{name}.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def token(world: World) -> str:
    """Returns the service's token."""
    found = json.loads(world.control_plane.kubeconfig.read_text())["users"][0]["user"]["token"]
    assert isinstance(found, str)
    return found


class Program:
    """A program that prints the service's token, like `aws eks get-token`, and records each run."""

    def __init__(self, world: World, lasts: timedelta) -> None:
        self._runs = world.folder / "runs"
        until = (datetime.now(UTC) + lasts).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"token": token(world), "expirationTimestamp": until}
        given = world.folder / "given.json"
        given.write_text(json.dumps({"apiVersion": KIND, "kind": "ExecCredential", "status": status}))
        script = f"echo run >> '{self._runs}'; cat '{given}'"
        self.kubeconfig = of(world, "program", user=by_program("sh", "-c", script))

    @property
    def runs(self) -> int:
        """Returns the number of runs."""
        return self._runs.read_text().count("run") if self._runs.exists() else 0


def by_program(command: str, *arguments: str) -> dict[str, Any]:
    """Returns a kubeconfig user whose credentials a program prints."""
    exec_ = {"apiVersion": KIND, "command": command, "args": list(arguments), "interactiveMode": "IfAvailable"}
    return {"exec": exec_}
