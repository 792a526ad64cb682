"""SIGHUP of a run: its profile is read again, and what may change while it runs holds from then on."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline import Engine

__all__ = ["START_ANEW", "ProfileReloader", "reloaded_by_signal"]

log = logging.getLogger(__name__)

START_ANEW = 4
"""Exit code of a run that ended since a changed profile needs a new start."""


class ProfileReloader:
    """Reads the profile of ``engine`` again with ``load``, and has run and log (``obey``) go by it.

    ``exits``: the run ends cleanly where something changed that only a new start brings; ``start_anew``
    tells that it did.
    """

    def __init__(
        self,
        engine: "Engine",
        load: "Callable[[], Profile]",
        obey: "Callable[[Profile], None]",
        *,
        exits: bool = False,
    ) -> None:
        self._engine, self._load, self._obey, self._exits = engine, load, obey, exits
        self.start_anew = False

    def again(self) -> None:
        """Do it; what is wrong with the file is told in the log, and changes nothing."""
        extra = {"pipeline": self._engine.profile.name}
        try:
            told = self._engine.reload(self._load())
            self._obey(self._engine.profile)
        except WaltapError as error:
            log.error(  # noqa: TRY400 - the error says it all
                "the profile was read again and is refused, the run goes on with what it has: %s",
                error,
                extra={**extra, "error_code": error.code},
            )
            return
        except Exception as error:  # noqa: BLE001 - a plugin's; the run goes on
            log.error(  # noqa: TRY400
                "the profile could not be read again, the run goes on with what it has: %s: %s",
                type(error).__name__, error, extra=extra,
            )  # fmt: skip
            return
        applied = ", ".join(told.applied)
        log.info("the profile was read again: %s", applied or "nothing to change", extra=extra)
        if told.restart:
            ends = "the run ends for it" if self._exits else "restart it"
            log.warning(
                "changed, and needs a restart (%s): %s", ends, ", ".join(told.restart), extra=extra
            )
            if self._exits:
                self.start_anew = True
                self._engine.stop()


@contextmanager
def reloaded_by_signal(reloading: ProfileReloader, stop: Callable[[], None]) -> Iterator[None]:
    """Read again on SIGHUP while the block lasts, in a thread of its own.

    A terminal that goes away sends the same signal: then the run ends cleanly (``stop``), unless whoever
    started it had the signal ignored (nohup).
    """
    asked: SimpleQueue[bool] = SimpleQueue()  # its put may be called within a signal handler
    on_terminal = _terminal()

    def look() -> None:
        while asked.get():
            if on_terminal and not _terminal():
                stop()
            else:
                reloading.again()

    before = signal.getsignal(signal.SIGHUP)
    on_terminal = on_terminal and before != signal.SIG_IGN
    signal.signal(signal.SIGHUP, lambda _number, _frame: asked.put(True))
    thread = threading.Thread(target=look, name="waltap-reload", daemon=True)
    thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # who started it may hold one back
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if before == signal.SIG_IGN else signal.SIG_DFL)
        asked.put(False)
        thread.join()


def _terminal() -> bool:
    """Tell whether the process has a terminal that is there."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
