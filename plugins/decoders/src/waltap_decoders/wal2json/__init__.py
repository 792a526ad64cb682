"""wal2json: changes as JSON text.

Format 1 has one object per transaction, or chunks of it; format 2 has one object per change. The
decoder is loaded on first use.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use
from waltap_decoders.wal2json.properties import Wal2JsonProperties

if TYPE_CHECKING:
    from waltap_decoders.wal2json.decoder import Wal2Json

__all__ = ["Wal2Json", "Wal2JsonProperties"]

__getattr__ = on_first_use(__name__)
