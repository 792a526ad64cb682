"""Errors of lakes.

```
SinkError
├── LakeUnavailable     WT-5551   store or catalogue does not answer, or a write failed
├── LakeRefused         WT-5552   store or catalogue refuses the user or the action
├── LakeTableUnfit      WT-5553   a table cannot accept the source's columns
├── LakeFenced          WT-5554   another instance writes there
├── LakeGone            WT-5555   files of a written table are missing
└── LakeTransactionGap  WT-5556   a transaction arrived without its beginning
```
"""

from waltap.errors import RetryVerdict, SinkError

LakeUnavailable = SinkError.define(
    "LakeUnavailable",
    "WT-5551",
    "The store or the catalogue does not answer, or a write failed.",
    "If this lasts, "
    "check whether {place} is up and has room, and whether path, storage.* or catalog.* of the "
    "sink name it.",
    retry=RetryVerdict.RECONNECT,
)
LakeRefused = SinkError.define(
    "LakeRefused",
    "WT-5552",
    "The store or the catalogue refuses the user or the action.",
    "Correct the credentials of the sink (storage.* or catalog.*, or the environment's) and their "
    "rights at {place}: read, write, list and delete; then start again: it continues where it "
    "stopped.",
)
LakeTableUnfit = SinkError.define(
    "LakeTableUnfit",
    "WT-5553",
    "A table cannot accept a new column, or a column's new type.",
    "Widen the column there with the lake's tools, or rename {table} away: the next start makes a "
    "new table with the source's columns, and continues after the old one's position. "
    "column.exclude.list leaves a column out.",
)
LakeFenced = SinkError.define(
    "LakeFenced",
    "WT-5554",
    "Another instance of this pipeline has written to the tables.",
    "Leave one instance of pipeline {pipeline} running; two pipelines need different names. Then "
    "start again: it continues after the tables' positions.",
)
LakeGone = SinkError.define(
    "LakeGone",
    "WT-5555",
    "Files of a table that this pipeline wrote are missing.",
    "Restore {place}. Or remove the rest of the named table, and read the captured tables again "
    "by `waltap repair FILE`, or from the beginning by `waltap offsets clear FILE` and a start.",
    loses=True,
)
LakeTransactionGap = SinkError.define(
    "LakeTransactionGap",
    "WT-5556",
    "A transaction or a snapshot arrived without its beginning.",
    "waltap reads again from the stored position; if it comes back, please report it.",
    retry=RetryVerdict.RECONNECT,
)
