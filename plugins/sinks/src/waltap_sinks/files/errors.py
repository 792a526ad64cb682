"""Define the errors of a folder of files.

Errors of the file system are in `waltap.base.files.errors`.

```
SinkError
├── FilesOfAnother      WT-5125   another pipeline writes there
├── FilesDamaged        WT-5126   a commit cannot be read
└── FilesGone           WT-5127   commits of this pipeline are missing
```
"""

from waltap.errors import SinkError
from waltap.ports.sink.held import DestinationBehind

FilesOfAnother = SinkError.define(
    "FilesOfAnother",
    "WT-5125",
    "Another pipeline writes to this folder.",
    "Give this pipeline its own folder (sink.path); or, if pipeline {owner!r} no longer writes to "
    "{path}, move that folder away.",
)
FilesDamaged = SinkError.define(
    "FilesDamaged",
    "WT-5126",
    "A commit cannot be read, so the committed files are unknown.",
    "Restore {path} from a copy; or remove it, to continue from the commit before it.",
)


class FilesGone(DestinationBehind):
    """The folder lacks commits of this pipeline."""

    code = "WT-5127"
    remedy = (
        "Put {path} back as it was and start again: nothing is lost. Else{repair} begin there with a new "
        "snapshot: `waltap offsets clear FILE`."
    )
