"""Tables of any renames, exchanged names, drops and creations: each holds its own rows, under its name."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.test_plan import entry, manifest

from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.ports.source.relation_memory import RelationMemory
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.catalog.description import RelationDescriber
from waltap_sinks.changelog.manifest import Manifest
from waltap_spark.planning.plan import plan
from waltap_spark.planning.table_renames import find_renames
from waltap_spark.state.output import TableState

NAMES = "abcd"
FREE = "xyz"


@dataclass
class Source:
    """A server's catalogue, and the changes in its WAL: number, name, and the catalogue's age."""

    tables: dict[int, str] = field(default_factory=dict)
    versions: list[dict[int, str]] = field(default_factory=list)
    changes: list[tuple[int, str, int]] = field(default_factory=list)
    made: int = 0

    def do(self, what: str, name: str, other: str) -> None:
        numbers = {called: number for number, called in self.tables.items()}
        one, two = numbers.get(name), numbers.get(other)
        if what == "create" and one is None:
            self.made += 1
            self.tables[self.made] = name
        elif what == "drop" and one is not None:
            del self.tables[one]
        elif what == "rename" and one is not None:
            self.tables[one] = other
            if two is not None and two != one:
                self.tables[two] = name
        elif what == "replace" and one is not None:
            self.do("rename", name, next((n for n in FREE if n not in numbers), other))
            self.do("create", name, other)
            self.do("change", name, other)
        elif what == "change" and one is not None:
            self.changes.append((one, name, len(self.versions)))
        self.versions.append(dict(self.tables))


class Catalogue:
    """What the describer asks, answered as of ``now``."""

    properties = SimpleNamespace(key_index="sound")
    shows_transactions = False

    def __init__(self, source: Source) -> None:
        self.source, self.now = source, 0

    def table_of(self, oid: int) -> CatalogTable | None:
        name = self.source.versions[self.now].get(oid)
        if name is None:
            return None
        return CatalogTable(
            relation=wire(oid, name), partitioned=False, partition=False, estimate=0
        )

    def exists(self, oid: int) -> bool:
        return oid in self.source.versions[self.now]

    def refresh_types(self, _oids: set[int]) -> None:
        """Know none."""

    def data_type(self, oid: int) -> DataType:
        return DataType(oid=oid, schema="pg_catalog", name="int4")


def wire(oid: int, name: str) -> Relation:
    key = Column(name="id", type_oid=23, in_identity=True)
    return Relation(oid=oid, schema="s", table=name, columns=(key,))


def engine(source: Source, lags: Iterator[int], restarts: Iterator[bool]) -> Iterator[Manifest]:
    """Describe tables as an engine does that lags behind the server, and write their changes."""
    catalogue, memory = Catalogue(source), RelationMemory()
    describer = RelationDescriber(cast(PostgresCatalogue, catalogue), memory)
    announced: dict[int, tuple[Relation, int]] = {}
    for number, (oid, name, moment) in enumerate(source.changes, 1):
        latest = len(source.versions) - 1
        catalogue.now = min(latest, max(catalogue.now, moment + next(lags)))
        if next(restarts):
            describer = RelationDescriber(cast(PostgresCatalogue, catalogue), memory)
            announced.clear()
        _relation, since = announced.get(oid, (None, -1))
        # the server announces a table again that was renamed, also back
        if since < 0 or any(each.get(oid) != name for each in source.versions[since:moment]):
            announced[oid] = describer.describe(wire(oid, name)), moment
        yield manifest(
            entry(
                f"{oid}-{number}",
                table=name,
                oid=oid,
                fingerprint=str(oid),
                former_owner=announced[oid][0].former_owner,
            ),
            number=number,
        )


def applied(commits: list[list[Manifest]]) -> dict[str, tuple[int, list[str]]]:
    """Return each table's number, and the rows that it has of it."""
    tables: dict[str, TableState] = {}
    rows: dict[str, list[str]] = {}
    for each in commits:
        found = find_renames(each, tables)
        tables = found.applied(tables, in_place=True)
        rows = {
            ".".join(found.renamed[name]) if name in found.renamed else name: had
            for name, had in rows.items()
        }
        for name, task in plan(each, tables, found.routes).items():
            for group in task.groups:
                known = tables.get(name) or TableState(schema="s", table=task.table)
                if known.oid != group.oid:
                    rows[name] = []  # another table took the name
                rows[name] += group.segments
                tables[name] = msgspec.structs.replace(
                    known, oid=group.oid, oid_epoch=group.epoch, columns={"id": '"long"'}
                )
    return {name: (each.oid, rows[name]) for name, each in tables.items()}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "drop", "rename", "replace", "change", "change"]),
        st.sampled_from(NAMES + FREE), st.sampled_from(NAMES + FREE),
    ),
    min_size=4, max_size=40,
)  # fmt: skip


@given(STEPS, st.data())
def test_each_table_has_its_rows_under_its_name(steps, data):
    source = Source()
    for name in NAMES:
        source.do("create", name, "")
        source.do("change", name, "")
    for step in steps:
        source.do(*step)
    for name in source.tables.values():
        source.do("change", name, "")  # tells its name
    lags = iter(lambda: data.draw(st.integers(0, 5), label="lag"), -1)
    restarts = iter(lambda: data.draw(st.booleans(), label="restart"), None)
    written = list(engine(source, lags, cast(Any, restarts)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(written))), label="commits"))
    commits = [
        written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True) if a < b
    ]
    found = applied(commits)
    for oid, name in source.tables.items():
        own = [f"{oid}-{n}" for n, (of, _name, _at) in enumerate(source.changes, 1) if of == oid]
        assert found[f"s.{name}"] == (oid, own), name
