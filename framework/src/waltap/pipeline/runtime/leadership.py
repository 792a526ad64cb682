"""Decide when this process may run the pipeline.

It may always, or with ``waltap.standby`` while it has the lease.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Self

from waltap.base.network.retry import RetryBackoff
from waltap.config.profile import Component
from waltap.errors import RetryVerdict, SourceError, StopRequested, WaltapError
from waltap.ports.source.lease import LeaderLease, LeaseContext
from waltap.ports.specs import ConnectorSpec

log = logging.getLogger(__name__)

POLL_S = 0.5
RENEWALS = 4
"""Renewals during one lease: some may fail."""

LeaseLost = SourceError.define("LeaseLost", "WT-2017", retry=RetryVerdict.RECONNECT)
LeaseUnavailable = SourceError.define("LeaseUnavailable", "WT-2018")


def leases_of(component: Component[ConnectorSpec]) -> Callable[[Any, LeaseContext], LeaderLease]:
    """Return the function that opens leases. Raises: LeaseUnavailable."""
    if component.spec.lease is None:
        raise LeaseUnavailable(
            f"waltap.standby is asked for, and {component.spec.name} keeps no lease"
        )
    return component.spec.lease


class Leadership:
    """Allow this process to run the pipeline while the block lasts.

    `check` is cheap: it runs before each write to the sink, each flush and each store. Without
    ``open_lease`` the right never ends. ``report`` gets the owner of the lease while another process has
    it.
    """

    def __init__(
        self,
        open_lease: Callable[[], LeaderLease] | None,
        *,
        seconds: float,
        wait: Callable[[float], bool],
        backoff: Callable[[], RetryBackoff],
        report: Callable[[str], None],
    ) -> None:
        self._open, self.seconds = open_lease, seconds
        self._wait, self._backoff, self._report = wait, backoff, report
        self._lease: LeaderLease | None = None
        self._linked = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def leased(self) -> bool:
        """Return whether the right to run is a lease."""
        return self._open is not None

    @property
    def held(self) -> bool:
        """Return whether this process may write now."""
        return self._open is None or (self._lease is not None and self._lease.held())

    def check(self) -> None:
        """Raise LeaseLost if this process may no longer write."""
        if self._open is not None and not self.held:
            raise LeaseLost(
                f"the lease was not renewed for {self.seconds:g} s, and another process may have it"
            )

    def outlast(self, seconds: float) -> None:
        """Wait until the lease of an earlier owner has expired.

        Raises: LeaseLost, StopRequested.
        """
        remaining = seconds
        while remaining > 0:
            self._pause(min(remaining, POLL_S))
            self.check()
            remaining -= POLL_S

    def __enter__(self) -> Self:
        """Wait for the lease. Raises: SourceError, StopRequested."""
        if self._open is None:
            return self
        self._lease = self._acquired(self._open)
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._keep, args=(self._lease,), name="waltap-lease", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _acquired(self, open_lease: Callable[[], LeaderLease]) -> LeaderLease:
        """Return the lease when this process has it.

        After a first connection a lost source is tried again; before, its error is one of setup.
        """
        waits = self._backoff()
        while True:
            try:
                return self._awaited(open_lease(), waits)
            except WaltapError as error:
                if error.retry is not RetryVerdict.RECONNECT or not self._linked:
                    raise
                log.warning("the lease cannot be asked for: %s", error)
                if not waits.wait():
                    raise

    def _awaited(self, lease: LeaderLease, waits: RetryBackoff) -> LeaderLease:
        self._linked = True
        try:
            while (owner := lease.take()) is not None:
                self._report(owner)
                waits.succeeded()
                self._pause(POLL_S)
        except BaseException:
            lease.close()
            raise
        return lease

    def _pause(self, seconds: float) -> None:
        """Wait. Raises: StopRequested."""
        if not self._wait(seconds):
            raise StopRequested

    def _keep(self, lease: LeaderLease) -> None:
        while not self._ended.wait(self.seconds / RENEWALS):
            try:
                lease.renew()
            except WaltapError as error:
                log.warning(
                    "the lease is lost: %s", error.problem, extra={"error_code": LeaseLost.code}
                )
                lease.close()
                return
            except StopRequested:
                continue  # what is left to do is done under the lease as it is
