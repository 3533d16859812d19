"""A server of S3's protocol on loopback, in this process: moto's, whose objects live in memory."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

MISSING = "moto, Flask or obstore is missing; install the group `dev` and the extra `s3`"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLEEXAMPLE00",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/EXAMPLEKEY",
    "AWS_REGION": "us-east-1",
}
_NUMBERS = itertools.count()
"""Of buckets: all servers of a process have the same ones."""


class S3:
    """The server; `environment` is what its clients need."""

    def __init__(self) -> None:
        for name in ("obstore", "flask", "flask_cors", "boto3"):
            pytest.importorskip(name, reason=MISSING)
        server = pytest.importorskip("moto.server", reason=MISSING)
        logging.getLogger("werkzeug").disabled = True
        self._make, self._server = server.ThreadedMotoServer, None
        self.port = 0
        self.start()
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        """Serve again what was there."""
        self._server: Any = self._make("127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        """Be away."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def place(self) -> str:
        """A prefix in a new bucket."""
        import boto3

        name = f"bucket-{next(_NUMBERS)}"
        boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=KEYS["AWS_REGION"],
        ).create_bucket(Bucket=name)
        return f"s3://{name}/logs/fitrouter"
