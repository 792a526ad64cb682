"""An imitation of AWS's services (moto), in an environment of its own."""

from tests.harness.servers.child import LocalServer, http_answers
from tests.harness.servers.packages import python_program


class Moto(LocalServer):
    """The services on one port; what they hold is in memory."""

    NAME = "moto"

    @classmethod
    def prepare(cls) -> list[str]:
        return python_program("moto_server", "moto[server]==5.2.5")

    def command(self) -> list[str]:
        return [*self.prepare(), "-H", "127.0.0.1", "-p", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        return http_answers(f"{self.url}/moto-api/")
