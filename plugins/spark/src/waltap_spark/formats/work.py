"""Write one table of a format with MERGE, in SQL steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from waltap_spark.compact.compact_changes import Rows
from waltap_spark.formats.small_files.rows import Action
from waltap_spark.formats.stepwise import KIND, ROWS, ReplaceRows, StepwiseFormat, whats
from waltap_spark.formats.table_format import CommitContext, What
from waltap_spark.planning.column_identity import older_value
from waltap_spark.schema.expression import (
    EXACT,
    GONE,
    column_of,
    literal,
    literal_of,
    quoted,
    temp,
    unchanged_as,
)
from waltap_spark.schema.schema import LOG_FIELDS, fitted, floating, new_fields, same_type, sql_type
from waltap_spark.state.output import TableState


def retyped(frame: DataFrame, names: Sequence[str], types: Mapping[str, str]) -> DataFrame:
    """Return columns ``names``, of ``types`` (JSON); unfit values are null."""
    there = {field.name: field.dataType.json() for field in frame.schema.fields}
    fit = (fitted(column_of(n), there[n], types.get(n, there[n]), lenient=True) for n in names)
    return frame.select(*(each.alias(name) for name, each in zip(names, fit, strict=True)))


def inserted(names: Sequence[str]) -> str:
    """Return a MERGE's INSERT of columns ``names`` from s."""
    listed = [quoted(name) for name in names]
    values = ", ".join(f"s.{name}" for name in listed)
    return f"INSERT ({', '.join(listed)}) VALUES ({values})"


def equal(name: str, kind: str) -> str:
    """Return the condition that a column is equal in t and s."""
    if kind in ('"float"', '"double"'):  # 0 and -0 differ
        return f"CAST(t.{name} AS string) <=> CAST(s.{name} AS string)"
    if '"map"' in kind:  # which Spark does not compare
        exact = ", ".join(f"{literal(text, 'string')}" for each in EXACT.items() for text in each)
        return f"to_json(t.{name}, map({exact})) <=> to_json(s.{name}, map({exact}))"
    return f"t.{name} <=> s.{name}"


VIEW: Final = "__waltap_rows"


def projection(values: Mapping[str, str]) -> list[str]:
    """Return expressions of ``values`` with their names."""
    return [f"{value} AS {quoted(name)}" for name, value in values.items()]


def selected(values: Mapping[str, str]) -> str:
    """Return the SELECT of the view's columns, as stored."""
    return f"SELECT {', '.join(projection(values))} FROM {VIEW}"


def of(verb: str, columns: Iterable[str]) -> str:
    """Return the kind of a step that changes columns."""
    return f"{verb} {', '.join(columns)}"


class TableWriter:
    """Steps of one table, one after the other."""

    def __init__(self, tables: StepwiseFormat, commit: CommitContext, table: TableState) -> None:
        self._format, self.commit, self.table = tables, commit, table
        self._spark = commit.spark

    @property
    def own(self) -> str:
        """Return the condition, with AND, of the table's rows in t."""
        return f"t.{self.own_rows} AND " if self.own_rows else ""

    @property
    def own_rows(self) -> str:
        """Return the condition of the table's rows, or ""."""
        return ""

    def at(self, what: str) -> str:
        """Return the target's name in SQL."""
        return self.table.stored_table.targets[what].at

    def done(self, *, epoch: int, continuity_id: str) -> TableState:
        return self.table.with_storage(epoch=epoch, continuity_id=continuity_id)

    def take(self, what: str, action: Action, kind: str) -> None:
        """Write one step of a kind (`CommitNote.kind`)."""
        now = self.table.stored_table.targets[what]
        target = self._format.take(self.commit, self.table, now, action, kind)
        self.table = self.table.with_storage(
            targets={**self.table.stored_table.targets, what: target}
        )

    def overwrite(self, frame: Rows, rows: pa.Table | None = None) -> None:
        """Replace all rows by ``frame``'s; ``rows`` as in `insert`."""
        self.insert("current", frame, rows, replaces=True)

    def insert(
        self, what: What, frame: Rows, rows: pa.Table | None, *, replaces: bool = False
    ) -> None:
        """Add the rows of ``frame``, or replace all rows by them.

        ``rows`` are the same rows, if this process has them.
        """

        def action() -> None:
            target = self.table.stored_table.targets[what]
            if rows is not None and self._format.write_here(
                self._spark, target, self.complete(rows), replaces=replaces
            ):
                return
            values = self.view(frame())
            into = f"{target.at} ({', '.join(map(quoted, values))})"
            verb = "OVERWRITE" if replaces else "INTO"
            self._spark.sql(f"INSERT {verb} {into} {selected(values)}")

        self.take(what, action, ROWS)

    def clear(self) -> None:
        self.take("current", partial(self._format.clear, self._spark, self.at("current")), "clear")

    def complete(self, rows: pa.Table) -> pa.Table:
        """Return ``rows`` with the target's further columns."""
        return rows

    def merge(self, compacted: DataFrame) -> None:
        """MERGE rows with `GONE` by the key, as a step's action."""
        source = self.view(compacted)
        names = [name for name in source if name != GONE]
        key = self.table.row_key
        on = " AND ".join(f"t.{quoted(k)} <=> s.{quoted(k)}" for k in key)
        if self.table.mode.name == "scd2":  # versions that have ended stay as they are
            on = f"t._current AND {on}"
        zeros = floating(self.table.columns, self.table.key)  # the row may have the other one
        values = [quoted(name) for name in names if name not in key or name in zeros]
        update = ", ".join(f"t.{name} = s.{name}" for name in values)
        self._spark.sql(
            f"MERGE INTO {self.at('current')} t USING ({selected(source)}) s ON {self.own}{on}"
            f" WHEN MATCHED AND s.{GONE} THEN DELETE"
            + (f" WHEN MATCHED THEN UPDATE SET {update}" if update else "")
            + f" WHEN NOT MATCHED AND NOT s.{GONE} THEN {inserted(names)}"
        )

    def put(self, replace: ReplaceRows, frame: DataFrame, listed: str | None) -> None:
        """Replace ``listed`` rows, or else rows with ``frame``'s keys, as a step's action."""
        # A frame of rows that are stored as they are stays as it is: columns are round trips.
        as_is = not self._casts() and not self.table.mode.columns
        values = {} if as_is else self.values(frame.schema.names)
        stored = frame.selectExpr(*projection(values)) if values else frame
        replace(self.table.stored_table.targets["current"], stored, self.table.row_key, listed)

    def exchange(self, frame: Rows) -> None:
        """MERGE keyless rows: remove equals of `GONE` rows, add others."""

        def action() -> None:
            source = self.view(frame())
            names = [name for name in source if name != GONE]
            compared = self.table.comparable
            on = " AND ".join(equal(quoted(name), kind) for name, kind in compared.items())
            self._spark.sql(
                f"MERGE INTO {self.at('current')} t USING ({selected(source)}) s"
                f" ON {self.own}s.{GONE} AND {on}"
                f" WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.{GONE} THEN {inserted(names)}"
            )

        self.take("current", action, ROWS)

    def values(self, names: Iterable[str]) -> dict[str, str]:
        """Return the stored columns and their values in SQL."""
        casts = self._casts()
        mine, stored_name = self.table.mode.columns, self._format.stored_name
        return {
            stored_name(name) if name in mine else name: casts.get(name) or quoted(name)
            for name in names
        }

    def _casts(self) -> dict[str, str]:
        casts = self._format.casts({**self.table.columns, **LOG_FIELDS})
        return {**casts, **self._format.guarded(self._spark, self.table)}

    def view(self, frame: DataFrame) -> dict[str, str]:
        """Create SQL's view of ``frame``; return its columns (`values`).

        SQL casts them: each column of a frame would be round trips to the JVM.
        """
        frame.createOrReplaceTempView(VIEW)
        return self.values(frame.schema.names)

    def _change(self, kind: str, change: Callable[..., object], *given: object) -> None:
        """Change columns of rows and history, one step each."""
        for what in whats(self.table):
            self.take(what, partial(change, self._spark, self.at(what), *given), kind)

    def evolve(self, renames: Mapping[str, str], gone: Sequence[str], *, rows: bool) -> None:
        """Rename, drop, add and retype columns; ``rows`` have values for existing rows."""
        self.rename(renames)
        self.drop(gone)
        self.add(rows=rows)
        self.retype()

    def rename(self, renames: Mapping[str, str]) -> None:
        """Rename columns, also when they exchange names."""
        pairs = list(renames.items())
        if set(renames.values()) & set(self.table.stored_table.columns):
            temp_names = {old: temp(str(n)) for n, old in enumerate(renames)}
            pairs = [*temp_names.items(), *((temp_names[old], new) for old, new in renames.items())]
        for old, new in pairs:
            self._change(f"rename {old} to {new}", self._format.rename_column, old, new)
        self._rename_unsent(renames)
        columns = {
            renames.get(name, name): kind for name, kind in self.table.stored_table.columns.items()
        }
        divided = tuple(renames.get(name, name) for name in self.table.stored_table.divided)
        self.table = self.table.with_storage(columns=columns, divided=divided)

    def _rename_unsent(self, renames: Mapping[str, str]) -> None:
        """Rename columns in the history's lists of unsent columns."""
        target = self.table.stored_table.targets.get("changes")
        if target is None or not renames:
            return
        where = f"arrays_overlap(_unchanged, array({', '.join(map(literal_of, renames))}))"
        kind = of("rename unsent", renames)
        # Whether a commit that is repeated had this step is in its notes; a vacuum may have
        # removed the rows of before.
        had = self._format.taken(self._spark, self.table, target).get(target.step + 1)
        if had is not None and had.note is not None and had.note.kind:
            needed = had.note.kind == kind[:KIND]
        else:
            needed = not self._format.at_version(self._spark, target).where(where).isEmpty()
        if needed:
            values = {"_unchanged": unchanged_as(renames)}
            self.take("changes", partial(self.update, "changes", values, where), kind)

    def drop(self, names: Sequence[str]) -> None:
        """Drop columns that the source dropped."""
        there = [name for name in names if name in self.table.stored_table.columns]
        if there:
            self._change(of("drop", there), self._format.drop_columns, there)
        columns = {
            name: kind
            for name, kind in self.table.stored_table.columns.items()
            if name not in there
        }
        self.table = self.table.with_storage(columns=columns)

    def add(self, *, rows: bool) -> None:
        """Add columns; ``rows`` have the values for existing rows."""
        new = {
            n: kind
            for n, kind in self.table.columns.items()
            if n not in self.table.stored_table.columns
        }
        if not new:
            return
        self._change(of("add", new), self._format.add_columns, new)
        self.fill(new, rows=rows)
        self.table = self.table.with_storage(columns={**self.table.stored_table.columns, **new})

    def fill(self, new: Iterable[str], *, rows: bool) -> None:
        """Give existing rows older rows' values of ``new`` columns.

        ``rows`` as in `add`.
        """
        known = {
            name: literal(text, sql_type(self._format.stored(self.table.columns[name])))
            for name in new
            if (text := older_value(self.table, {}, name)) is not None
        }
        if known and rows and "current" in self.table.stored_table.targets:
            self.take("current", partial(self.update, "current", known), of("fill", known))

    def update(self, what: What, values: Mapping[str, str], where: str = "") -> None:
        """Set columns to ``values`` (SQL) where ``where`` holds, by default own rows."""
        pairs = ", ".join(f"{quoted(name)} = {value}" for name, value in values.items())
        where = where or self.own_rows
        rows = f" WHERE {where}" if where else ""
        self._spark.sql(f"UPDATE {self.at(what)} SET {pairs}{rows}")

    def retype(self) -> None:
        """Change columns to the table's types: widen, or rewrite rows."""
        stored = self._format.stored
        had, have = self.table.stored_table.columns, self.table.columns
        changed = {
            n: kind
            for n, kind in have.items()
            if had[n] != kind and not same_type(stored(had[n]), stored(kind))
        }
        more = {n: new_fields(stored(had[n]), stored(kind)) for n, kind in changed.items()}
        fields = [((name, *way), kind) for name, each in more.items() for way, kind in each or ()]
        other = {name: kind for name, kind in changed.items() if not more[name]}
        wide = all(self._format.widens(stored(had[n]), stored(k)) for n, k in other.items())
        if fields:
            self._change(of("grow", more), self._format.add_fields, fields)
        for name, kind in other.items() if wide else ():
            self._change(f"widen {name}", self._format.widen_column, name, kind)
        for what in () if wide else whats(self.table):
            self._rewrite(what, other)
        self.table = self.table.with_storage(columns={**had, **have})

    def _rewrite(self, what: What, changed: Mapping[str, str]) -> None:
        mine = {self._format.stored_name(n): kind for n, kind in self.table.mode.columns.items()}
        own = {**self.table.stored_table.columns, **(LOG_FIELDS if what == "changes" else mine)}
        types = {name: self._format.stored(kind) for name, kind in changed.items()}
        target = self.table.stored_table.targets[what]
        for action in self._format.rewriting(self._spark, target, list(own), types):
            self.take(what, action, of("retype", changed))
