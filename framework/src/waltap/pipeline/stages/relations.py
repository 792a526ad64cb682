"""Describe each relation version once, with its identity and warnings."""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from waltap.base.plugin_errors import usable
from waltap.base.text import sql_name
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.replica_identity import IdentityWarning, ReplicaIdentity
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events import ReplicaIdentities
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.errors import RetryVerdict, SourceError
from waltap.plugins.host import Host
from waltap.ports.source.connector import Connector, PreflightCheck, SourceLacks
from waltap.ports.source.relation_memory import RelationMemory
from waltap.ports.source.roles import RowReadingSource
from waltap.ports.specs import SourceTransformContext

log = logging.getLogger(__name__)

MAX_DESCRIPTIONS = 8
"""Versions of one relation whose description is kept.

Encoders keep plans of fewer (`waltap.changes.events.plan`), so compiling a version again needs no query.
"""

MAX_LAST_SEEN = 10_000
"""Names whose last shape is kept; a table beyond them is new when its shape changes."""

AS_KEY = "; tables have this part of the key as text"

MaskLost = SourceError.define("MaskLost", "WT-2049", retry=RetryVerdict.NEVER)
MaskUnfit = SourceError.define("MaskUnfit", "WT-2050", retry=RetryVerdict.NEVER)


@dataclass(slots=True)
class _KnownRelation:
    """Cache the results for one relation version."""

    described: Relation | None = None
    identity: ReplicaIdentity | None = None


class DescribedRelations:
    """Know the relations of a run.

    ``connector`` describes them, and changes with every reconnect; ``connect`` opens one outside of a
    run. ``forget_in_branches`` gets the OID of a dropped relation after
    all its rows were written. ``memory`` has the tables' earlier columns: a version that lost a mask is
    refused before it is described.
    """

    def __init__(
        self,
        pipeline: str,
        host: Host,
        capture: CaptureRules,
        types: TypeRegistry,
        forget_in_branches: Callable[[int], None],
        memory: RelationMemory,
        connect: Callable[[], Connector],
        *,
        debezium: bool,
    ) -> None:
        self._pipeline, self._host, self.capture, self.types = pipeline, host, capture, types
        self._forget_in_branches, self._memory = forget_in_branches, memory
        self._bare_masks_fail = not debezium and capture.properties.unmatched_masks == "fail"
        memory.validate_with(self._keep_masks)
        keyless = "a key that no row has" if debezium else "no key and no tombstone"
        self._keyless = f"deletes have {keyless}, and changes of the key are not seen"
        self.connector: Connector | None = None
        self._connect = connect
        self._known: dict[int, dict[Relation, _KnownRelation]] = {}
        self._last_seen: dict[str, Relation] = {}
        self._warned: set[IdentityWarning] = set()
        self._left_out: dict[int, tuple[str, ...]] = {}
        self._gone: dict[int, int] = {}
        self.identities = ReplicaIdentities(
            host.replica_identities.values(),
            lambda relation: host.choose("choose_replica_identity", relation=relation),
            lambda: host.implementers("choose_replica_identity"),
        )

    def ask(self, connector: Connector) -> None:
        self.connector = connector

    def _connected(self) -> Connector:
        if self.connector is None:
            self.connector = self._connect()
        return self.connector

    def describe(self, relation: Relation) -> Relation:
        """Complete a relation once per version. Raises: MaskLost, MaskUnfit."""
        known = self._version(relation)
        if known.described is None:
            described = relation
            if relation.primary_key is None:
                described = self._connected().describe(relation)
            self._memory.check(described)
            self._refuse_unmasked(described)
            known.described = described
            self.announced(described)
        return known.described

    def _version(self, relation: Relation) -> _KnownRelation:
        versions = self._known.setdefault(relation.oid, {})
        known = versions.get(relation)
        if known is None:
            if len(versions) == MAX_DESCRIPTIONS:
                del versions[next(iter(versions))]
            known = versions[relation] = _KnownRelation()
        return known

    def forget(self, oid: int, lsn: int) -> None:
        """Record a dropped relation, without commits after ``lsn``.

        Earlier rows may wait to be written, so state is kept until `written`.
        """
        self._gone[oid] = lsn

    def written(self, lsn: int) -> Collection[int]:
        """Drop the state of relations written up to ``lsn``.

        Return their OIDs.
        """
        if not self._gone:
            return ()
        gone = [oid for oid, last in self._gone.items() if last <= lsn]
        for oid in gone:
            del self._gone[oid]
            self._drop(oid)
        return gone

    def _drop(self, oid: int) -> None:
        versions = self._known.pop(oid, {})
        self._left_out.pop(oid, None)
        for name in {relation.name for relation in versions}:
            if name in self._last_seen and self._last_seen[name].oid == oid:
                del self._last_seen[name]
        self._forget_in_branches(oid)

    def renew(self, relation: Relation) -> Relation:
        """Return a described relation with its present data types."""
        renewed = self._connected().renew(relation)
        if renewed is not relation:
            self.announced(renewed)
        return renewed

    def source_context(self, label: str) -> SourceTransformContext:
        """Return the source's access for the transform ``label``.

        It uses the present connector, also after a reconnect.
        """

        def rows_now(
            relation: Relation,
            columns: Sequence[str],
            key: Sequence[str],
            keys: Sequence[Tuple],
        ) -> list[Tuple]:
            connector = self._connected()
            if not isinstance(connector, RowReadingSource):
                raise SourceLacks("this source reads no rows by their keys")
            return connector.rows_now(relation, columns, key, keys)

        return SourceTransformContext(
            label=label,
            capture=self.capture,
            describe=self.describe,
            identity=self.identity,
            rows_now=rows_now,
        )

    def complete(self, relation: Relation) -> Relation:
        """Complete a captured relation of rows that are delivered now."""
        if not self.capture.captures(relation.schema, relation.table):
            return relation
        return self.describe(relation)

    def announced(self, relation: Relation) -> None:
        """Notify observers of a new relation or shape. Raises: MaskUnfit."""
        before = self._last_seen.get(relation.name)
        if before is None or not before.same_shape(relation):
            self._refuse_unmasked(relation)
            if before is None and len(self._last_seen) == MAX_LAST_SEEN:
                del self._last_seen[next(iter(self._last_seen))]
            self._last_seen[relation.name] = relation
            self._host.notify("on_schema_change", pipeline=self._pipeline, old=before, new=relation)
            self._warn(relation)

    def _warn(self, relation: Relation) -> None:
        """Log new warnings about a captured relation.

        They are of its replica identity, and of columns that nothing delivers.
        """
        if not self.capture.captures(relation.schema, relation.table):
            return
        before = self._left_out.get(relation.oid, ())
        names = self.left_out(relation)
        if names and names != before:
            self._log(
                relation,
                f"columns of {relation.name} are left out, nothing maps their types: "
                f"{', '.join(names)}; `waltap doctor FILE` says what delivers them",
            )
        if bare := self._unmasked(relation):
            self._log(relation, bare.problem)
        warned = set(self._warned)
        for each in self.identity_warnings(relation):
            if each not in warned:
                text = f"replica identity: {each.relation}: {each.what}; {each.remedy}"
                self._log(relation, text)

    def _log(self, relation: Relation, text: str) -> None:
        log.warning("%s", text, extra={"pipeline": self._pipeline, "table": relation.name})

    def _keep_masks(self, before: Relation, now: Relation) -> None:
        """Check that masked columns stay masked under other names.

        A new column that got the values of a dropped one looks like any other new column, so each one
        counts. Raises: MaskLost, MaskUnfit.
        """
        captured = self.capture.captures
        if not captured(before.schema, before.table) or not captured(now.schema, now.table):
            return
        hidden, still = self._hidden(before), self._hidden(now)
        if lost := hidden - still:
            bare = self._sent(now) - still
            found = sorted(bare & lost or bare - self._sent(before))
            if found:
                self._mask_lost(before, now, sorted(lost), found)
        gone = _names(before) - self._sent(before) - _names(now)
        new = self._sent(now) - _names(before)
        if self.capture.properties.column_exclude and gone and new:
            self._log(
                now,
                f"column.exclude.list left out {', '.join(sorted(gone))} of {now.name}, which has no "
                f"such column now and has new ones, which are delivered: {', '.join(sorted(new))}",
            )

    def _mask_lost(
        self, before: Relation, now: Relation, lost: list[str], found: list[str]
    ) -> None:
        problem = (
            f"{before.name} had masked or shortened columns: {', '.join(lost)}; no column.mask.* or "
            f"column.truncate.* fits {', '.join(f'{now.name}.{name}' for name in found)}"
        )
        if self.capture.properties.unmatched_masks == "warn":
            self._log(now, problem)
            return
        unfit = self._unmasked(now)
        if unfit is not None:  # the pattern fits, the type does not
            raise unfit
        fitting = (
            (before.schema, now.schema), (before.table, now.table), (lost[0], found[0])
        )  # fmt: skip
        either = ((re.escape(one), re.escape(other)) for one, other in fitting)
        parts = (one if one == other else f"({one}|{other})" for one, other in either)
        raise MaskLost(problem, pattern=r"\.".join(parts))

    def _sent(self, relation: Relation) -> set[str]:
        return {relation.columns[index].name for index in self.capture.columns(relation)}

    def _hidden(self, relation: Relation) -> set[str]:
        """Return the masked or cut columns of a relation."""
        found = set()
        for index in self.capture.columns(relation):
            column = relation.columns[index]
            mapping = self.types.of(relation, column)
            schema = None if mapping is None else mapping.schema
            transform = self.capture.transform(relation, column, schema)
            if transform is not None and transform.hides:
                found.add(column.name)
        return found

    def mask_check(self, relation: Relation) -> PreflightCheck | None:
        """Return the check of columns that a mask fits and cannot change."""
        bare = self._unmasked(relation)
        if bare is None:
            return None
        check = PreflightCheck.failed(f"masks of {relation.name}", bare)
        return check if self._bare_masks_fail else check.as_warning()

    def _refuse_unmasked(self, relation: Relation) -> None:
        if self._bare_masks_fail and self.capture.captures(relation.schema, relation.table):
            bare = self._unmasked(relation)
            if bare is not None:
                raise bare

    def _unmasked(self, relation: Relation) -> SourceError | None:
        hidden, capture = self._hidden(relation), self.capture
        bare = [
            column
            for column in (relation.columns[index] for index in capture.columns(relation))
            if column.name not in hidden and capture.meant_to_hide(relation, column)
        ]
        if not bare:
            return None
        types = ", ".join(f"{column.name} ({_type_name(column)})" for column in bare)
        return MaskUnfit(
            f"columns of {relation.name} would be delivered unmasked, since masks and truncations are of "
            f"text: {types}",
            columns=",".join(re.escape(f"{relation.name}.{column.name}") for column in bare),
        )

    def left_out(self, relation: Relation) -> tuple[str, ...]:
        """Return captured columns without a mapped type, with their types.

        They need no further warning.
        """
        columns, keys = relation.columns, self.capture.keys(relation)
        names = tuple(
            f"{columns[n].name} ({_type_name(columns[n])}{AS_KEY if n in keys else ''})"
            for n in self.capture.columns(relation)
            if self.types.of(relation, columns[n]) is None
        )
        if names:
            self._left_out[relation.oid] = names
        else:
            self._left_out.pop(relation.oid, None)
        return names

    def identity_warnings(self, relation: Relation) -> list[IdentityWarning]:
        """Return the warnings about a described relation's replica identity.

        They need no further warning.
        """
        identity = self.identities.of(relation)
        found = usable(identity.warnings(relation), list, identity, "warnings")
        for each in found:
            usable(each, IdentityWarning, identity, "warnings")
        if missing := self.capture.keys_never_sent(relation):
            table = sql_name(relation.schema, relation.table)
            what = f"its old rows lack {', '.join(missing)} of message.key.columns: {self._keyless}"
            remedy = f"ALTER TABLE {table} REPLICA IDENTITY FULL;"
            found = [*found, IdentityWarning(relation.name, what, remedy)]
        self._warned.update(found)
        return found

    def identity(self, relation: Relation) -> ReplicaIdentity:
        """Return the replica identity of a relation, once per version."""
        known = self._version(relation)
        if known.identity is None:
            known.identity = self.identities.of(self.describe(relation))
        return known.identity


def _names(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns}


def _type_name(column: Column) -> str:
    data_type = column.data_type
    if data_type is None:
        return f"type {column.type_oid}"
    return data_type.name if data_type.element is None else f"{data_type.element.name}[]"
