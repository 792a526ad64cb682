"""A real schema registry for tests: Apicurio, with Confluent's REST interface, schemas in memory."""

from tests.harness.servers.child import LocalServer, http_answers
from tests.harness.servers.jars import archive
from tests.harness.servers.kafka import QUICK_START

VERSION = "3.0.9"
"""The newest that runs on Java 17."""

ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


class Registry(LocalServer):
    """One registry; ``url`` is where Confluent's interface begins. `kill` and `start` keep the port,
    not the schemas. Its compatibility rule is NONE until a test sets one (``PUT /config``).
    """

    NAME = "registry"

    def command(self) -> list[str]:
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
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
        given = [f"-D{name}={value}" for name, value in options.items()]
        program = next(archive("registry", ARTIFACT).glob("*run*.jar"))
        return ["java", "-Xmx384m", *QUICK_START, *given, "-jar", str(program)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def answers(self) -> bool:
        return http_answers(f"{self.url}/subjects")


def prepare() -> None:
    """Fetch the registry. Raises: MissingProgram."""
    archive("registry", ARTIFACT)
