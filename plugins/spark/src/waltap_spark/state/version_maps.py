"""Map source positions to table versions, for time travel.

A commit of tables that are written in place adds a version map (*cut*): its position, its time, and the
versions of its tables. The newest ones are in the commit file; older ones are in files, each of
which begins with the versions of all tables. In Parquet the remaining commits are the past. Knows no
Spark.
"""

import datetime as dt
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from waltap.changes.transactions.position import parse_lsn
from waltap.errors import SinkError
from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.errors import VersionGone
from waltap_spark.state.commit_files import read_document
from waltap_spark.state.output import OutputState, SparkOutput, TableState, VersionMap, Versions

# A position with all its digits, so that a date such as 2026-03-01 is not a position.
_LOG_POSITION: Final = re.compile(r"[0-9a-f]{4,}-[0-9a-f]{16}-[0-9a-f]{6,}", re.IGNORECASE)


def parse_position(text: str) -> LogPosition | int:
    """Return the position or the LSN in ``text``.

    Raises: ValueError when it is neither.
    """
    is_position = _LOG_POSITION.fullmatch(text.strip())
    return LogPosition.parse(text.strip()) if is_position else parse_lsn(text)


FOLDER: Final = "_waltap/cuts"
# Cuts in a commit file, which is written at each commit; then they go to another file.
CUTS_MOST: Final = 256

# Retention of files of cuts; the formats keep versions for a shorter time by default.
RETENTION_S: Final = 30 * 86_400.0


class _CutBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A file of cuts, oldest first, and the versions before."""

    before: Versions
    cuts: tuple[VersionMap, ...]


def noted(
    output: SparkOutput,
    state: OutputState,
    before: OutputState,
    renamed: Mapping[str, tuple[str, str]] | None = None,
) -> OutputState:
    """Return ``state`` with its cut; ``before`` is the previous commit.

    ``renamed``: name before → schema and table after it.
    """
    was = {".".join(name): had for had, name in renamed.items()} if renamed else {}
    moved = {
        name: _versions(table)
        for name, table in state.tables.items()
        if table is not before.tables.get(name) and table.stored_table.targets
    }
    called = dict(zip(was.values(), was, strict=True))
    for before_name, had in before.tables.items():
        # versions are numbers of one table: another table that took the name may have the same
        name = called.get(before_name, before_name)
        if name in moved and had.stored_table.targets and _versions(had) == moved[name]:
            del moved[name]
    cut = VersionMap(
        number=state.number,
        log_position=state.log_position,
        committed_at=state.committed_at,
        last_commit_ts=state.last_commit_ts,
        versions=moved,
        was=was,
    )
    cuts, first = (*state.cuts, cut), state.cuts_before
    if len(cuts) > CUTS_MOST:
        old = cuts[:CUTS_MOST]
        block = _CutBlock(before=first, cuts=old)
        output.store.publish(f"{FOLDER}/{old[0].number:012d}.json", msgspec.json.encode(block))
        for one in old:
            first = _following(first, one)
        cuts = cuts[CUTS_MOST:]
        _forget(output, state.committed_at - RETENTION_S)
    return msgspec.structs.replace(state, cuts=cuts, cuts_before=first)


def committed(
    output: SparkOutput, before: OutputState, tables: Mapping[str, TableState]
) -> OutputState:
    """Commit ``tables`` with the same rows in other files."""
    state = msgspec.structs.replace(
        before,
        number=before.number + 1,
        committed_at=time.time(),
        tables={**before.tables, **tables},
    )
    state = noted(output, state, before)
    output.commit(state)
    return state


def state_at(
    output: SparkOutput, state: OutputState, moment: "LogPosition | int | dt.datetime"
) -> OutputState:
    """Return the last commit at or before ``moment``.

    It is a position of the log, an LSN, or a commit time of the source. Raises: VersionGone.
    """
    # A position of the future would silently give the newest rows, which change later.
    now = state.log_position
    if (isinstance(moment, int) and moment > now.end_lsn) or (
        isinstance(moment, LogPosition) and moment > now
    ):
        raise _gone(f"{_shown(moment)} was not applied yet", _oldest(output, state), now)
    if not state.cuts:
        return _among_commits(output, state, moment)
    later: list[VersionMap] = []
    for block in _blocks(output, state):
        versions, found = dict(block.before), None
        passed: list[VersionMap] = []
        for cut in block.cuts:
            passed.append(cut)
            if _reached(cut, moment, state.log_position.epoch):
                for each in passed:
                    versions = _following(versions, each)
                passed, found = [], cut
            # A snapshot has only the time when it was applied, maybe long after the next
            # transaction.
            elif not isinstance(moment, dt.datetime) or cut.last_commit_ts is not None:
                break
        if found is not None:
            after = [each for each in block.cuts if each.number > found.number]
            return _as_of(state, found, versions, [*after, *later])
        later = [*block.cuts, *later]
    raise _gone(f"there is no commit at or before {_shown(moment)}", _oldest(output, state), now)


def _versions(table: TableState) -> dict[str, int]:
    return {what: target.version for what, target in table.stored_table.targets.items()}


def _reached(
    cut: "VersionMap | OutputState", moment: "LogPosition | int | dt.datetime", epoch: int
) -> bool:
    """Return whether a cut is at or before the moment."""
    if isinstance(moment, LogPosition):
        return cut.log_position <= moment
    if isinstance(moment, int):
        return cut.log_position <= LogPosition(epoch, moment, 1 << 62)
    at = cut.committed_at if cut.last_commit_ts is None else cut.last_commit_ts / 1e6
    return at <= moment.timestamp()


def _blocks(output: SparkOutput, state: OutputState) -> Iterator[_CutBlock]:
    """Yield the cuts, newest first."""
    yield _CutBlock(before=state.cuts_before, cuts=state.cuts)
    for name in sorted(output.store.names(FOLDER), reverse=True):
        yield _block(output, name)


def _block(output: SparkOutput, name: str) -> _CutBlock:
    return read_document(output.store, f"{FOLDER}/{name}", _CutBlock, "has no cuts")


def _following(versions: Versions, cut: VersionMap) -> Versions:
    """Return the versions at ``cut``; ``versions`` are those before."""
    replaced = set(cut.was.values())
    stay = {name: each for name, each in versions.items() if name not in replaced}
    moved = {name: versions[had] for name, had in cut.was.items() if had in versions}
    return {**stay, **moved, **cut.versions}


def _called_then(name: str, later: Sequence[VersionMap]) -> str:
    """Return a table's name before the cuts ``later``, "" if unknown."""
    for cut in reversed(later):
        if name in cut.was:
            name = cut.was[name]
        elif name in cut.was.values():
            return ""  # the name was another table's before
    return name


def name_now(output: SparkOutput, state: OutputState, number: int, name: str) -> str:
    """Return the present name of ``name`` at commit ``number``."""
    later: list[VersionMap] = []
    for block in _blocks(output, state):
        later = [*(cut for cut in block.cuts if cut.number > number), *later]
        if block.cuts and block.cuts[0].number <= number:
            break
    for cut in later:
        name = next((after for after, had in cut.was.items() if had == name), name)
    return name


def _as_of(
    state: OutputState, cut: VersionMap, versions: Versions, later: list[VersionMap]
) -> OutputState:
    """Return the tables of ``state`` at ``cut``."""
    tables = {}
    for name, table in state.tables.items():
        then = versions.get(_called_then(name, later), {})
        targets = {
            what: msgspec.structs.replace(target, version=then[what])
            for what, target in table.stored_table.targets.items()
            if what in then
        }
        tables[name] = table.with_storage(targets=targets)
    return msgspec.structs.replace(
        state,
        number=cut.number,
        log_position=cut.log_position,
        committed_at=cut.committed_at,
        last_commit_ts=cut.last_commit_ts,
        tables=tables,
    )


def _among_commits(
    output: SparkOutput, state: OutputState, moment: "LogPosition | int | dt.datetime"
) -> OutputState:
    there = {path for table in state.tables.values() for path in table.paths()}
    there |= output.garbage.paths()
    readable = [
        found
        for found in output.readable_states()
        if all(path in there for table in found.tables.values() for path in table.paths())
    ]
    for found in sorted(readable, key=lambda each: each.number, reverse=True):
        if _reached(found, moment, state.log_position.epoch):
            return found
    oldest = min((found.log_position for found in readable), default=state.log_position)
    raise _gone(f"there is no commit at or before {_shown(moment)}", oldest, state.log_position)


def _oldest(output: SparkOutput, state: OutputState) -> LogPosition:
    names = output.store.names(FOLDER)
    cuts = _block(output, min(names)).cuts if names else state.cuts
    found: Iterable[VersionMap | OutputState] = cuts or output.readable_states()
    return min((each.log_position for each in found), default=state.log_position)


def _gone(text: str, oldest: LogPosition, newest: LogPosition) -> SinkError:
    return VersionGone(text, oldest=str(oldest), newest=str(newest))


def _shown(moment: "LogPosition | int | dt.datetime") -> str:
    return f"LSN {moment:X}" if isinstance(moment, int) else str(moment)


def _forget(output: SparkOutput, limit: float) -> None:
    names = sorted(output.store.names(FOLDER))
    # The newest file stays: the commit file's own cuts continue its versions.
    for name in names[:-1]:
        if _block(output, name).cuts[-1].committed_at >= limit:
            return
        output.store.delete(f"{FOLDER}/{name}")
