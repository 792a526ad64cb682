"""Compact tables and remove old files on request.

A process that applies changes maintains the tables by itself when maintenance is due. This
module does it now, for an operator or a scheduler, and holds the output, so that no other
process writes in the meantime.

Tables in place are compacted first; a commit then names the new version; then old files are
removed. In this order the last commit never needs a file whose versions are all older than the
retention, however long the table was idle.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.errors import CommitBegun, TableUnknown
from waltap_spark.formats.choice import choice_of
from waltap_spark.formats.merging import MergingFormat
from waltap_spark.session.session import prepare
from waltap_spark.state.output import OutputState, SparkOutput
from waltap_spark.state.version_maps import committed


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """File counts of one table before and after maintenance."""

    table: str
    before: int = 0
    after: int = 0
    # Why the table was left alone, "" when it was maintained.
    skipped: str = ""


def take(output: SparkOutput) -> OutputState:
    """Lock ``output`` for `maintain`, without Spark.

    Raises: OutputInUse, OutputMismatch, OutputDamaged, CommitBegun; TableUnknown before the
    first commit.
    """
    state = output.state()
    if state is None:
        raise TableUnknown(f"nothing was applied to {output.location} yet", known="none yet")
    log = ChangeLog(output.store.reached_alike(state.changelog))
    state = output.open(log.store.location, log.identity())
    begun = output.begun(state)
    if begun is not None:
        output.close()
        text = f"a driver that died had begun commit {begun.number} of {output.location}"
        raise CommitBegun(text, changelog=state.changelog, output=output.location)
    return state


def maintain(
    spark: SparkSession, output: SparkOutput, *, retention_s: float = 600.0
) -> Iterator[MaintenanceResult]:
    """Maintain all tables of ``output``, and yield each result.

    Files of earlier commits stay for ``retention_s``, versions of formats in place for their
    retention, because readers may use them. Suspended tables are left alone. Raises: as `take`,
    and Spark's errors.
    """
    state = take(output)
    try:
        # These limits make every pending change due for compaction.
        options = ApplyOptions(
            compact_rows=0, compact_share=0.0, compact_sets=1, retention_s=retention_s
        )
        log = ChangeLog(output.store.reached_alike(state.changelog))
        choice = choice_of(state)
        applier = OutputApplier(prepare(spark), log, output, options, choice)
        before = applier.open().tables
        try:
            kind = applier.format
            if isinstance(kind, MergingFormat):
                for name in sorted(before):
                    yield _in_place(prepare(spark), output, applier, kind, name)
                return
            applier.maintain()
            output.collect(retention_s)
            for name in sorted(before):
                had, has = before[name], applier.state.tables[name]
                yield MaintenanceResult(name, len(had.paths()), len(has.paths()), has.failed)
        finally:
            applier.close()
    finally:
        output.close()


def _in_place(
    spark: SparkSession, output: SparkOutput, applier: OutputApplier, kind: MergingFormat, name: str
) -> MaintenanceResult:
    table = applier.state.tables[name]
    if not table.stored_table.targets or table.failed:
        return MaintenanceResult(name, skipped=table.failed or "nothing was written yet")
    if kind.is_awaited(table):
        return MaintenanceResult(name, skipped="another source of its target is suspended")
    had = sum(kind.files(spark, target.at) for target in table.stored_table.targets.values())
    targets = {}
    for what, target in table.stored_table.targets.items():
        kind.compact_files(spark, target.at)
        targets[what] = kind.newest(spark, table, target)
    steps = sum(target.step for target in targets.values())
    moved = {name: table.with_storage(targets=targets, compacted=steps, vacuumed=time.time())}
    # Only after this commit may vacuum remove the files of the version before.
    applier.state = committed(output, applier.state, moved)
    for target in targets.values():
        kind.vacuum(spark, target.at)
    return MaintenanceResult(
        name, had, sum(kind.files(spark, each.at) for each in targets.values())
    )
