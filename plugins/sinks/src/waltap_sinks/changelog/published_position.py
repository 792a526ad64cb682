"""How far a change log went when this pipeline wrote to it last, kept in the pipeline's own state."""

import contextlib
from pathlib import Path

from waltap.offsets.private_file import private, private_folder
from waltap_sinks.changelog.manifest import LogPosition

__all__ = ["PublishedNote"]


class PublishedNote:
    """The file ``path``, about the log at ``log``: an empty or older one is then not the one it was.
    ``identity`` is that of the log, which it has elsewhere, too."""

    def __init__(self, path: Path, log: str) -> None:
        self._path, self._log = path, log
        self.identity = ""

    def write(self, mark: LogPosition) -> None:
        """Note how far the log goes now; what fails is only a check."""
        draft = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            with open(draft, "w", opener=private) as file:
                file.write(f"{self._log}\n{self.identity}\n{mark}")
            draft.replace(self._path)

    def read(self) -> LogPosition | None:
        """Return how far this log went; None: nothing was written to it, or this is not known."""
        try:
            about, _, mark = self._path.read_text().rpartition("\n")
            epoch, end_lsn, ordinal = (int(number, 16) for number in mark.split("-"))
        except (OSError, ValueError):
            return None
        log, _, identity = about.rpartition("\n")
        own = self._log in {log, about} or (
            identity and identity == self.identity
        )  # 0.1: no identity
        return LogPosition(epoch, end_lsn, ordinal) if own else None

    def forget(self) -> None:
        """Remove the note."""
        self._path.unlink(missing_ok=True)
