"""After a failed flush nothing more: the part of a sink's contract that every durable sink needs."""

from types import TracebackType

from waltap.errors import SinkError

__all__ = ["FailStop"]


class FailStop:
    """Remembers the first failure of the block it guards, and lets nothing through after it.

    An operating system reports a failed write-back once and then drops the pages: the next fsync of the
    same file succeeds without them. So a sink guards its `flush` with ``with self._fail_stop:`` and asks
    `check` in `write`; `reset` belongs into `open`. ``what`` names the destination.
    """

    __slots__ = ("_failure", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Tell whether a guarded block has failed since `reset`."""
        return self._failure is not None

    def check(self) -> None:
        """Raises: SinkError when a guarded block has failed since `reset`."""
        if self._failure is not None:
            raise SinkError(
                f"{self._what} takes and promises nothing more: it failed before ({self._told()})"
            ) from self._failure

    def fail(self, failure: BaseException) -> None:
        """Note a failure that happened outside a guarded block; the first one stays."""
        self._failure = self._failure or failure

    def reset(self) -> None:
        """Begin anew: what was not promised is delivered again."""
        self._failure = None

    def _told(self) -> str:
        failure = self._failure
        return failure.problem if isinstance(failure, SinkError) else repr(failure)

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)
