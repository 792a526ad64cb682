"""wal2json: changes as JSON text, format 1 (a transaction an object, or in chunks) and format 2."""

from waltap_decoders.wal2json.decoder import CAPABILITIES, Wal2Json
from waltap_decoders.wal2json.properties import Wal2JsonProperties

__all__ = ["CAPABILITIES", "Wal2Json", "Wal2JsonProperties"]
