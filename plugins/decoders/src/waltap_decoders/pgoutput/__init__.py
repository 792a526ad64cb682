"""pgoutput: PostgreSQL's own logical decoding output plugin."""

from waltap_decoders.pgoutput.decoder import PgOutput
from waltap_decoders.pgoutput.properties import PgOutputProperties

__all__ = ["PgOutput", "PgOutputProperties"]
