"""Properties of pgoutput and their negotiation with a server."""

from typing import Literal

from waltap.base.property import Maybe, Properties, Switch, declare
from waltap.base.text import sql_name
from waltap.changes.decode.decoder import ServerInfo
from waltap.errors import ConfigurationError, PropertyProblem

STREAMING_PROTOCOL = {"off": 1, "on": 2, "parallel": 4}
TWO_PHASE_PROTOCOL = 3


class PgOutputProperties(Properties):
    """Requests to pgoutput; every server version can fulfil the defaults."""

    proto_version: Maybe[int] = declare(
        "pgoutput.proto_version",
        ge=1,
        le=4,
        summary="Protocol version to ask for; unset: the highest that the server offers.",
    )
    streaming: Literal["off", "on", "parallel"] = declare(
        "pgoutput.streaming",
        default="off",
        summary="Receive large transactions while in progress (14 or later; parallel: 16).",
    )
    two_phase: Switch = declare(
        "pgoutput.two_phase",
        summary="Receive prepared transactions at PREPARE (15 or later); marks the slot permanently.",
    )
    origin: Literal["any", "none"] = declare(
        "pgoutput.origin",
        default="any",
        summary="none: leave out what was replicated into the database (16 or later).",
    )
    messages: Maybe[bool] = declare(
        "pgoutput.messages",
        summary="Receive logical messages (14 or later); unset: when the server can.",
    )


def highest_protocol(version_num: int) -> int:
    """Return the highest protocol version of a server.

    Source: ``LOGICALREP_PROTO_MAX_VERSION_NUM`` in logicalproto.h of each release.
    """
    for since, protocol in ((160000, 4), (150000, 3), (140000, 2)):
        if version_num >= since:
            return protocol
    return 1


def negotiate(
    properties: PgOutputProperties,
    server: ServerInfo,
    publications: tuple[str, ...],
    *,
    protocol_limit: int = 4,
) -> dict[str, str]:
    """Return the plugin options for START_REPLICATION.

    ``protocol_limit`` caps the protocol for a server that reports a PostgreSQL version but offers
    less.

    Raises: ConfigurationError naming every property that asks for more than the server has.
    """
    version, streaming = server.version_num, properties.streaming
    offered = min(highest_protocol(version), protocol_limit)
    protocol = properties.proto_version or offered
    problems: list[PropertyProblem] = []

    def refuse(name: str, problem: str, value: object, allowed: str) -> None:
        problems.append(
            PropertyProblem(f"pgoutput.{name}", problem, value=str(value), allowed=allowed)
        )

    if protocol > offered:
        problem = "the server does not offer this protocol"
        refuse("proto_version", problem, protocol, f"1 to {offered}")
    # Unset means: ask wherever the server can.
    messages = version >= 140000 if properties.messages is None else properties.messages
    # Option → its value, empty for none, and the major version and protocol that it needs.
    asked = {
        "streaming": (
            "" if streaming == "off" else streaming,
            16 if streaming == "parallel" else 14,
            STREAMING_PROTOCOL[streaming],
        ),
        "two_phase": ("true" if properties.two_phase else "", 15, TWO_PHASE_PROTOCOL),
        "origin": ("none" if properties.origin == "none" else "", 16, 1),
        "messages": ("true" if messages else "", 14, 1),
    }
    options = {
        "proto_version": str(protocol),
        "publication_names": ",".join(sql_name(name) for name in publications),
    }
    # The server refuses an option that it does not know, so its version decides here.
    for name, (value, since, wanted) in asked.items():
        if value and version < since * 10000:
            allowed = f"server version {since} or later, this one is {version // 10000}"
            refuse(name, "the server cannot do this", value, allowed)
        elif value and protocol < wanted:
            allowed = f"pgoutput.proto_version {wanted} or higher, asked for or offered: {protocol}"
            refuse(name, "the protocol is too old for this", value, allowed)
        elif value:
            options[name] = value
    if problems:
        raise ConfigurationError(problems)
    return options
