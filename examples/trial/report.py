"""The table of what was found."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass

PASSED, FAILED, NOT_RUN, MEASURED = "passed", "**FAILED**", "not run", "measured"


def mask(text: str) -> str:
    """Hides account IDs and the unique part of IDs of roles and users: the table is for an issue."""
    return re.sub(r"\b(A[A-Z]{3})[A-Z0-9]{12,}", r"\1…", re.sub(r"\b\d{12}\b", "ACCOUNT", text))


@dataclass
class Row:
    """A line of the table."""

    check: str
    result: str
    seconds: float | None
    found: str

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}".removesuffix(".0")
        return f"| {self.check} | {self.result} | {seconds} | {mask(self.found).replace('|', '/')} |"


class Report:
    """The lines so far, and the progress."""

    def __init__(self) -> None:
        self.began = time.time()
        self.rows: list[Row] = []
        self.head = ""
        """What ran where."""

    def note(self, text: str) -> None:
        """Shows the progress."""
        print(f"{time.time() - self.began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def row(self, check: str, result: str | bool, seconds: float | None, found: str) -> None:
        """Adds a line to the table."""
        word = {True: PASSED, False: FAILED}.get(result, result) if isinstance(result, bool) else result
        self.rows.append(Row(check, word, seconds, found))
        self.note(f"{word.strip('*')}: {check}: {found}")

    def table(self) -> str:
        """Returns the report in Markdown."""
        counts = [f"{sum(row.result == word for row in self.rows)} {word.strip('*')}" for word in (PASSED, FAILED, MEASURED, NOT_RUN)]
        head = f"{mask(self.head)}. {', '.join(counts)}; {(time.time() - self.began) / 60:.0f} minutes."
        lines = ["### Ebbtide's trial on an AWS account", "", head, "", "| check | result | seconds | found |", "| --- | --- | ---: | --- |"]
        return "\n".join([*lines, *map(str, self.rows)])
