"""Define the errors of a database as destination."""

from waltap.errors import RetryVerdict, SinkError

# After it, changes that were not committed come again.
SqlUnreachable = SinkError.define("SqlUnreachable", "WT-5701", retry=RetryVerdict.RECONNECT)
SqlRefused = SinkError.define("SqlRefused", "WT-5702")
# The constraint is UNIQUE, CHECK, NOT NULL, an exclusion, a foreign key to a table that is not
# captured, or a trigger that raises an error.
SqlConstraintViolated = SinkError.define("SqlConstraintViolated", "WT-5703")
# The property schema.evolution does not allow the sink to create the column.
SqlColumnMissing = SinkError.define("SqlColumnMissing", "WT-5704")
SqlValueUnfit = SinkError.define("SqlValueUnfit", "WT-5705")
# The value is an infinite date or ``NaN``. A column outside the key has null instead, but a null key
# would never be found again.
SqlKeyUnfit = SinkError.define("SqlKeyUnfit", "WT-5721")
# It is a view, or it has no unique index on the columns of the key.
SqlTableUnfit = SinkError.define("SqlTableUnfit", "WT-5706")
# The rows of the table are lost, hence ``loses``.
SqlTableGone = SinkError.define("SqlTableGone", "WT-5718", loses=True)
# The reason is row security, a trigger that returns NULL, RAISE(IGNORE), or an INSTEAD rule.
SqlChangeIgnored = SinkError.define("SqlChangeIgnored", "WT-5719")
# MariaDB and MySQL have names of the Basic Multilingual Plane alone, without a space at the end.
SqlNameUnfit = SinkError.define("SqlNameUnfit", "WT-5723")
SqlFunctionFailed = SinkError.define("SqlFunctionFailed", "WT-5722")
# The transaction was undone and is tried again.
SqlConflict = SinkError.define("SqlConflict", "WT-5707", retry=RetryVerdict.SAME_BATCH)
SqlConflictMidway = SqlConflict.define("SqlConflictMidway", "WT-5714", retry=RetryVerdict.RECONNECT)
# The work of this instance was undone.
SqlFenced = SinkError.define("SqlFenced", "WT-5708")
# A backup was restored under the connection, or the row was changed. The next `open` compares it
# with the durable position.
SqlPositionChanged = SinkError.define("SqlPositionChanged", "WT-5720", retry=RetryVerdict.RECONNECT)
# The next `open` reads the result in the table of positions.
SqlCommitUnknown = SinkError.define("SqlCommitUnknown", "WT-5709", retry=RetryVerdict.RECONNECT)
SqlNameTaken = SinkError.define("SqlNameTaken", "WT-5710")
SqlPositionsCaptured = SinkError.define("SqlPositionsCaptured", "WT-5724")
# All targets but PostgreSQL treat them as the same name.
SqlColumnNameTaken = SinkError.define("SqlColumnNameTaken", "WT-5717")
SqlOwnColumnTaken = SinkError.define("SqlOwnColumnTaken", "WT-5716")
SqlFailed = SinkError.define("SqlFailed", "WT-5711")
SqlTransactionGap = SinkError.define("SqlTransactionGap", "WT-5712", retry=RetryVerdict.RECONNECT)
# Committed changes stay.
SqlReadOnly = SinkError.define("SqlReadOnly", "WT-5715", retry=RetryVerdict.RECONNECT)
SqlDriverMissing = SinkError.define("SqlDriverMissing", "WT-5713")
