"""Errors of lakes."""

from waltap.errors import RetryVerdict, SinkError

LakeUnavailable = SinkError.define("LakeUnavailable", "WT-5551", retry=RetryVerdict.RECONNECT)
LakeRefused = SinkError.define("LakeRefused", "WT-5552")
LakeTableUnfit = SinkError.define("LakeTableUnfit", "WT-5553")
LakeFenced = SinkError.define("LakeFenced", "WT-5554")
LakeGone = SinkError.define("LakeGone", "WT-5555", loses=True)
LakeTransactionGap = SinkError.define("LakeTransactionGap", "WT-5556", retry=RetryVerdict.RECONNECT)
