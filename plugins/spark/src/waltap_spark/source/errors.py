"""What can go wrong with ``format("waltap")``.

SinkError
├── SourceOption        WT-5221   an option of the data source is missing or wrong
├── OffsetOfAnother     WT-5222   a stored offset is one of another change log
├── CapturedElsewhere   WT-5266   what was captured last went somewhere else than to this spool
├── TableNotLogged      WT-5223   the change log has no change of the table
├── ColumnsGrew         WT-5224   a table got columns, or types, that the query does not know
├── ChangesMissing      WT-5272   the change log lacks changes of a table
└── ValuesUnfit         WT-5269   values from before a column got its type do not fit it
"""

from waltap.errors import SinkError

__all__ = [
    "CapturedElsewhere",
    "ChangesMissing",
    "ColumnsGrew",
    "OffsetOfAnother",
    "SourceOption",
    "TableNotLogged",
    "ValuesUnfit",
]


class SourceOption(SinkError):
    """An option of ``format("waltap")`` is missing, or has a value that it cannot have."""

    code = "WT-5221"
    remedy = (
        'Give .option({option!r}, …) as docs/howto/spark.md describes it under "As a data source".'
    )


class CapturedElsewhere(SinkError):
    """What a profile captured up to its stored offset is in another spool, or in the profile's own sink:
    this one would lack it in silence."""

    code = "WT-5266"
    remedy = (
        "Read with the spool (option spool, or none) of the profile's earlier query, or give "
        "this query another profile, with another name, slot and publication. To start over "
        "with a snapshot: `waltap offsets clear {file}`."
    )


class OffsetOfAnother(SinkError):
    """A query goes on from a checkpoint that belongs to another change log."""

    code = "WT-5222"
    remedy = (
        "Give the path of the log that the checkpoint was made with, or a new checkpointLocation to start "
        "over with this one."
    )


class TableNotLogged(SinkError):
    """The change log has no manifest that names the table, so that its columns are not known."""

    code = "WT-5223"
    remedy = (
        "The tables are: {known}. A table appears with its first change or snapshot; one whose "
        "changes were all retired can be read with .schema(…)."
    )


class ColumnsGrew(SinkError):
    """While a query runs, a table gets a column, or a column another type, or another table joins: a query
    has one schema."""

    code = "WT-5224"
    remedy = (
        "Load and start the query again: it continues from its checkpoint, with the new columns "
        'and tables. .option("newColumns", "ignore") leaves new columns and tables out instead.'
    )


class ChangesMissing(SinkError):
    """The change log lacks changes within a query's range.

    The table was not captured for a while.
    """

    code = "WT-5272"
    remedy = (
        '.option("failOnDataLoss", "false") reads on without them. A new snapshot brings the rows as they '
        "are now: stop the pipeline and run `waltap run PROFILE --set snapshot.mode=always` once."
    )


class ValuesUnfit(SinkError):
    """A column has another type than it had: a query has it as it is now, and a value from before does not
    fit that."""

    code = "WT-5269"
    remedy = (
        "Give .schema(…) with a type for {column} that holds old and new values, such as "
        "string, or read from a position after the change of its type."
    )
