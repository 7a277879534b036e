"""kubectl as an administrator runs it, for comparison with the service and to see what users see."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 60.0


@dataclass(frozen=True)
class Kubectl:
    """The program with an administrator's permissions, in its own home directory."""

    program: Path
    kubeconfig: Path
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; returns the finished process, whatever its exit code."""
        environment = {"HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            [str(self.program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=_TIMEOUT,
            check=False,
        )

    def output(self, *arguments: str) -> str:
        """Runs kubectl, which must succeed; returns its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.returncode} {done.stderr}"
        return done.stdout
