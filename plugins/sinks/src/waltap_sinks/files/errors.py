"""What can go wrong with a folder of files; what filesystems refuse is `waltap.base.files.errors`.

SinkError
├── FilesOfAnother      WT-5125   another pipeline writes there
├── FilesDamaged        WT-5126   a commit is not what it should be
└── FilesGone           WT-5127   what this pipeline committed is not there any more
"""

from waltap.errors import SinkError
from waltap.ports.sink.held import DestinationBehind

__all__ = ["FilesDamaged", "FilesGone", "FilesOfAnother"]


class FilesOfAnother(SinkError):
    """Another pipeline writes to this folder."""

    code = "WT-5125"
    remedy = (
        "Give this pipeline a folder of its own (sink.path); or, when pipeline {owner!r} is not to write "
        "{path} any more, move that folder away."
    )


class FilesDamaged(SinkError):
    """A commit cannot be read: nobody knows then which files count."""

    code = "WT-5126"
    remedy = (
        "Restore {path} from a copy; or remove it, when the commit before it is to be gone on from."
    )


class FilesGone(DestinationBehind):
    """The folder has no commits, or older ones, though this pipeline has committed to it."""

    code = "WT-5127"
    remedy = (
        "Put {path} back as it was and start again: nothing is lost. Else{repair} begin there with a new "
        "snapshot: `waltap offsets clear FILE`."
    )
