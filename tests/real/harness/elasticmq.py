"""ElasticMQ, a second implementation of SQS: what holds on both is not a habit of one of them."""

from __future__ import annotations

from pathlib import Path

import requests

from .aws import ACCOUNT
from .process import Process, free_port
from .queues import REGION, Queues
from .wait import eventually

_MEMORY = "-Xmx256m"
_QUICK_START = "-XX:TieredStopAtLevel=1"


class ElasticMq(Queues):
    """ElasticMQ's server. It keeps queues and messages in a file, so it can restart."""

    def __init__(self, jars: Path, folder: Path) -> None:
        super().__init__(("127.0.0.1", free_port()))
        host, port = self.address
        settings = {
            "node-address.host": host,
            "node-address.port": port,
            "rest-sqs.bind-hostname": host,
            "rest-sqs.bind-port": port,
            "aws.region": REGION,
            "aws.accountId": ACCOUNT,
            "messages-storage.enabled": "true",
            "messages-storage.uri": f"jdbc:h2:{folder / 'elasticmq'}",
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        self._command = ["java", _MEMORY, _QUICK_START, *given, "-cp", f"{jars}/*", "org.elasticmq.server.Main"]
        self._log = folder / "elasticmq.log"
        self.start()

    def start(self) -> None:
        """Starts the server, at the same address each time, and waits until it answers."""
        self.process = Process("ElasticMQ", self._command, self._log)
        try:
            eventually("ElasticMQ answers", self._answers, within=300)
        except BaseException:
            self.process.stop()
            raise

    def stop(self) -> None:
        """Stops the server."""
        self.process.stop()

    def _answers(self) -> bool:
        self.process.must_run()
        return requests.get(f"http://{self.address[0]}:{self.address[1]}/health", timeout=30).ok
