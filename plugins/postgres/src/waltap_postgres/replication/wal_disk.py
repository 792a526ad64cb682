"""The disk that a server's WAL is on, where the server runs on this machine."""

import os
from ipaddress import ip_address
from pathlib import Path

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

__all__ = ["wal_disk", "wal_folder"]


def wal_folder(catalogue: PostgresCatalogue, properties: PostgresProperties) -> str:
    """Return the folder of the server's WAL, "" where it is on another machine, or this role may not know
    of it. Raises: SourceError."""
    if not all(_here(host.strip()) for host in properties.hostname.split(",")):
        return ""
    rows = catalogue.query("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
    return str(Path(rows[0][0]) / "pg_wal") if rows else ""


def wal_disk(folder: str) -> tuple[int, int] | None:
    """Return size and free bytes of the disk of ``folder``; of the folder above where that one is shut."""
    if not folder:
        return None
    for place in (folder, str(Path(folder).parent), str(Path(folder).parent.parent)):
        try:
            found = os.statvfs(place)
        except PermissionError:
            continue
        except OSError:
            return None  # the server runs in a container, say
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return None


def _here(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
