"""Find the disk of a server's WAL, if the server runs on this machine."""

import os
from ipaddress import ip_address
from pathlib import Path

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

__all__ = ["wal_disk", "wal_folder"]


def wal_folder(catalogue: PostgresCatalogue, properties: PostgresProperties) -> str:
    """Return the folder of the server's WAL, "" if it is unknown.

    Raises: SourceError.
    """
    # A path on another machine would be read as a path of this one.
    if not all(_here(host.strip()) for host in properties.hostname.split(",")):
        return ""
    # pg_settings hides data_directory from roles without pg_read_all_settings.
    rows = catalogue.query("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
    return str(Path(rows[0][0]) / "pg_wal") if rows else ""


def wal_disk(folder: str) -> tuple[int, int] | None:
    """Return size and free bytes of the disk with ``folder``."""
    if not folder:
        return None
    # The server's user may have closed the folder to other users; then try the folders above it.
    for place in (folder, str(Path(folder).parent), str(Path(folder).parent.parent)):
        try:
            found = os.statvfs(place)
        except PermissionError:
            continue
        except OSError:
            return None  # for example, the server runs in a container
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return None


def _here(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
