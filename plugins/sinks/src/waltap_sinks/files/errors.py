"""Define the errors of a folder of files.

Errors of the file system are in `waltap.base.files.errors`.
"""

from waltap.errors import SinkError
from waltap.ports.sink.stored_position import DestinationBehind

FilesOfAnother = SinkError.define("FilesOfAnother", "WT-5125")
FilesDamaged = SinkError.define("FilesDamaged", "WT-5126")


class FilesGone(DestinationBehind):
    """The folder lacks commits of this pipeline."""

    code = "WT-5127"
    remedy = (
        "Put {path} back as it was and start again: nothing is lost. Else{repair} begin there with a new "
        "snapshot: `waltap offsets clear FILE`."
    )
