"""Calls of the programs aws and kubectl: with the profiles, SSO sessions and proxies that work in them already."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Any


class CallError(Exception):
    """A call that AWS or the API server refused, or that got no answer."""


class NotRun(Exception):
    """The reason why a step can't run here."""


class Stop(Exception):
    """The reason why the trial can't start or continue."""


def call(words: list[str], within: float, given: str = "") -> str:
    """Runs a program to its end and returns its output."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=within, check=False)
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

    def run(self, *words: str, given: str = "") -> str:
        """Runs kubectl, with a text that it may read, and returns its output."""
        return call(["kubectl", "--context", self.context, *words], 60, given)

    def items(self, *words: str) -> list[Json]:
        """Returns a list of objects."""
        return json.loads(self.run("get", *words, "--output", "json"))["items"]


def epoch(text: str) -> float:
    """Returns the time of an RFC 3339 text, in seconds since the epoch."""
    return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text)).timestamp()
