"""The flags of `ebbtide run` and the kinds of notices. A test of the program writes flags.json: tests/service/architecture/settings.rs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from chart import HERE

_DATA = json.loads((HERE / "flags.json").read_text())


@dataclass(frozen=True)
class Flag:
    """One flag."""

    flag: str
    """Its name, without dashes."""
    value: str | None
    """Name of the chart's value; None if the chart sets it itself."""
    form: str
    """How a value is written, such as `DURATION`; `switch` for a flag that is on or off."""
    list: bool
    pooled: bool
    """Whether a pool may have it for itself."""
    choices: list[str]
    default: str
    """In Markdown."""

    @property
    def variable(self) -> str:
        """Returns the name of its variable."""
        return "EBBTIDE_" + self.flag.upper().replace("-", "_")

    @property
    def key(self) -> str | None:
        """Returns its key below `settings`, if it is there."""
        return self.value.removeprefix("settings.") if self.value and self.value.startswith("settings.") else None


def flags() -> list[Flag]:
    """Returns all flags."""
    return [Flag(**each) for each in _DATA["flags"]]


def camel(kind: str) -> str:
    """Returns the chart's name of a kind."""
    return re.sub("-(.)", lambda found: found[1].upper(), kind)


ACTIONS: dict[str, list[str]] = {each["kind"]: each["actions"] for each in _DATA["kinds"]}
"""The actions that each kind of notice can have."""

KINDS = list(ACTIONS)
CAMEL = {kind: camel(kind) for kind in KINDS}
"""The chart's name of each kind."""
