"""A database and a profile of it in a folder, which commands are run on: the world of tests of the command line.

A test changes ``source``, ``sink``, ``sinks`` and ``more``; the profile is written anew before each command. In a
command line FILE stands for the profile.
"""

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness import command
from tests.harness.json_lines import records
from tests.harness.pipeline import WAIT_S, profile_text, until
from tests.harness.servers.postgres import Database

NOWHERE = {
    "type": "postgres",
    "database.hostname": "127.0.0.1",
    "database.port": 1,
    "database.dbname": "nowhere",
}
"""A source where no server is."""


def text_of(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command said, without the breaks of its lines; a traceback is an error."""
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    return " ".join(said.split())


class Shop:
    """A profile ``shop`` of ``database``, or of a server that is nowhere, whose sink is a file of JSON lines."""

    def __init__(self, folder: Path, database: Database | None = None, **source: Any) -> None:
        self.folder, self._database, self.name = folder, database, "shop"
        self.source: dict[str, Any] = dict(NOWHERE)
        if database is not None:
            self.source = {"type": "postgres", **database.properties()}
            self.source |= {"slot.name": self.slot, "publication.name": self.slot}
        self.source |= source
        self.sink: dict[str, Any] = {"type": "jsonl", "path": "out.jsonl"}
        self.sinks: list[dict[str, Any]] = []
        self.more = ""
        self.variables: dict[str, str] = {}

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database

    @property
    def slot(self) -> str:
        return self.database.name[:60]

    @property
    def path(self) -> Path:
        """Return the profile, written as it is now."""
        path = self.folder / "shop.toml"
        path.write_text(
            profile_text(self.name, self.source, self.sink, *self.sinks, more=self.more)
        )
        return path

    def connector(self, **config: Any) -> Path:
        """Write a connector's file ``c.json``, as Debezium has it; in names ``__`` is a dot."""
        path = self.folder / "c.json"
        given = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": "shop", "plugin.name": "pgoutput",
            **{name: value for name, value in self.source.items() if name != "type"},
            **{f"waltap.sink.{name}": value for name, value in self.sink.items()},
            **{name.replace("__", "."): value for name, value in config.items()},
        }  # fmt: skip
        path.write_text(json.dumps({"name": self.name, "config": given}))
        return path

    def _words(self, line: str, more: tuple[object, ...]) -> list[str]:
        path = str(self.path)
        return [path if word == "FILE" else word for word in [*shlex.split(line), *map(str, more)]]

    def waltap(
        self, line: str, *more: object, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command line in the folder, with ``more`` words behind it."""
        given = self.variables | variables
        return command.waltap(*self._words(line, more), cwd=self.folder, **given)

    def says(self, line: str, *more: object, code: int = 0, **variables: str) -> str:
        """Run a command line that ends with ``code``; return what it said, without the breaks of its lines."""
        done = self.waltap(line, *more, **variables)
        assert done.returncode == code, done.stdout + done.stderr
        return text_of(done)

    def json(self, line: str, *more: object, code: int = 0) -> Any:
        """Run a command line that prints a document."""
        done = self.waltap(line, *more)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def run(self, *more: object, code: int = 0) -> str:
        """Run the pipeline until nothing comes any more."""
        return self.says("run FILE --until-idle 0.3", *more, code=code)

    @contextlib.contextmanager
    def process(self, line: str, *, ready: bool = False) -> Iterator[command.Command]:
        """Have a process of its own run a command line while the block lasts; its standard error goes to the
        file ``stderr``. ``ready``: the block begins when the pipeline streams."""
        more = ("--ready-file", "ready") if ready else ()
        if ready:
            (self.folder / "ready").unlink(missing_ok=True)  # of a process before
        with (self.folder / "stderr").open("wb") as errors:
            process = command.start(
                *self._words(line, more), cwd=self.folder, environment=os.environ | self.variables,
                out=command.PIPE, errors=errors,
            )  # fmt: skip
        try:
            if ready:
                file = self.folder / "ready"
                until(lambda: file.exists() or process.poll() is not None, "the ready file")
                assert file.exists(), self.stderr
            yield process
        finally:
            process.terminate()
            assert process.stdout is not None
            with process.stdout:
                process.stdout.read()
                process.wait(WAIT_S)

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def records(self, name: str = "out.jsonl") -> list[Any]:
        return records(self.folder / name)

    def operations(self, name: str = "out.jsonl") -> list[tuple[str, int]]:
        found = [each["value"] for each in self.records(name) if each["value"] is not None]
        return [(v["op"], (v["after"] or v["before"])["id"]) for v in found if "op" in v]

    def made(self) -> list[str]:
        publications = self.database.execute("SELECT pubname::text FROM pg_publication")
        return sorted([*self.database.slots(), *(name for (name,) in publications)])


def install_plugin(folder: Path, source: str, name: str = "acme") -> None:
    """Put a distribution ``acme`` 1.0 into ``folder``, whose plugin ``name`` is ``source``. A command that runs
    in this folder finds it there, as pip would have installed it."""
    (folder / f"acme_{name}.py").write_text(source)
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[waltap]\n{name} = acme_{name}\n")
