"""Errors of ``format("waltap")``."""

from waltap.errors import SinkError

SourceOption = SinkError.define("SourceOption", "WT-5221")
# This query would miss them without an error.
CapturedByAnotherProcess = SinkError.define("CapturedByAnotherProcess", "WT-5266")
OffsetOfAnother = SinkError.define("OffsetOfAnother", "WT-5222")
TableNotLogged = SinkError.define("TableNotLogged", "WT-5223")
# A query has one schema.
ColumnsGrew = SinkError.define("ColumnsGrew", "WT-5224")
# The table was not captured for a while.
ChangesMissing = SinkError.define("ChangesMissing", "WT-5272")
# A query reads all rows with the newest type.
ValuesUnfit = SinkError.define("ValuesUnfit", "WT-5269")
