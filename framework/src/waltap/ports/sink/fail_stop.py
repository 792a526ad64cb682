"""Stop a sink after its first failed flush."""

from types import TracebackType

from waltap.errors import SinkError


class FailStop:
    """Keeps the first failure of a guarded block and refuses later ones.

    An operating system reports a failed write-back once and then drops the pages: the next fsync of the
    same file succeeds without them. So a sink guards its `flush` with ``with self._fail_stop:`` and calls
    `check` in `write` and `reset` in `open`. ``what`` names the destination.
    """

    __slots__ = ("_failure", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Return whether a guarded block has failed since `reset`."""
        return self._failure is not None

    def check(self) -> None:
        """Raise SinkError if a guarded block has failed since `reset`."""
        if self._failure is not None:
            raise SinkError(
                f"{self._what} takes and promises nothing more: it failed before ({self._failure_text()})"
            ) from self._failure

    def fail(self, failure: BaseException) -> None:
        """Record a failure outside a guarded block; the first one stays."""
        self._failure = self._failure or failure

    def reset(self) -> None:
        """Forget the failure: the engine redelivers unconfirmed batches."""
        self._failure = None

    def _failure_text(self) -> str:
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
