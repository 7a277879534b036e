"""Child processes: each writes its log to a file, is stopped by its own ID, and ends with the tests."""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import socket
import subprocess
from pathlib import Path

STOP_WITHIN = 10.0
"""Seconds until a process that was asked to stop is killed."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Runs in the child: tells the kernel to kill it when the tests die without cleaning up."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PORTS = range(20_000, 30_000)
"""Ports outside the range of outgoing connections, so that a free port stays free until its program listens."""

_given: set[int] = set()


def free_port() -> int:
    """Returns a free loopback port that no earlier call returned."""
    while True:
        port = random.choice(_PORTS)
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def has_ipv6() -> bool:
    """Whether the machine has IPv6, which always has a loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class Process:
    """One child process, in its own session: a ctrl-C reaches only the tests, which stop their processes in order."""

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
        """Returns the exit code, or None while the process runs."""
        return self._child.poll()

    @property
    def pid(self) -> int:
        """Returns the process ID."""
        return self._child.pid

    def must_run(self) -> None:
        """Fails with the end of the log if the process has ended. `eventually` does not retry a RuntimeError."""
        if self.exit_code is not None:
            raise RuntimeError(f"{self.name} ended with {self.exit_code}; the end of {self.log}:\n{self.tail(40)}")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process if it runs."""
        self._child.send_signal(number)

    def wait(self, within: float) -> int:
        """Waits for the process's end; returns its exit code."""
        try:
            return self._child.wait(within)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} still runs after {within:g} s") from error

    def stop(self) -> None:
        """Asks the process to stop, and kills it if it does not."""
        self._child.terminate()
        try:
            self._child.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the process at once, as a power cut would."""
        self._child.kill()
        self._child.wait()

    def tail(self, lines: int) -> str:
        """Returns the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
