"""Waiting for things: by asking again until a deadline, never by sleeping for as long as it might take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.1
"""Seconds between two checks: shorter than anything tests measure, and long enough to leave the service the cores."""

WITHIN = 120.0
"""Seconds until a wait fails. No wait takes this long on any machine unless the awaited event never happens."""


def eventually(what: str, look: Callable[[], T], within: float = WITHIN, pause: float = PAUSE) -> T:
    """Looks until it sees something true, and returns that. A look that costs more than a little takes a longer pause.

    A look that raises an AssertionError or an OSError (a refused connection is one) has seen nothing yet. At the
    deadline the failure says what was awaited and what was seen last; the test's report tells the rest.
    """
    end = time.monotonic() + within
    while True:
        seen: object
        try:
            value = look()
            if value:
                return value
            seen = repr(value)
        except (AssertionError, OSError) as error:
            seen = str(error) or repr(error)
        if time.monotonic() >= end:
            raise AssertionError(f"not within {within:g} s: {what}; last seen: {seen}")
        time.sleep(pause)


def always(what: str, look: Callable[[], object], during: float) -> None:
    """Checks repeatedly for `during` seconds, and fails at the first check that is not true."""
    begin = time.monotonic()
    while (elapsed := time.monotonic() - begin) < during:
        assert look(), f"no longer so after {elapsed:.1f} s: {what}"
        time.sleep(PAUSE)
