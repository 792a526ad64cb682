"""Remember the last description of each relation across restarts.

The catalogue shows the present. A change that committed before its table was dropped, or lost its key, may
be decoded later. Only this memory then has the facts that the wire does not carry.

The engine opens one memory per pipeline, under the pipeline's lock, and saves it after it stored an
offset. The connector adds its descriptions and reads them. A lost or older memory is no error: less is
known.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from waltap.base.files.durable_file import UNREADABLE, private, private_folder, replace_durably
from waltap.changes.decode.relation import Relation

MAX_RELATIONS = 10_000
"""Most relations in memory; beyond that the oldest descriptions are dropped."""

MAX_REPLACED = 64
"""Most of these whose name belongs to another OID by now."""

_SIZE = struct.Struct("<I")


class RelationMemory:
    """Described relations by OID.

    ``path`` is an append-only file; None: memory only. ``validate`` receives the old and the new
    description before the new one is stored, and may raise.

    Single-threaded. Disk errors are not raised: the file is then not written, or not read.
    """

    def __init__(self, path: Path | None = None, max_relations: int = MAX_RELATIONS) -> None:
        self._path, self._max_relations = path, max_relations
        self._database = ""
        self._relations: dict[int, Relation] = {}
        self._unsaved: dict[int, Relation] = {}
        self._names: dict[str, int] = {}
        self._moved: dict[str, int] = {}
        self._replaced: deque[int] = deque()
        # Relations that the stream showed under a name that is not captured, since.
        self._hidden: set[int] = set()
        self._written = 0
        # The file ends in something that cannot be read, so the next save replaces it.
        self._torn = False
        self.validate: Callable[[Relation, Relation], None] | None = None

    def validate_with(self, validate: "Callable[[Relation, Relation], None]") -> None:
        """Compare descriptions by ``validate`` from now on."""
        self.validate = validate

    def open(self, database: str) -> None:
        """Load the relations of ``database`` and drop relations of another one.

        OIDs are unique in one database only. ``database`` is any text that identifies it.
        """
        if database == self._database:
            return
        self._database = database
        self._forget()
        for of_database, relation in self._read():
            self._written += 1
            if of_database == database:
                self._put(relation)

    def get(self, oid: int) -> Relation | None:
        return self._relations.get(oid)

    def named(self, schema: str, table: str) -> Relation | None:
        """Return the relation that was last described under that name."""
        return self._relations.get(self._names.get(f"{schema}.{table}", 0))

    def renamed_to(self, schema: str, table: str) -> int:
        """Return the OID of a former owner with that name, 0 if unknown."""
        return self._moved.get(f"{schema}.{table}", 0)

    def hide(self, oid: int) -> None:
        """Note that the stream leaves a relation out, because of its present name."""
        if oid in self._relations:
            self._hidden.add(oid)

    def returns(self, oid: int) -> bool:
        """Return whether a described relation was left out before; forget that."""
        if oid not in self._hidden:
            return False
        self._hidden.remove(oid)
        return True

    def put(self, relation: Relation) -> None:
        """Replace a described relation's former version."""
        known = self._relations.get(relation.oid)
        if known is not None and known.same_shape(relation):
            return
        self.check(relation)
        self._put(relation)
        self._unsaved[relation.oid] = relation

    def check(self, relation: Relation) -> None:
        """Compare a described relation with its former description by ``validate``.

        If its OID is new, the former relation of that name is compared. Raises: the errors of
        ``validate``.
        """
        if self.validate is not None:
            known = self._relations.get(relation.oid) or self.named(relation.schema, relation.table)
            if known is not None and known is not relation:
                self.validate(known, relation)

    def start_over(self, relations: Iterable[Relation]) -> None:
        """Replace the content by ``relations``, for a new slot and stream."""
        self._forget()
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                # An old description must not come back after the new start: stop using the file.
                self._path = None
        self._written = 0
        for relation in relations:
            self.put(relation)

    def save(self) -> None:
        """Append new descriptions to the file.

        The file is rewritten when most of it is outdated.
        """
        if not self._unsaved or self._path is None:
            return
        # Rewrite once more than half of the records are outdated; small files are not worth it.
        outdated = self._written + len(self._unsaved) > 2 * len(self._relations) + 64
        rewrites = outdated or self._torn
        chosen = self._relations if rewrites else self._unsaved
        data = b"".join(self._record(relation) for relation in chosen.values())
        try:
            if rewrites:
                replace_durably(self._path, data)
            else:
                private_folder(self._path.parent)
                with open(self._path, "ab", opener=private) as file:
                    file.write(data)
        except OSError:
            self._torn = True  # a full disk may have taken a part
            return
        self._torn = False
        self._written = len(chosen) if rewrites else self._written + len(chosen)
        self._unsaved.clear()

    def _forget(self) -> None:
        self._relations.clear()
        self._unsaved.clear()
        self._names.clear()
        self._moved.clear()
        self._replaced.clear()
        self._hidden.clear()

    def _put(self, relation: Relation) -> None:
        oid = relation.oid
        self._drop(oid)
        self._relations[oid] = relation
        if relation.former_owner is not None:
            self._moved[relation.former_owner.name] = relation.former_owner.oid
            if len(self._moved) > self._max_relations:
                del self._moved[next(iter(self._moved))]
        before = self._names.get(relation.name, oid)
        self._names[relation.name] = oid
        if before != oid:
            self._replaced.append(before)
            if len(self._replaced) > MAX_REPLACED:
                oldest = self._replaced.popleft()
                known = self._relations.get(oldest)
                if known is not None and self._names.get(known.name) != oldest:
                    self._drop(oldest)
        if len(self._relations) > self._max_relations:
            self._drop(next(iter(self._relations)))

    def _drop(self, oid: int) -> None:
        known = self._relations.pop(oid, None)
        if known is not None and self._names.get(known.name) == oid:
            del self._names[known.name]

    def _record(self, relation: Relation) -> bytes:
        body = msgspec.msgpack.encode((self._database, relation))
        return _SIZE.pack(len(body)) + body

    def _read(self) -> list[tuple[str, Relation]]:
        """Return the file's records up to the first incomplete one."""
        self._written, self._torn = 0, False
        if self._path is None:
            return []
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        found: list[tuple[str, Relation]] = []
        decoder = msgspec.msgpack.Decoder(tuple[str, Relation])
        at = 0
        while at < len(data):
            try:
                (size,) = _SIZE.unpack_from(data, at)
                at += _SIZE.size
                found.append(decoder.decode(data[at : at + size]))
            # A crash may leave half a record at the end of the file.
            except (struct.error, *UNREADABLE):
                self._torn = True
                break
            at += size
        return found
