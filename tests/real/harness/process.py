"""Child processes: each with its log in a file, each ended by its own id, none outliving the tests."""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import socket
import subprocess
from pathlib import Path

STOP_WITHIN = 10.0
"""Seconds a process has to end itself before it is killed."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Runs in the child: the kernel kills it when the tests are killed too hard to clean up."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PORTS = range(20_000, 30_000)
"""From these no system takes the ports of outgoing connections: one that is free stays so until its program listens."""

_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody else was given."""
    while True:
        port = random.choice(_PORTS)
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """One child process, in a session of its own so that a ctrl-C reaches the tests alone, which end it in order."""

    def __init__(self, name: str, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def must_run(self) -> None:
        """Fails with the end of its log when it has ended; no AssertionError, so that no one waits further."""
        if self.exit_code is not None:
            raise RuntimeError(f"{self.name} ended with {self.exit_code}; the end of {self.log}:\n{self.tail(40)}")

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it still runs."""
        self._child.send_signal(number)

    def wait(self, within: float) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self._child.wait(within)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} still runs after {within:g} s") from error

    def stop(self) -> None:
        """Ends it, politely first."""
        self._child.terminate()
        try:
            self._child.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it at once, as a power cut would."""
        self._child.kill()
        self._child.wait()

    def tail(self, lines: int) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
