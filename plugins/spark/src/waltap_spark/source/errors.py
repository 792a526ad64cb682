"""Errors of ``format("waltap")``.

SinkError
├── SourceOption        WT-5221   an option of the data source is missing or wrong
├── OffsetOfAnother     WT-5222   the checkpoint belongs to another change log
├── CapturedElsewhere   WT-5266   the profile captured its latest changes to another place
├── TableNotLogged      WT-5223   the change log has no change of the table
├── ColumnsGrew         WT-5224   a table has columns or types that the query does not know
├── ChangesMissing      WT-5272   the change log lacks changes of a table
└── ValuesUnfit         WT-5269   older values do not fit a column's new type
"""

from waltap.errors import SinkError

SourceOption = SinkError.define(
    "SourceOption",
    "WT-5221",
    'An option of ``format("waltap")`` is missing or invalid.',
    'Give .option({option!r}, …) as docs/howto/spark.md describes it under "As a data source".',
)
# This query would miss them without an error.
CapturedElsewhere = SinkError.define(
    "CapturedElsewhere",
    "WT-5266",
    "A profile captured its latest changes to another place than this private log.",
    "Read with the `changelogLocation` of the profile's earlier query (none, if it had none), or give "
    "this query another profile, with another name, slot and publication. To start over with a "
    "snapshot: `waltap offsets clear {file}`.",
)
OffsetOfAnother = SinkError.define(
    "OffsetOfAnother",
    "WT-5222",
    "The query's checkpoint belongs to another change log.",
    "Give the path of the log that the checkpoint was made with, or a new checkpointLocation to "
    "start over with this one.",
)
TableNotLogged = SinkError.define(
    "TableNotLogged",
    "WT-5223",
    "No manifest names the table, so its columns are unknown.",
    "The tables are: {known}. A table appears with its first change or snapshot; one whose "
    "changes have all expired can be read with .schema(…).",
)
# A query has one schema.
ColumnsGrew = SinkError.define(
    "ColumnsGrew",
    "WT-5224",
    "A table or column joined, or a type changed, during a query.",
    "Load and start the query again: it continues from its checkpoint, with the new columns and "
    'tables. .option("newColumns", "ignore") leaves new columns and tables out instead.',
)
# The table was not captured for a while.
ChangesMissing = SinkError.define(
    "ChangesMissing",
    "WT-5272",
    "The change log lacks changes within a query's range.",
    '.option("failOnDataLoss", "false") reads on without them. A new snapshot brings the rows as '
    "they are now: stop the pipeline and run `waltap run PROFILE --set snapshot.mode=always` once.",
)
# A query reads all rows with the newest type.
ValuesUnfit = SinkError.define(
    "ValuesUnfit",
    "WT-5269",
    "A column's older values do not fit its new type.",
    "Give .schema(…) with a type for {column} that holds old and new values, such as string, or "
    "read from a position after the change of its type.",
)
