"""The corpora: workloads, the configurations to run them with, and the events Debezium gave.

A corpus is a folder with ``setup.sql``, ``workload*.sql`` (run at the same time, once the connector
streams), ``corpus.json`` and one ``connector[.NAME].properties`` per variant, each with the
``expected[.NAME].jsonl`` that was recorded. ``corpus.json``: ``about``; ``idle``, the seconds of
silence after which a variant is over; ``collapse``, patterns of topics whose number of records depends
on time.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.differential.normalise import Record, canonical, lines, read

CORPORA = Path(__file__).parent / "corpora"
MADE_WITH = CORPORA / "made-with.toml"
IDLE_SECONDS = 2.5


@dataclass(frozen=True)
class Variant:
    """One configuration of one corpus; ``name`` is empty for the plain one."""

    folder: Path
    name: str

    @property
    def id(self) -> str:
        """What it is called on the command line and in reports: ``corpus`` or ``corpus:name``."""
        return f"{self.folder.name}:{self.name}" if self.name else self.folder.name

    @cached_property
    def properties(self) -> dict[str, str]:
        """The connector's properties, without those that say where the server is."""
        return read_properties(self._file("connector", "properties"))

    @property
    def setup(self) -> Path:
        """The script that makes the tables."""
        return self.folder / "setup.sql"

    @property
    def workloads(self) -> list[Path]:
        """The scripts to run at the same time once the connector streams."""
        return sorted(self.folder.glob("workload*.sql"))

    @property
    def idle_seconds(self) -> float:
        """How long Debezium must be silent before the run counts as over."""
        return float(self._about.get("idle", IDLE_SECONDS))

    @property
    def collapse(self) -> list[str]:
        """Patterns of topics of which one record stands for all."""
        return list(self._about.get("collapse", ()))

    @property
    def recording(self) -> Path:
        """The file of the recorded events."""
        return self._file("expected", "jsonl")

    def expected(self) -> list[Record]:
        """Return the recorded events, in canonical form."""
        return canonical(read(self.recording))

    def record(self, records: list[Record]) -> None:
        text = "".join(f"{line}\n" for line in lines(records))
        self.recording.write_text(text, encoding="utf-8")

    @cached_property
    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(
            (self.folder / "corpus.json").read_text(encoding="utf-8")
        )
        return about

    def _file(self, stem: str, suffix: str) -> Path:
        return self.folder / ".".join(filter(None, (stem, self.name, suffix)))


def variants(names: list[str] | None = None) -> list[Variant]:
    """Return the variants named, by corpus or by ``corpus:name``; without names all of them.

    Raises: ValueError naming what is no variant.
    """
    every = [
        Variant(
            path.parent, path.name.removeprefix("connector").removesuffix("properties").strip(".")
        )
        for path in sorted(CORPORA.glob("*/connector*.properties"))
    ]
    if not names:
        return every
    known = {variant.id for variant in every} | {variant.folder.name for variant in every}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"no such corpus or variant: {', '.join(unknown)}")
    return [variant for variant in every if {variant.id, variant.folder.name} & set(names)]


def read_properties(path: Path) -> dict[str, str]:
    """Return the entries of a plain ``.properties`` file: no escapes, one entry a line."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip()
    return found


def write_made_with(*, debezium: str, postgres: str) -> None:
    """Stamp the corpora with the versions that they were recorded with."""
    MADE_WITH.write_text(
        "# Written by `make golden`: what recorded the expected events.\n"
        f'debezium = "{debezium}"\npostgres = "{postgres}"\n',
        encoding="utf-8",
    )
