"""A real schema registry for tests: Apicurio, with Confluent's REST interface, schemas in memory."""

import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from tests.harness.servers.child import Child, ChildFailed, free_ports
from tests.harness.servers.jars import archive
from tests.harness.servers.kafka import QUICK_START

__all__ = ["Registry", "prepare"]

VERSION = "3.0.9"
"""The newest that runs on Java 17."""

ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


class Registry:
    """One registry; ``url`` is where Confluent's interface begins. `kill` and `start` keep the port,
    not the schemas. Its compatibility rule is NONE until a test sets one (``PUT /config``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder, home = folder, archive("registry", ARTIFACT)
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port),
            "quarkus.management.enabled": "false",
            "quarkus.log.console.json": "false",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # unions with a null default are compared as Confluent's registry does
            "apicurio.ccompat.use-canonical-hash": "true",
            # subjects may be deleted for good
            "apicurio.rest.deletion.artifact-version.enabled": "true",
            "apicurio.rest.deletion.artifact.enabled": "true",
            "apicurio.rest.deletion.group.enabled": "true",
        }
        self._program = Child(
            ["java", "-Xmx384m", *QUICK_START,
             *(f"-D{name}={value}" for name, value in options.items()),
             "-jar", str(next(home.glob("*run*.jar")))],
            folder / "registry.log",
        )  # fmt: skip

    @classmethod
    def create(cls) -> "Registry":
        """Make one in a temporary folder and start it. Raises: MissingProgram, ChildFailed."""
        for attempt in range(3):
            folder = Path(tempfile.mkdtemp(prefix="waltap-registry-"))
            made = None
            try:
                made = cls(folder)
                made.start()
            except BaseException as error:
                if made is not None:
                    made.kill()
                shutil.rmtree(folder, ignore_errors=True)
                taken = isinstance(error, ChildFailed) and "already bound" in str(error)
                if not taken or attempt == 2:
                    raise
            else:
                return made
        raise AssertionError

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._program.start()
        self._program.wait_until(self._answers)

    def kill(self) -> None:
        """End it at once."""
        self._program.kill()

    def remove(self) -> None:
        """Kill it and delete its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def prepare() -> None:
    """Fetch the registry. Raises: MissingProgram."""
    archive("registry", ARTIFACT)
