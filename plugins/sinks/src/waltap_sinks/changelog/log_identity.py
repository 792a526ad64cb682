"""Identify a change log by a file that moves with it."""

import uuid
from typing import Final

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.base.files.store import FileStore
from waltap_sinks.changelog.errors import ChangeLogDamaged

__all__ = ["log_identity", "make_log_identity", "same_place"]

FILE: Final = "log.json"


class _LogIdentity(msgspec.Struct, frozen=True):
    id: str


def log_identity(store: FileStore) -> str:
    """Return the id of the log in ``store``.

    Logs of earlier releases have none; the result is then empty. Raises: ChangeLogDamaged,
    FilesUnavailable.
    """
    if FILE not in store.names(""):
        return ""
    try:
        return msgspec.json.decode(store.read(FILE), type=_LogIdentity).id
    except UNREADABLE as cause:
        raise ChangeLogDamaged(f"{FILE} has no id: {cause}", path=store.uri(FILE)) from cause


def make_log_identity(store: FileStore) -> str:
    """Return the id of the log in ``store``; create a missing one."""
    found = log_identity(store)
    if not found:
        store.publish(FILE, msgspec.json.encode(_LogIdentity(uuid.uuid4().hex)) + b"\n")
        found = log_identity(store)  # of two concurrent writers the last one decides
    return found


def same_place(one: str, other: str) -> bool:
    """Return whether two locations are equal but for slashes at the end."""
    return _plain(one) == _plain(other)


def _plain(location: str) -> str:
    scheme, mark, rest = location.partition("://")
    if not mark or scheme == "file":
        return (rest if mark else location).rstrip("/") or "/"
    return f"{scheme}://{rest.rstrip('/')}"
