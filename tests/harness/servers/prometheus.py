"""A Prometheus of our own, from the distribution's package, and its tool."""

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.harness.servers.child import Child, free_ports
from tests.harness.servers.packages import packaged

__all__ = ["Prometheus", "prepare", "promtool"]


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return packaged("prometheus", ["prometheus"])


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the tool. Raises: MissingProgram."""
    command = [*packaged("promtool", ["prometheus"]), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


class Prometheus:
    """Scrapes ``targets`` (HOST:PORT) every second, and evaluates the rules of ``rules``."""

    def __init__(self, folder: Path, port: int, targets: Sequence[str], rules: Path) -> None:
        self.folder, self.port = folder, port
        settings = folder / "prometheus.yml"
        jobs = [{"job_name": "waltap", "static_configs": [{"targets": list(targets)}]}]
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        text = {"global": often, "rule_files": [str(rules)], "scrape_configs": jobs}
        settings.write_text(yaml.safe_dump(text))
        self._child = Child(
            [
                *prepare(),
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            folder / "log",
        )

    @classmethod
    def create(cls, targets: Sequence[str], rules: Path) -> "Prometheus":
        """Make one and start it. Raises: MissingProgram, ChildFailed."""
        folder = Path(tempfile.mkdtemp(prefix="waltap-prometheus-"))
        made = cls(folder, free_ports(1)[0], targets, rules)
        try:
            made._child.start()
            made._child.wait_until(made._answers)
        except BaseException:
            made.remove()
            raise
        return made

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/-/ready", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an answer of its API. Raises: AssertionError with what it says is wrong."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the samples of an expression now."""
        found = self.ask("query", query=expression)
        return list(found["result"])

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
