"""One table's part of a target that several sources share.

Each table numbers the steps for its own rows. Columns belong to all: a missing column is added by a
step without a number, which may be repeated. If a source renames or drops a column, another source
may need it, so it stays; the values move to the new name or become null.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from waltap_spark.config.shared_targets import union_columns
from waltap_spark.errors import FormatLimit, SourcesDiffer
from waltap_spark.formats.stepwise import RACES, ROWS, StepwiseFormat, stored_columns, whats
from waltap_spark.formats.table_format import What
from waltap_spark.formats.work import TableWriter, inserted, of, selected
from waltap_spark.schema.expression import column_of, literal, quoted, temp, unchanged_as
from waltap_spark.schema.schema import (
    common_type,
    fitted_to,
    new_fields,
    same_type,
    sql_type,
    struct_of,
)
from waltap_spark.state.output import TableState, TargetMapping, TargetTable

CREATION_POLL_S: Final = 0.25


def together(
    tables: StepwiseFormat, spark: SparkSession, sources: Sequence[TableState], what: What
) -> DataFrame:
    """Return the rows of ``sources`` in one target, with sources."""
    kind: What = "changes" if sources[0].mode.name == "append" else what
    columns, first = union_columns(sources), sources[0]
    assert first.place is not None
    wanted = {**columns, **stored_columns(first, kind), **columns, first.place.column: '"string"'}
    stored = {tables.stored_name(name): name for name in first.mode.columns}
    hidden = {name for each in sources for name in each.hidden}
    wanted = {name: type_ for name, type_ in wanted.items() if name not in hidden}
    alike: dict[tuple[str, int], tuple[TargetTable, list[str]]] = {}
    for each in sources:
        if each.stored_table.targets and each.place is not None:
            target = each.stored_table.targets[kind]
            own = alike.setdefault((target.at, target.version), (target, []))
            own[1].append(each.place.source)
    if not alike:
        return spark.createDataFrame([], struct_of(wanted))
    frames = []
    for target, names in alike.values():
        frame = tables.at_version(spark, target).withColumnsRenamed(stored)
        frames.append(fitted_to(frame.where(column_of(first.place.column).isin(names)), wanted))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


class SharedWork(TableWriter):
    """Steps of one table in a shared target."""

    @property
    def _place(self) -> TargetMapping:
        assert self.table.place is not None
        return self.table.place

    def make_room(self, what: What, at: str, create: Callable[[], object]) -> None:
        """Create the target, or add the table's columns to it.

        Raises: SourcesDiffer, FormatLimit.
        """
        tables, target = self._format, TargetTable(at=at)

        def made() -> None:
            if tables.commits(self._spark, target) is None:
                self._create_or_wait(target, create)
            self._widen(what, at)

        note = tables.note(self.commit, self.table, 0, target)
        with tables.alone(at), tables.noted(self._spark, note):
            tables.beside_others(self.commit, target, made)

    def _create_or_wait(self, target: TargetTable, create: Callable[[], object]) -> None:
        try:
            create()
        except PySparkException:
            # The other one's files are there before a catalogue has the name.
            for _ in range(RACES):
                time.sleep(CREATION_POLL_S)
                if self._format.commits(self._spark, target) is not None:
                    return
            raise

    def _widen(self, what: What, at: str) -> None:
        tables, spark = self._format, self._spark
        there = {field.name: field.dataType.json() for field in spark.table(at).schema.fields}
        called = {name.lower(): name for name in there}
        wanted = tables.all_columns(self.table, what)
        new: dict[str, str] = {}
        for name, kind in wanted.items():
            if called.get(name.lower(), name) != name:
                raise FormatLimit(
                    f"{at} has columns {called[name.lower()]} and, of {self.table.name}, {name}, "
                    "which differ by case alone"
                )
            if name not in there:
                new[name] = kind
        grown: dict[str, str] = {}
        for name, has in there.items():
            kind = tables.stored(wanted.get(name, has))
            common = common_type(has, kind)
            if common is not None and same_type(common, has):
                continue
            wide = None if common is None else tables.stored(common)
            if wide is None or not (tables.widens(has, wide) or new_fields(has, wide)):
                raise SourcesDiffer(
                    f"column {name} of {self.table.name} is {kind}, and {has} in {at}, which cannot "
                    "hold both"
                )
            grown[name] = wide
        if new:
            tables.add_columns(spark, at, new)
        for name, kind in grown.items():
            fields = new_fields(there[name], kind)
            if fields:
                tables.add_fields(spark, at, [((name, *way), type_) for way, type_ in fields])
            else:
                tables.widen_column(spark, at, name, kind)

    def begin(self, what: What, at: str) -> None:
        """Write a commit without rows: the table's first one."""
        listed = ", ".join(map(quoted, self._format.all_columns(self.table, what)))
        self._spark.sql(f"INSERT INTO {at} ({listed}) SELECT {listed} FROM {at} LIMIT 0")

    @property
    def own_rows(self) -> str:
        return f"{quoted(self._place.column)} = {literal(self._place.source, 'string')}"

    def clear(self) -> None:
        """Remove the table's rows by MERGE, which always commits.

        A DELETE without a match may not commit.
        """
        sql = (
            f"MERGE INTO {self.at('current')} t USING (SELECT CAST(NULL AS string) AS never WHERE false) s"
            f" ON t.{quoted(self._place.column)} = s.never"
            f" WHEN NOT MATCHED BY SOURCE AND t.{self.own_rows} THEN DELETE"
        )
        self.take("current", lambda: self._spark.sql(sql), "clear")

    def overwrite(self, frame: Callable[[], DataFrame], rows: pa.Table | None = None) -> None:
        """Replace the table's rows, by a MERGE without matches."""

        def action() -> None:
            values = self.view(frame())
            names = list(values)
            never = temp("never")
            source = f"({selected({**values, never: 'CAST(NULL AS string)'})})"
            never = f"t.{quoted(self._place.column)} = s.{never}"
            self._spark.sql(
                f"MERGE INTO {self.at('current')} t USING {source} s ON {never}"
                f" WHEN NOT MATCHED THEN {inserted(names)}"
                f" WHEN NOT MATCHED BY SOURCE AND t.{self.own_rows} THEN DELETE"
            )

        self.take("current", action, ROWS)

    def complete(self, rows: pa.Table) -> pa.Table:
        source = pa.repeat(pa.scalar(self._place.source, pa.string()), rows.num_rows)
        return rows.append_column(self._place.column, source)

    def view(self, frame: DataFrame) -> dict[str, str]:
        return super().view(self._ordered(frame))

    def values(self, names: Iterable[str]) -> dict[str, str]:
        own = {self._place.column: literal(self._place.source, "string")}
        return {**super().values(names), **own}

    def _ordered(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with fields in the order of the target."""
        if not any('"fields"' in kind for kind in self.table.columns.values()):
            return frame
        has = {field.name: field.dataType.json() for field in frame.schema.fields}
        there = self._spark.table(self.at(whats(self.table)[-1])).schema.fields
        structs = {f.name: f.dataType.json() for f in there if '"fields"' in has.get(f.name, "")}
        return fitted_to(frame, {**has, **structs})

    def evolve(self, renames: Mapping[str, str], gone: Sequence[str], *, rows: bool) -> None:
        had, have = self.table.stored_table.columns, self.table.columns
        called = {renames.get(name, name): kind for name, kind in had.items()}
        if called != have or renames or gone:
            for what in whats(self.table):
                self.make_room(what, self.at(what), _is_there)
        lost = [name for name in gone if name in called]
        for what in whats(self.table) if renames or lost else ():
            self._move(what, renames, lost)
        self.fill([name for name in have if name not in called], rows=rows)
        divided = tuple(renames.get(name, name) for name in self.table.stored_table.divided)
        self.table = self.table.with_storage(columns=dict(have), divided=divided)

    def _move(self, what: What, renames: Mapping[str, str], lost: Sequence[str]) -> None:
        def action() -> None:
            there = self._spark.table(self.at(what)).schema.fields
            types = {field.name: sql_type(field.dataType.json()) for field in there}
            values = dict.fromkeys((*lost, *renames), "NULL")
            values |= {new: f"CAST({quoted(old)} AS {types[new]})" for old, new in renames.items()}
            if what == "changes" and renames:
                values["_unchanged"] = unchanged_as(renames)
            self.update(what, values)

        self.take(what, action, of("move", (*renames, *lost)))


def _is_there() -> None:
    raise SourcesDiffer("the target is gone")
