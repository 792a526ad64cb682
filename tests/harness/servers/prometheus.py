"""A Prometheus of our own, from the distribution's package, and its tool."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.harness.servers.child import LocalServer, http_answers
from tests.harness.servers.packages import packaged


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the tool. Raises: MissingProgram."""
    command = [*packaged("prometheus", program="promtool"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


class Prometheus(LocalServer):
    """Scrapes ``targets`` (HOST:PORT) every second, and evaluates the rules of ``rules``."""

    NAME = "prometheus"
    PACKAGES = ("prometheus",)

    def command(self, targets: Sequence[str], rules: Path) -> list[str]:
        settings = self.folder / "prometheus.yml"
        jobs = [{"job_name": "waltap", "static_configs": [{"targets": list(targets)}]}]
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        text = {"global": often, "rule_files": [str(rules)], "scrape_configs": jobs}
        settings.write_text(yaml.safe_dump(text))
        return [
            *self.prepare(),
            f"--config.file={settings}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def answers(self) -> bool:
        return http_answers(f"http://127.0.0.1:{self.port}/-/ready")

    def ask(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an answer of its API. Raises: AssertionError with what it says is wrong."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        found = self.ask("query", query=expression)
        return list(found["result"])
