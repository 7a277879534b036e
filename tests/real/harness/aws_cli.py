"""The AWS CLI, loaded once and forked for each call: by itself it takes a second to start, and a trial calls often.

python -m harness.aws_cli SOCKET serves; the program that `client` writes calls it like the CLI.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from awscli.clidriver import create_clidriver

SERVICES = ("autoscaling", "cloudformation", "ec2", "sqs")
"""Services whose models are read once. They are the ones that the trial calls again and again."""

_CLIENT = """#!{python} -ISs
import array, json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
outputs = array.array("i", [1, 2])
server.sendmsg([json.dumps(sys.argv[1:]).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)])
os._exit(int(server.recv(16) or 255))
"""


def client(program: Path, path: Path) -> None:
    """Writes a program that calls the server at this path."""
    program.write_text(_CLIENT.format(python=sys.executable, path=str(path)))
    program.chmod(0o755)


def main(path: str) -> None:
    """Serves until the process is ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    driver = create_clidriver()
    for service in SERVICES:
        driver.session.get_service_data(service)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        caller, _ = server.accept()
        if os.fork() == 0:
            words, outputs, _, _ = socket.recv_fds(caller, 65536, 2)
            for own, given in zip((1, 2), outputs, strict=True):
                os.dup2(given, own)
            try:
                # Version 1 of the CLI ignores AWS_ENDPOINT_URL for SQS and Health.
                code = driver.main(["--endpoint-url", os.environ["AWS_ENDPOINT_URL"], *json.loads(words)])
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            sys.stderr.flush()
            caller.send(str(code).encode())
            os._exit(0)
        caller.close()


if __name__ == "__main__":
    main(sys.argv[1])
