"""Reads signals, whichever way they came: each ends in an action or in the reason why it is left out."""

import logging
from collections.abc import Callable
from functools import partial

from waltap.errors import WaltapError
from waltap.pipeline.channels import SIGNAL
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.sink_writer import SinkWriter
from waltap.signals.actions import SignalCall
from waltap.signals.errors import SignalIgnored, SignalUnusable
from waltap.signals.signal import SNAPSHOTS, Action, Signal
from waltap.snapshot.requests import cut
from waltap.specs import SignalActionSpec

__all__ = ["SignalReader"]

log = logging.getLogger(__name__)

NOT_HERE = {
    "schema-changes": "it repairs a schema history, and waltap keeps none: tables are described from the "
    "catalogue, as of each change",
    "set-offset": "`waltap offsets set FILE LSN` does that, while the pipeline does not run",
}
"""Types of Debezium's that mean nothing here, and why."""


class SignalReader:
    """Says what a signal asks to be done.

    Signals are data from outside: whatever is in one, it stops no pipeline. One that is left out is told
    in the log and by a notification.
    """

    def __init__(self, run: PipelineRun, delivery: SinkWriter) -> None:
        self._run, self._delivery = run, delivery
        self._max_bytes = run.profile.engine.signal_max_bytes

    def read(
        self, signal: Signal, snapshots: Callable[[Signal, dict[str, object]], Action] | None
    ) -> Action | str:
        """Return what to do, or why nothing is done. ``snapshots`` reads signals of the types in
        `SNAPSHOTS`; None where nothing can be read. Raises: WaltapError when the database did not answer;
        the signal is to be read again."""
        run = self._run
        try:
            arguments = signal.arguments(self._max_bytes)
            self._note_unknown(signal, arguments)
            others = signal.kind not in SNAPSHOTS
            action = (self._other if others else snapshots or _unreadable)(signal, arguments)
        except SignalUnusable as error:
            why = str(error)
        except WaltapError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a row holds, it stops no pipeline
            why = f"signal {signal.identifier!r} cannot be read: {type(error).__name__}: {error}"
        else:
            run.host.notify(
                "on_signal",
                pipeline=run.profile.name,
                kind=signal.kind,
                identifier=signal.identifier,
                data=signal.data,
            )
            return action
        return self._left_out(signal, cut(why))

    def _left_out(self, signal: Signal, why: str) -> str:
        log.warning("signal ignored: %s", why, extra={"error_code": SignalIgnored.code})
        kind = cut(signal.kind)
        self._run.channels.tell(
            SIGNAL, "IGNORED", cut(signal.identifier), signal_type=kind, reason=why
        )
        return why

    def _note_unknown(self, signal: Signal, arguments: dict[str, object]) -> None:
        unknown = signal.unknown(arguments)
        if unknown:
            log.warning(
                "signal %s: %s means nothing to %s",
                cut(signal.identifier),
                cut(", ".join(unknown)),
                signal.kind,
                extra={"error_code": SignalIgnored.code},
            )

    def _other(self, signal: Signal, arguments: dict[str, object]) -> Action:
        if signal.kind == "log":
            message = str(arguments.get("message", ""))
            return lambda _now: self._log(message)
        spec = self._run.host.signal_actions.get(signal.kind)
        if spec is None:
            why = NOT_HERE.get(signal.kind)
            known = (
                "is not known, nor does a plugin act on it"
                if why is None
                else f"is not for here: {why}"
            )
            raise SignalUnusable(f"type {cut(signal.kind)!r} {known}")
        return self._called(spec, signal, arguments)

    def _log(self, message: str) -> str:
        log.info("%s", cut(message).replace("{}", self._position))
        return ""

    def _called(
        self, spec: SignalActionSpec, signal: Signal, arguments: dict[str, object]
    ) -> Action:
        run = self._run
        call = SignalCall(
            pipeline=run.profile.name,
            signal=signal,
            arguments=arguments,
            position=self._position,
            notify=partial(self._notify, signal),
            stop=run.stop.set,
        )

        def act(_now: int) -> str:
            try:
                spec.factory(call)
            except SignalUnusable as error:
                return self._left_out(signal, cut(str(error)))
            except Exception as error:  # noqa: BLE001 - it is a stranger's, and stops no pipeline
                told = run.host.blamed(error)
                why = str(told) if told is not error else f"{type(error).__name__}: {error}"
                return self._left_out(signal, cut(f"the action {spec.name} failed: {why}"))
            return ""

        return act

    def _notify(self, signal: Signal, kind: str, **data: str) -> None:
        self._run.channels.tell(signal.kind, kind, signal.identifier, **data)

    @property
    def _position(self) -> str:
        return str(self._delivery.written[self._delivery.partition])


def _unreadable(_signal: Signal, _arguments: dict[str, object]) -> Action:
    raise SignalUnusable("this source reads no tables on demand")
