"""What a Connect worker is told about Kafka, as settings of the sink that writes there.

A file of Kafka Connect may hold what its worker is told too. The worker delivers to the brokers of
``bootstrap.servers``; so does a profile that names them and no sink.
"""

import re
from typing import TYPE_CHECKING

from waltap.changes.capture.java_regex import java_pattern
from waltap.config.layers import KAFKA, GivenProperty, RawProfile

if TYPE_CHECKING:
    from waltap.config.namespace import Namespace
    from waltap.ports.specs import SinkSpec

__all__ = ["ASKING", "exactly_once", "header_format", "sanitizing", "take_worker_settings"]

OVERRIDE, PRODUCER = "producer.override.", "producer."
OF_KAFKA = re.compile(r"bootstrap\.servers|producer\..+|topic\.creation\..+")
SECURITY = re.compile(r"security\.protocol|sasl\..+|ssl\..+")
OF_LISTENERS = re.compile(
    r"ssl\.(client\.auth|protocol|enabled\.protocols|provider|(key|trust)manager\.algorithm|secure\.random.*)"
)
"""Settings of the worker's own listener, and of Java's TLS: no client here has them."""
ASKING = {"exactly.once.support": {"required"}, "exactly.once.source.support": {"enabled"}}
"""Property of a connector or a worker → values that ask for exactly once."""
SANITIZE = "custom.sanitize.pattern"


def take_worker_settings(sink: "SinkSpec", flat: "Namespace", own: "Namespace") -> None:
    """Move what concerns Kafka from a connector's settings, ``flat``, to those of the sink, ``own``.

    What the sink was told by its own names wins, then ``producer.override.*`` over ``producer.*``, then
    what a worker says of security for all its clients.
    """
    if KAFKA not in {sink.name, *sink.aliases}:
        return
    names = sorted(
        filter(OF_KAFKA.fullmatch, flat.settings), key=lambda name: not name.startswith(OVERRIDE)
    )
    shared = filter(SECURITY.fullmatch, flat.settings)
    names += [name for name in shared if not OF_LISTENERS.fullmatch(name)]
    for name in names:
        given = flat.settings.pop(name)
        here = f"{PRODUCER}{name}" if SECURITY.fullmatch(name) else name
        here = f"{PRODUCER}{name.removeprefix(OVERRIDE)}" if name.startswith(OVERRIDE) else here
        own.settings.setdefault(
            here, GivenProperty(given.name, given.value, given.origin, whole=True)
        )


def exactly_once(sink: "SinkSpec", flat: "Namespace", own: "Namespace") -> None:
    """Have the sink keep the promise that a connector or worker is asked for; a sink that cannot keep it
    leaves the property in ``flat``, where it is refused."""
    for name, values in ASKING.items():
        setting = flat.settings.get(name)
        if setting is None or str(setting.value).strip().casefold() not in values:
            continue
        if sink.exactly_once is True:
            flat.claim(name)
        elif sink.exactly_once:
            flat.claim(name)
            asked, value = sink.exactly_once
            there = own.settings.setdefault(
                asked, GivenProperty(setting.name, value, setting.origin, whole=True)
            )
            if str(there.value).strip().casefold() != value:
                flat.complain(setting, f"contradicts {there.name}={there.value}")


def header_format(raw: "RawProfile", sink: "SinkSpec | None") -> str:
    """Return the format of header values where a profile names none.

    A worker of Kafka Connect writes them by its SimpleHeaderConverter. Debezium Server, and its engine in
    another program (whose files have ``offset.storage``), write JSON, and so does waltap by itself.
    """
    of_worker = raw.debezium and not raw.written and "offset.storage" not in raw.settings
    to_kafka = sink is not None and KAFKA in {sink.name, *sink.aliases}
    return "simple-header" if of_worker and to_kafka else "json"


def sanitizing(flat: "Namespace") -> re.Pattern[str] | None:
    """Return the pattern of ``custom.sanitize.pattern``, None where there is none."""
    setting = flat.settings.get(SANITIZE)
    if setting is None or not str(setting.value).strip():
        return None
    try:
        return java_pattern(str(setting.value))
    except ValueError as error:
        flat.complain(setting, f"is {error}")
        return None
