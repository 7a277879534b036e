"""Waits that check repeatedly until a deadline, and never sleep for an estimated duration."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.1
"""Interval in seconds between checks: shorter than any measured time, long enough to leave the cores free."""

WITHIN = 120.0
"""Seconds until a wait fails. A wait takes this long only if the awaited event never happens."""


def eventually(what: str, look: Callable[[], T], within: float = WITHIN, pause: float = PAUSE) -> T:
    """Calls `look` until it returns a true value, and returns this value. An expensive check needs a longer pause.

    An AssertionError or an OSError, such as a refused connection, counts as "not yet". At the deadline the failure
    says what was awaited and what was seen last.
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
        assert look(), f"not true any more after {elapsed:.1f} s: {what}"
        time.sleep(PAUSE)
