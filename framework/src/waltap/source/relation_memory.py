"""What a pipeline last knew of each relation, kept over restarts beside the offset.

The catalogue shows the present. A change that was committed before a table was dropped, or lost its
key, may be decoded after it; what the wire does not carry then can only come from here.

The engine owns the memory: it opens one per pipeline, under the pipeline's lock, and saves it after it
stored an offset. The connector puts in what it describes and asks for it. Nothing breaks when the memory
is lost, or is of an older moment: then less is known.
"""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import Struct

import msgspec

from waltap.decode.relation import Relation
from waltap.decode_errors import UNREADABLE
from waltap.offsets.durable_file import replace_durably
from waltap.offsets.private_file import private, private_folder

__all__ = ["RELATIONS_KEPT", "RelationMemory"]

RELATIONS_KEPT = 10_000
"""Relations that are remembered; beyond them those go that were described longest ago."""

REPLACED_KEPT = 64
"""Of these, relations whose name belongs to another OID by now."""

_SIZE = Struct("<I")


class RelationMemory:
    """Described relations by OID. ``path`` is a file that is added to, None: memory only.

    ``judge`` gets a relation as it was and as it is now, before it is remembered, and may raise.

    Single-threaded. Disk errors are not raised: the file is then not written, or not read.
    """

    def __init__(self, path: Path | None = None, kept: int = RELATIONS_KEPT) -> None:
        self._path, self._kept = path, kept
        self._database = ""
        self._relations: dict[int, Relation] = {}
        self._unsaved: dict[int, Relation] = {}
        self._names: dict[str, int] = {}
        self._replaced: deque[int] = deque()
        self._written = 0
        self.judge: Callable[[Relation, Relation], None] | None = None

    def open(self, database: str) -> None:
        """Read what is kept for ``database`` (a text that tells databases apart, whatever it is made
        of); what is kept of another is forgotten. OIDs mean something in one database only."""
        if database == self._database:
            return
        self._database = database
        self._forget()
        for kept_of, relation in self._read():
            self._written += 1
            if kept_of == database:
                self._put(relation)

    def get(self, oid: int) -> Relation | None:
        """Return the relation as it was described last, None when it is not known."""
        return self._relations.get(oid)

    def named(self, schema: str, table: str) -> Relation | None:
        """Return the relation that was described last under that name."""
        return self._relations.get(self._names.get(f"{schema}.{table}", 0))

    def put(self, relation: Relation) -> None:
        """Remember a described relation in the place of its former version."""
        known = self._relations.get(relation.oid)
        if known is not None and known.same_shape(relation):
            return
        self.check(relation)
        self._put(relation)
        self._unsaved[relation.oid] = relation

    def check(self, relation: Relation) -> None:
        """Have a described relation judged by what is known of it, or of the one that had its name.

        Raises: what ``judge`` raises.
        """
        if self.judge is not None:
            known = self._relations.get(relation.oid) or self.named(relation.schema, relation.table)
            if known is not None and known is not relation:
                self.judge(known, relation)

    def start_anew(self, relations: Iterable[Relation]) -> None:
        """Forget everything, and know ``relations``: a slot begins here, and so does the stream."""
        self._forget()
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                self._path = None
        self._written = 0
        for relation in relations:
            self.put(relation)

    def save(self) -> None:
        """Write what is new to the file; all of it anew when most of the file is out of date."""
        if not self._unsaved or self._path is None:
            return
        whole = self._written + len(self._unsaved) > 2 * len(self._relations) + 64
        chosen = self._relations if whole else self._unsaved
        data = b"".join(self._record(relation) for relation in chosen.values())
        try:
            if whole:
                replace_durably(self._path, data)
            else:
                private_folder(self._path.parent)
                with open(self._path, "ab", opener=private) as file:
                    file.write(data)
        except OSError:
            return
        self._written = len(chosen) if whole else self._written + len(chosen)
        self._unsaved.clear()

    def _forget(self) -> None:
        self._relations.clear()
        self._unsaved.clear()
        self._names.clear()
        self._replaced.clear()

    def _put(self, relation: Relation) -> None:
        oid = relation.oid
        self._drop(oid)
        self._relations[oid] = relation
        before = self._names.get(relation.name, oid)
        self._names[relation.name] = oid
        if before != oid:
            self._replaced.append(before)
            if len(self._replaced) > REPLACED_KEPT:
                oldest = self._replaced.popleft()
                known = self._relations.get(oldest)
                if known is not None and self._names.get(known.name) != oldest:
                    self._drop(oldest)
        if len(self._relations) > self._kept:
            self._drop(next(iter(self._relations)))

    def _drop(self, oid: int) -> None:
        known = self._relations.pop(oid, None)
        if known is not None and self._names.get(known.name) == oid:
            del self._names[known.name]

    def _record(self, relation: Relation) -> bytes:
        body = msgspec.msgpack.encode((self._database, relation))
        return _SIZE.pack(len(body)) + body

    def _read(self) -> list[tuple[str, Relation]]:
        """Return the records of the file up to the first that is not whole."""
        self._written = 0
        if self._path is None:
            return []
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        found: list[tuple[str, Relation]] = []
        decoder = msgspec.msgpack.Decoder(tuple[str, Relation])
        at = 0
        while at + _SIZE.size <= len(data):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            try:
                found.append(decoder.decode(data[at : at + size]))
            except UNREADABLE:
                break
            at += size
        return found
