"""Define the errors of a database as destination.

```
SinkError
├── SqlUnreachable         WT-5701   it does not answer, or ended the connection
├── SqlRefused             WT-5702   it refuses the login or the action
├── SqlConstraintViolated  WT-5703   a change breaks a constraint of the target
├── SqlColumnMissing       WT-5704   a column or table is missing and may not be created
├── SqlValueUnfit          WT-5705   a value does not fit the target's column
├── SqlTableUnfit          WT-5706   the object with the table's name cannot be written
├── SqlConflict            WT-5707   deadlock, lock timeout, serialization failure
├── SqlFenced              WT-5708   another instance took over
├── SqlCommitUnknown       WT-5709   the connection was lost during a commit
├── SqlNameTaken           WT-5710   two tables of the source lead to one table
├── SqlFailed              WT-5711   the target refused a statement for another reason
├── SqlTransactionGap      WT-5712   a transaction arrived without its beginning
├── SqlDriverMissing       WT-5713   the driver is not installed
├── SqlConflictMidway      WT-5714   a conflict within a large transaction
├── SqlReadOnly            WT-5715   it is a standby or read-only
├── SqlHistoryColumnTaken  WT-5716   a table has a column with the name of a history's own
├── SqlColumnNameTaken     WT-5717   two columns have one name in the target
├── SqlTableGone           WT-5718   a table or column that had rows is missing
├── SqlChangeIgnored       WT-5719   the target ignored a change: policies, triggers, rules
├── SqlPositionChanged     WT-5720   the stored position is not the committed one
├── SqlKeyUnfit            WT-5721   the target's type cannot hold a value of a key
└── SqlFunctionFailed      WT-5722   a function of the target finds no such name
```
"""

from waltap.errors import RetryVerdict, SinkError

# Changes that were not committed come again.
SqlUnreachable = SinkError.define(
    "SqlUnreachable",
    "WT-5701",
    "The target does not answer, or it ended the connection.",
    "A run that was connected reconnects by itself; otherwise check that the server of {url} is "
    "up, reachable, and has room for one more connection.",
    retry=RetryVerdict.RECONNECT,
)
SqlRefused = SinkError.define(
    "SqlRefused",
    "WT-5702",
    "The target refuses the login or an action of the sink.",
    "Check user and password of the sink's url. The user needs CREATE on the schema, or tables "
    "that are there with schema.evolution = none; and SELECT, INSERT, UPDATE and DELETE on these "
    "and on the table of positions ({positions}).",
)
# It is UNIQUE, CHECK, NOT NULL, an exclusion, or a foreign key to a table that is not captured.
SqlConstraintViolated = SinkError.define(
    "SqlConstraintViolated",
    "WT-5703",
    "A change breaks a constraint of the target.",
    "Drop the constraint in the target, or correct the conflicting rows ({table}), and start "
    "again: delivery continues with the transaction that commits at {position}.",
)
# schema.evolution does not allow the sink to create it.
SqlColumnMissing = SinkError.define(
    "SqlColumnMissing",
    "WT-5704",
    "The target lacks a table or column of a change.",
    "Create it: {statement}; or set schema.evolution = basic; or leave the column out with "
    "column.exclude.list. Then start again: nothing was confirmed.",
)
SqlValueUnfit = SinkError.define(
    "SqlValueUnfit",
    "WT-5705",
    "A value is too long, too large or of the wrong kind for its column.",
    "Widen the column of {table} (ALTER TABLE), or set schema.evolution = basic if it is none, "
    "and start again: delivery continues with the transaction that commits at {position}.",
)
# It is an infinite date or ``NaN``. Another column has null in its place, but a null key would
# never be found again.
SqlKeyUnfit = SinkError.define(
    "SqlKeyUnfit",
    "WT-5721",
    "The target's type cannot hold a value of a key.",
    "Set waltap.arrow.out.of.range = string where the column is a date, a time or a numeric. "
    "Where the target's column takes no text (SQLite's does), drop the table there, too: the next "
    "start ends with WT-5718, and `waltap repair FILE` creates the table again. Or give the table "
    "a key at the source that has no such values; or leave it out with table.exclude.list = "
    "{source}. Nothing of this change was confirmed.",
)


class SqlTableUnfit(SinkError):
    """The table cannot be written by key.

    It is a view, or it has no unique index on the columns of the key.
    """

    code = "WT-5706"
    remedy = (
        "Add the missing index: {statement}; or choose another name by table.name.format. Then "
        "start again: nothing was confirmed."
    )


# Its rows are lost.
SqlTableGone = SinkError.define(
    "SqlTableGone",
    "WT-5718",
    "A table or column that the sink wrote to is missing.",
    "Restore it from a backup of the target; or `waltap repair FILE` creates it again and reads "
    "its rows. If you do not need it, leave it out of table.include.list or column.include.list.",
    loses=True,
)


class SqlChangeIgnored(SinkError):
    """The target ignores a change or hides rows.

    The reason is row security, a trigger that returns NULL, RAISE(IGNORE), or an INSTEAD rule.
    """

    code = "WT-5719"
    remedy = (
        "Make the target apply writes: {statement}. Then start again: nothing of this change "
        "was confirmed."
    )


SqlFunctionFailed = SinkError.define(
    "SqlFunctionFailed",
    "WT-5722",
    "A function in the target finds no such table or function.",
    "Give the function its own search_path: {statement} (the schemas of the names in it); or "
    "qualify the names in it by schema. Then start again: nothing of this change was confirmed.",
)


class SqlConflict(SinkError):
    """Another session caused a deadlock, a lock timeout or a serialization failure.

    The transaction was undone and is tried again.
    """

    code = "WT-5707"
    retry = RetryVerdict.SAME_BATCH
    remedy = (
        "If this lasts, see which sessions of the target write or lock "
        "the same tables, and end them."
    )


SqlConflictMidway = SqlConflict.define(
    "SqlConflictMidway",
    "WT-5714",
    "A conflict undid earlier batches of a large transaction, too.",
    "If this lasts, see which sessions of the target write or lock the same tables, and end them.",
    retry=RetryVerdict.RECONNECT,
)
# The work of this instance was undone.
SqlFenced = SinkError.define(
    "SqlFenced",
    "WT-5708",
    "Another instance of this pipeline writes to the target now.",
    "Leave one instance running. If they are two pipelines, give each its own `name`: {pipeline} "
    "is in use in {positions}.",
)
# A backup was restored under the connection, or the row was changed. The next `open` compares it
# with the durable position.
SqlPositionChanged = SinkError.define(
    "SqlPositionChanged",
    "WT-5720",
    "The stored position of this pipeline is not the one it committed last.",
    "waltap connects again, reads {positions}, and ends with WT-5003 where the target has less "
    "than it had. Only waltap writes there.",
    retry=RetryVerdict.RECONNECT,
)
# The next `open` reads the result in the table of positions.
SqlCommitUnknown = SinkError.define(
    "SqlCommitUnknown",
    "WT-5709",
    "The connection was lost during a commit.",
    "waltap reconnects and reads {positions}: committed changes are not applied again, others are "
    "repeated.",
    retry=RetryVerdict.RECONNECT,
)
SqlNameTaken = SinkError.define(
    "SqlNameTaken",
    "WT-5710",
    "Two tables of the source map to one table of the target.",
    "Put the schema into table.name.format, leave one table out with table.exclude.list (if names "
    "differ only by case, by (?-i:public\\.Orders)), or give histories another "
    "history.table.suffix. If the source no longer has one of the tables, or renamed it (rename "
    "it in the target as well), delete its row in the target's table waltap_position_tables.",
)
# All targets but PostgreSQL treat them as the same name.
SqlColumnNameTaken = SinkError.define(
    "SqlColumnNameTaken",
    "WT-5717",
    "Two columns of a table have names that differ in case only.",
    "Leave one of them out with column.exclude.list = {column}, or rename it at the source.",
)
SqlHistoryColumnTaken = SinkError.define(
    "SqlHistoryColumnTaken",
    "WT-5716",
    "A table has a column with the name of its history's own column.",
    "Set history.column.prefix to something that no column begins with, as h_.",
)
SqlFailed = SinkError.define(
    "SqlFailed",
    "WT-5711",
    "The target refused a statement for another reason.",
    "See the target's message, correct it there, and start again: delivery continues with the "
    "transaction that commits at {position}.",
)
SqlTransactionGap = SinkError.define(
    "SqlTransactionGap",
    "WT-5712",
    "The sink got the middle of a transaction without its beginning.",
    "Delivery starts again from the table of positions; if this lasts, report it as a bug.",
    retry=RetryVerdict.RECONNECT,
)
# Committed changes stay.
SqlReadOnly = SinkError.define(
    "SqlReadOnly",
    "WT-5715",
    "The target is a standby or was made read-only.",
    "A run that was connected continues by itself when {url} leads to a writable server: the "
    "primary (target_session_attrs=read-write in the url finds it), or this one, writable again.",
    retry=RetryVerdict.RECONNECT,
)
SqlDriverMissing = SinkError.define(
    "SqlDriverMissing",
    "WT-5713",
    "The driver for this kind of database is not installed.",
    "Install it: pip install {package}",
)
