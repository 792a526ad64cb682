"""Reading records back from where a sink wrote them, for people: what ``waltap tail`` shows of a topic."""

from waltap.reading.stored_record import DecodedDocument, RecordDecoder, RecordStream, StoredRecord

__all__ = ["DecodedDocument", "RecordDecoder", "RecordStream", "StoredRecord"]
