"""An imitation of AWS's services (moto), in an environment of its own."""

from tests.harness.servers.child import LocalServer, http_answers
from tests.harness.servers.packages import python_program

REQUIREMENT = "moto[server]==5.2.5"


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return python_program("moto_server", REQUIREMENT)


class Moto(LocalServer):
    """The services on one port; what they hold is in memory."""

    NAME = "moto"

    def command(self) -> list[str]:
        return [*prepare(), "-H", "127.0.0.1", "-p", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        return http_answers(f"{self.url}/moto-api/")
