"""Files that name every row which only a destination has, with the SQL that removes it there."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltap.offsets.private_file import private, private_folder
from waltap.offsets.state_folder import DIFFERENCES
from waltap.printable import printable
from waltap_sinks.comparison.differences import TableDifferences, key_shown

if TYPE_CHECKING:
    from waltap.config.profile import Profile

__all__ = ["write_surplus"]

NO_NAME: Final = re.compile(r"[^\w.-]")


def write_surplus(
    profile: "Profile", sink: str, found: Iterable[TableDifferences]
) -> Mapping[str, Path]:
    """Write a file for each table with rows that the source has no more, in the pipeline's state folder;
    return where, by table. Files of tables that have none now are removed. Raises: OSError."""
    folder = profile.engine.state_dir / profile.name / DIFFERENCES
    places = {}
    for each in found:
        stem = NO_NAME.sub("_", f"{sink} {each.table}")
        files = {True: folder / f"{stem}.sql", False: folder / f"{stem}.txt"}
        for path in files.values():
            path.unlink(missing_ok=True)
        if each.surplus_keys and each.verdict == "different":
            path = files[bool(each.removal)]
            private_folder(folder)
            with os.fdopen(private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.writelines(f"{line}\n" for line in _lines(each))
            places[each.table] = path
    return places


def _lines(found: TableDifferences) -> Iterable[str]:
    if found.removal:
        yield f"-- {len(found.surplus_keys)} rows of {printable(found.table)} that the source has no more"
        yield from found.removal
        return
    for key in sorted(found.surplus_keys, key=str):
        yield printable(key_shown(found.key, key))
