"""Reads the flags of `ebbtide run` from src/cli/flags.rs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chart import ROOT

CLI = "\n".join((ROOT / "src" / "cli" / name).read_text() for name in ("flags.rs", "flags/admission.rs", "flags/notify.rs", "flags/reporting.rs", "flags/servers.rs", "flags/source.rs", "flags/traces.rs", "flags/waits.rs", "flags/values.rs"))

_ARGUMENT = re.compile(r"#\[arg\((?P<how>.*?)\)\]\s*pub (?P<field>\w+): (?P<type>[^\n]+),\n", re.DOTALL)
_VARIABLE = re.compile(r'env = "(EBBTIDE_\w+)"')
_DEFAULT = re.compile(r'default_value = "([^"]*)"')


@dataclass(frozen=True)
class Flag:
    """One flag."""

    field: str
    variable: str
    type: str
    default: str

    @property
    def key(self) -> str:
        """Returns the flag's key under `settings`."""
        first, *others = self.field.split("_")
        return first + "".join(other.capitalize() for other in others)


def flags() -> list[Flag]:
    """Returns all flags that have a variable."""
    found = []
    for argument in _ARGUMENT.finditer(CLI):
        variable, default = _VARIABLE.search(argument["how"]), _DEFAULT.search(argument["how"])
        if variable:
            # An enum without a default is wrapped.
            inner = argument["type"].removeprefix("Option<").removesuffix(">")
            kind = inner if f"pub enum {inner} " in CLI else argument["type"]
            found.append(Flag(argument["field"], variable[1], kind, default[1] if default else ""))
    assert len(found) == CLI.count('env = "EBBTIDE_'), "src/cli/flags.rs has a format that this script can't read"
    return found
