"""Rename tables in a catalogue, as the source renamed its tables.

A rename is no commit of the table, so the table's log lacks it. A driver therefore notes the
tables' own ids, with their names before and after, before it renames the first one
(`CommitIntent.moves`). Another driver that finishes the commit finds each table by its id. Tables
that exchange names get a spare name in between.
"""

from collections.abc import Callable, Iterable

from waltap_spark.state.output import TargetMove


def spare(move: TargetMove) -> str:
    """Return the name of a table between two renames."""
    return f"{move.new.removesuffix('`')}_waltap`"


def renamed(
    moves: Iterable[TargetMove],
    identity: Callable[[str], str | None],
    rename: Callable[[str, str], bool],
) -> dict[TargetMove, str]:
    """Rename the tables that are not renamed yet; return the name of each.

    ``identity`` returns the id of the table of a name, None if there is none. ``rename`` returns
    whether the catalogue took the new name; else the table keeps its name.
    """
    found = {move: _found(move, identity) for move in moves}
    at = {move: name or move.old for move, name in found.items()}
    waiting = [move for move, name in found.items() if name not in (None, move.new)]
    while waiting:
        taken = {at[move] for move in waiting}
        free = next((move for move in waiting if move.new not in taken), None)
        move = waiting[0] if free is None else free
        goal = spare(move) if free is None else move.new
        done = rename(at[move], goal)
        if done:
            at[move] = goal
        if free is not None or not done:
            waiting.remove(move)
    return at


def _found(move: TargetMove, identity: Callable[[str], str | None]) -> str | None:
    """Return the present name of the table, None if it is gone."""
    names = move.old, move.new, spare(move)
    return next((name for name in names if identity(name) == move.identity), None)
