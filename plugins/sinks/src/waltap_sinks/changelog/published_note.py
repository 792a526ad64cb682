"""How far a change log went when this pipeline wrote to it last, kept in the pipeline's own state."""

import contextlib
from pathlib import Path

from waltap_sinks.changelog.manifest import Mark

__all__ = ["PublishedNote"]


class PublishedNote:
    """The file ``path``, about the log at ``log``: an empty or older one is then not the one it was."""

    def __init__(self, path: Path, log: str) -> None:
        self._path, self._log = path, log

    def write(self, mark: Mark) -> None:
        """Note how far the log goes now; what fails is only a check."""
        draft = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(f"{self._log}\n{mark}")
            draft.replace(self._path)

    def read(self) -> Mark | None:
        """Return how far this log went; None: nothing was written to it, or this is not known."""
        try:
            log, _, mark = self._path.read_text().rpartition("\n")
            epoch, end_lsn, ordinal = (int(number, 16) for number in mark.split("-"))
        except (OSError, ValueError):
            return None
        return Mark(epoch, end_lsn, ordinal) if log == self._log else None

    def forget(self) -> None:
        """Remove the note."""
        self._path.unlink(missing_ok=True)
