"""A Connect worker's Kafka settings, as settings of the Kafka sink.

A connector's file may contain its worker's settings too. A worker delivers to the brokers of
``bootstrap.servers``; so does a profile that names brokers and no sink.
"""

import re
from typing import TYPE_CHECKING

from waltap.changes.capture.java_regex import java_pattern
from waltap.config.layers import KAFKA, GivenProperty, RawProfile

if TYPE_CHECKING:
    from waltap.config.namespace import Namespace
    from waltap.ports.specs import SinkSpec


OVERRIDE, PRODUCER = "producer.override.", "producer."
OF_KAFKA = re.compile(r"bootstrap\.servers|producer\..+|topic\.creation\..+")
SECURITY = re.compile(r"security\.protocol|sasl\..+|ssl\..+")
OF_LISTENERS = re.compile(
    r"ssl\.(client\.auth|protocol|enabled\.protocols|provider|(key|trust)manager\.algorithm|secure\.random.*)"
)
"""Settings of the worker's own listener and of Java's TLS, which librdkafka does not have."""
ASKING = {"exactly.once.support": {"required"}, "exactly.once.source.support": {"enabled"}}
"""Property of a connector or a worker → values that ask for exactly once."""
SANITIZE = "custom.sanitize.pattern"


def take_worker_settings(sink: "SinkSpec", flat: "Namespace", own: "Namespace") -> None:
    """Move Kafka settings from the connector's, ``flat``, to the sink's, ``own``.

    The sink's own names win, then ``producer.override.*``, then ``producer.*``, then the worker's
    security settings for all its clients.
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
            here, GivenProperty(given.name, given.value, given.origin, full_name=True)
        )


def exactly_once(sink: "SinkSpec", flat: "Namespace", own: "Namespace") -> None:
    """Set the sink to exactly once if the connector or worker requires it.

    If the sink cannot, the property stays in ``flat``, where it is refused.
    """
    for name, values in ASKING.items():
        if flat.text(name).casefold() not in values:
            continue
        setting = flat.settings[name]
        if sink.exactly_once is True:
            flat.claim(name)
        elif sink.exactly_once:
            flat.claim(name)
            asked, value = sink.exactly_once
            there = own.settings.setdefault(
                asked, GivenProperty(setting.name, value, setting.origin, full_name=True)
            )
            if own.text(asked).casefold() != value:
                flat.complain(setting, f"contradicts {there.name}={there.value}")


def header_format(raw: "RawProfile", sink: "SinkSpec | None") -> str:
    """Return the default format of header values.

    A worker of Kafka Connect uses its SimpleHeaderConverter. Debezium Server, Debezium's engine in another
    program (its files have ``offset.storage``) and waltap write JSON.
    """
    of_worker = raw.debezium and not raw.written and "offset.storage" not in raw.settings
    to_kafka = sink is not None and KAFKA in {sink.name, *sink.aliases}
    return "simple-header" if of_worker and to_kafka else "json"


def sanitizing(flat: "Namespace") -> re.Pattern[str] | None:
    """Return the pattern of ``custom.sanitize.pattern``, None without one."""
    text = flat.text(SANITIZE)
    try:
        return java_pattern(text) if text else None
    except ValueError as error:
        flat.complain(flat.settings[SANITIZE], f"is {error}")
        return None
