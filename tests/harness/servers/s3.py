"""S3 for tests: what moto serves, with the logins that it asks for."""

import json
import re
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness.servers.moto import Moto
from tests.harness.servers.ports import free_ports

if TYPE_CHECKING:
    from pyarrow import fs


REGION = "us-east-1"


class Login(NamedTuple):
    """Credentials: access key and secret key."""

    key: str
    secret: str

    @property
    def properties(self) -> dict[str, str]:
        return {"storage.access.key": self.key, "storage.secret.key": self.secret}


ANYBODY = Login("anybody", "anything")
"""Whom the server lets in while it asks nobody."""


class S3Server(Moto):
    """One server; ``url`` is its endpoint. What it holds is in memory: `kill` loses it."""

    NAME = "s3"

    def properties(self, login: Login = ANYBODY, url: str | None = None) -> dict[str, str]:
        """Return what a sink is reported this server; ``url``: by another way to it."""
        return {
            "storage.endpoint": url or self.url,
            "storage.region": REGION,
            **login.properties,
        }

    def files(self, login: Login = ANYBODY) -> "fs.S3FileSystem":
        """Return what the server holds, for a test to look at."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=login.key,
            secret_key=login.secret,
            endpoint_override=self.url,
            region=REGION,
            connect_timeout=60,  # a busy machine takes longer than 1 s, and 3 s for an answer
            request_timeout=60,
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def make_login(self) -> Login:
        """Return credentials that may do everything with objects."""
        name = f"writer{free_ports(1)[0]}"
        self._iam(Action="CreateUser", UserName=name)
        made = self._iam(Action="CreateAccessKey", UserName=name)
        statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self._iam(
            Action="PutUserPolicy",
            UserName=name,
            PolicyName="all",
            PolicyDocument=json.dumps(policy),
        )
        found = re.findall("<(?:AccessKeyId|SecretAccessKey)>([^<]+)<", made)
        return Login(*found)

    def ask_for_login(self, asks: bool) -> None:
        self._post("/moto-api/reset-auth", b"0" if asks else b"inf", {"Content-Type": "text/plain"})

    def _iam(self, **asked: str) -> str:
        scope = f"x/20260101/{REGION}/iam/aws4_request"
        given = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        body = urllib.parse.urlencode({"Version": "2010-05-08", **asked}).encode()
        return self._post("/", body, {"Authorization": given}).decode()

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            found: Any = answer.read()
        return bytes(found)
