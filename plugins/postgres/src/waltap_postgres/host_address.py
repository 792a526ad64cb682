"""Names of hosts to addresses, in a wait that a stop ends.

The system's resolver blocks whoever asks it, for half a minute where name servers do not answer. psycopg
asks it in the caller's thread before it connects, unless it is told addresses.
"""

import contextlib
import ipaddress
import queue
import socket
import threading
import time
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from waltap_postgres.waiting import POLL_S, ServerWaits

__all__ = ["with_addresses"]


def with_addresses(conninfo: str, watch: ServerWaits) -> str:
    """Return libpq's connection string ``conninfo`` with the addresses of the hosts that it names.

    A host of several addresses stands there once for each, in the resolver's order. Raises:
    StopRequested; psycopg.OperationalError where a name has no address; UnicodeError for what is no name.
    """
    parameters = conninfo_to_dict(conninfo)
    if parameters.get("hostaddr") or not parameters.get("host"):
        return conninfo
    hosts = str(parameters["host"]).split(",")
    ports = str(parameters.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts) or not any(map(_is_name, hosts)):
        return conninfo
    found: list[tuple[str, str, str]] = []
    refused: OSError | None = None
    for host, port in zip(hosts, ports, strict=True):
        if not _is_name(host):
            found.append((host, "" if host.startswith("/") else host, port))
            continue
        try:
            found += [(host, address, port) for address in _resolved(host, port, watch)]
        except OSError as error:
            refused = error
    if not found:
        raise psycopg.OperationalError(f"failed to resolve host {hosts[0]!r}: {refused}")
    names, addresses, found_ports = (",".join(column) for column in zip(*found, strict=True))
    return make_conninfo(conninfo, host=names, hostaddr=addresses, port=found_ports)


def _is_name(host: str) -> bool:
    if not host or host.startswith(("/", "@")):
        return False  # a socket's folder
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return False
    return True


def _resolved(host: str, port: str, watch: ServerWaits) -> list[str]:
    """Ask the resolver in a thread, which is left alone with it when a stop comes first."""
    answers: queue.SimpleQueue[list[str] | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found: list[Any] = socket.getaddrinfo(
                host, port or None, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            answers.put(error)
        else:
            answers.put([str(one[4][0]) for one in found])

    threading.Thread(target=ask, name="waltap-resolver", daemon=True).start()
    began = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=POLL_S)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        watch.check(began)
        if watch.deadline_s is not None and time.monotonic() - began >= watch.deadline_s:
            raise psycopg.OperationalError(f"{host} was not resolved in {watch.deadline_s:.0f} s")
