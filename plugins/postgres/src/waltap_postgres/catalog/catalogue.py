"""What the system catalogues say of tables and types, as relations and data types.

Answers show the present schema, which may be newer than the WAL being decoded: `describe` completes a
relation of the stream only where column names and types agree.
"""

from typing import Any

import msgspec
import psycopg

from waltap.decode.relation import Column, DataType, Relation, TypeKind
from waltap.source.position import parse_lsn
from waltap_postgres.connection import driver_error
from waltap_postgres.properties import PostgresProperties

__all__ = ["PostgresCatalogue", "Table"]

KINDS = {
    "b": TypeKind.BASE,
    "c": TypeKind.COMPOSITE,
    "d": TypeKind.DOMAIN,
    "e": TypeKind.ENUM,
    "m": TypeKind.MULTIRANGE,
    "p": TypeKind.PSEUDO,
    "r": TypeKind.RANGE,
}

TYPE_SQL = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typelem::int8, t.typbasetype::int8,
       t.typtypmod, t.typdelim, t.typsubscript::regproc::text = 'array_subscript_handler',
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
          FROM pg_enum e WHERE e.enumtypid = t.oid),
       CASE WHEN t.typtype = 'c' THEN (
         SELECT array_agg(a.attname::text || E'\\t' || a.atttypid::int8 || E'\\t' || a.atttypmod
                          ORDER BY a.attnum)
           FROM pg_attribute a
          WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.oid = ANY(%s)
"""

TYPE_SQL_13 = TYPE_SQL.replace(
    "t.typsubscript::regproc::text = 'array_subscript_handler'", "t.typlen = -1 AND t.typelem <> 0"
)

RELATION_SQL = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, c.relkind, c.relispartition,
       greatest(c.reltuples, 0)::int8,
       (SELECT array_agg(ARRAY[a.attname::text, a.atttypid::int8::text, a.atttypmod::text,
                               a.attnotnull::text, (a.attgenerated <> '')::text,
                               coalesce(pg_get_expr(d.adbin, d.adrelid), chr(1)),
                               coalesce(col_description(c.oid, a.attnum), chr(1)),
                               a.attnum::text,
                               CASE WHEN a.atthasmissing AND mt.typdelim = ',' THEN coalesce(
                                 (a.attmissingval::text::text[])[1], chr(1)) ELSE chr(1) END]
                         ORDER BY a.attnum)
          FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
          LEFT JOIN pg_type mt ON mt.oid = a.atttypid
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(ARRAY[i.indisprimary::text, i.indisreplident::text,
                               (i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate)::text,
                               (SELECT string_agg(coalesce(ka.attname::text, ''), E'\\t' ORDER BY k.n)
                                  FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
                                  LEFT JOIN pg_attribute ka
                                    ON ka.attrelid = c.oid AND ka.attnum = k.attnum
                                 WHERE k.n <= i.indnkeyatts)]
                         ORDER BY i.indisprimary DESC, ic.relname)
          FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_temp'
"""


NAMES_SQL = (
    "SELECT n.nspname::text, c.relname::text"
    + RELATION_SQL[RELATION_SQL.rindex("  FROM pg_class c") :]
)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the catalogue has it now. ``estimate`` is the planner's row count.

    ``identity_index`` holds the columns of the index behind REPLICA IDENTITY USING INDEX.
    ``has_primary_key`` tells a real primary key from a unique index that stands in for one.
    """

    relation: Relation
    partitioned: bool
    partition: bool
    estimate: int
    has_primary_key: bool
    identity_index: tuple[str, ...] = ()

    @property
    def supports_updates(self) -> bool:
        """Tell whether UPDATE and DELETE still work once the table is published."""
        identity = self.relation.identity
        return (
            identity in "fc"
            or (identity == "d" and self.has_primary_key)
            or (identity == "i" and bool(self.identity_index))
        )


class PostgresCatalogue:
    """Reads the catalogues over one ordinary connection; types are cached, relations are not."""

    def __init__(
        self, connection: "psycopg.Connection[tuple[Any, ...]]", properties: PostgresProperties
    ) -> None:
        self._connection, self._properties = connection, properties
        self._types: dict[int, DataType] = {}

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one query. Raises: SourceError."""
        try:
            return self._connection.execute(sql.encode(), parameters or None).fetchall()
        except psycopg.Error as error:
            raise driver_error(error, self._properties) from error

    def wal_end(self) -> int:
        """Return the end of the server's WAL: written, or replayed on a standby."""
        ((text,),) = self.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_lsn() END::text"
        )
        return parse_lsn(text)

    def data_type(self, oid: int) -> DataType | None:
        """Return the type with that OID and all it refers to; None when there is none (any more)."""
        if oid not in self._types:
            self._load_types([oid])
        return self._types.get(oid)

    def forget_types(self) -> None:
        """Drop cached types: enums grow, composites change."""
        self._types.clear()

    def tables(self) -> list[Table]:
        """Return every ordinary and partitioned table of the database, by schema and name."""
        rows = self.query(RELATION_SQL + " ORDER BY n.nspname, c.relname")
        self._load_types({int(column[1]) for row in rows for column in row[7] or ()})
        return [self._table(row) for row in rows]

    def names(self) -> list[tuple[str, str]]:
        """Return (schema, table) of every table that `tables` gives, unsorted; cheap."""
        return self.query(NAMES_SQL)

    def table(self, schema: str, table: str) -> Table | None:
        """Return one table, None when it does not exist."""
        rows = self.query(RELATION_SQL + " AND n.nspname = %s AND c.relname = %s", (schema, table))
        return self._one(rows)

    def relation(self, schema: str, table: str) -> Relation | None:
        """Return one relation as the catalogue has it now, None when it does not exist."""
        found = self.table(schema, table)
        return found.relation if found else None

    def unreadable(self, relations: list[Relation]) -> list[Relation]:
        """Return those of ``relations`` that this role may not read whole."""
        oids = [relation.oid for relation in relations]
        rows = self.query(
            "SELECT c.oid::int8 FROM unnest(%s::oid[]) o(oid) JOIN pg_class c ON c.oid = o.oid"
            " WHERE NOT has_schema_privilege(c.relnamespace, 'USAGE')"
            "    OR NOT (has_table_privilege(c.oid, 'SELECT') OR (SELECT coalesce(bool_and("
            "      has_column_privilege(c.oid, a.attnum, 'SELECT')), false) FROM pg_attribute a"
            "      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))",
            (oids,),
        )
        found = {row[0] for row in rows}
        return [relation for relation in relations if relation.oid in found]

    def describe(self, relation: Relation) -> Relation:
        """Complete a relation of the stream: data types, nullability, defaults, comments, key.

        The table is looked up by OID where the decoder knows it, by name otherwise. Columns that
        the catalogue does not know any more count as nullable without default. A key is kept only
        as far as its columns are in the stream.
        """
        if relation.oid:
            found = self._one(self.query(RELATION_SQL + " AND c.oid = %s", (relation.oid,)))
            if found and found.relation.name != relation.name:
                found = None
        else:
            found = self.table(relation.schema, relation.table)
        known = {column.name: column for column in found.relation.columns} if found else {}
        self._load_types([column.type_oid for column in relation.columns])
        columns = tuple(
            self._complete(column, known.get(column.name)) for column in relation.columns
        )
        names = {column.name for column in columns}
        key = found.relation.primary_key or () if found else ()
        return msgspec.structs.replace(
            relation,
            columns=columns,
            primary_key=tuple(name for name in key if name in names),
        )

    def _complete(self, column: Column, known: Column | None) -> Column:
        same = known is not None and known.type_oid == column.type_oid
        return msgspec.structs.replace(
            column,
            data_type=self.data_type(column.type_oid) or column.data_type,
            nullable=known.nullable if known else True,
            default=known.default if known and same else None,
            generated=known.generated if known else False,
            comment=known.comment if known else None,
            number=known.number if known else None,
            missing=known.missing if known and same else None,
        )

    def _one(self, rows: list[tuple[Any, ...]]) -> Table | None:
        if not rows:
            return None
        self._load_types({int(column[1]) for column in rows[0][7] or ()})
        return self._table(rows[0])

    def _table(self, row: tuple[Any, ...]) -> Table:
        oid, schema, name, identity, kind, partition, estimate, attributes, indexes = row
        not_null = {a[0] for a in attributes or () if a[3] == "true"}
        primary, stand_in, replica = None, None, ()
        for is_primary, is_replica, usable, joined in indexes or ():
            columns = tuple((joined or "").split("\t"))
            if is_primary == "true":
                primary = columns
            elif stand_in is None and usable == "true" and all(c in not_null for c in columns):
                stand_in = columns
            if is_replica == "true":
                replica = columns
        key = primary or stand_in or ()
        flagged = (
            {a[0] for a in attributes or ()}
            if identity == "f"
            else set(primary or ())
            if identity == "d"
            else set(replica)
        )
        relation = Relation(
            oid=oid,
            schema=schema,
            table=name,
            identity=identity,
            primary_key=key,
            columns=tuple(
                Column(
                    name=a[0],
                    type_oid=int(a[1]),
                    typmod=int(a[2]),
                    in_identity=a[0] in flagged,
                    data_type=self.data_type(int(a[1])),
                    nullable=a[3] != "true",
                    generated=a[4] == "true",
                    default=None if a[5] == "\x01" or a[4] == "true" else a[5],
                    comment=None if a[6] == "\x01" else a[6],
                    number=int(a[7]),
                    missing=None if a[8] == "\x01" else a[8],
                )
                for a in attributes or ()
            ),
        )
        return Table(
            relation=relation,
            partitioned=kind == "p",
            partition=partition,
            estimate=estimate,
            has_primary_key=primary is not None,
            identity_index=replica if identity == "i" else (),
        )

    def _load_types(self, oids: "set[int] | list[int]") -> None:
        """Fetch types and all they refer to, breadth first, one query per level."""
        raw: dict[int, tuple[Any, ...]] = {}
        wanted = {oid for oid in oids if oid and oid not in self._types}
        sql = TYPE_SQL if self._connection.info.server_version >= 140000 else TYPE_SQL_13
        while wanted:
            rows = self.query(sql, (list(wanted),))
            raw.update({row[0]: row for row in rows})
            wanted = {
                oid
                for row in rows
                for oid in (row[4] if row[8] else 0, row[5], *_attribute_oids(row[10]))
                if oid and oid not in raw and oid not in self._types
            }
        for oid in raw:
            self._build(oid, raw, set())

    def _build(
        self, oid: int, raw: dict[int, tuple[Any, ...]], open_types: set[int]
    ) -> DataType | None:
        """Build one type after what it refers to; a composite that contains itself ends there."""
        if oid in self._types:
            return self._types[oid]
        if oid not in raw or oid in open_types:
            return None
        number, schema, name, kind, element, base, typmod, delimiter, is_array, labels, parts = raw[
            oid
        ]
        inner = open_types | {oid}
        attributes = []
        for part in parts or ():
            attribute, type_oid, modifier = part.split("\t")
            built = self._build(int(type_oid), raw, inner)
            if built is not None:
                attributes.append((attribute, built, int(modifier)))
        made = DataType(
            oid=number,
            schema=schema,
            name=name,
            kind=TypeKind.ARRAY if is_array else KINDS.get(kind, TypeKind.BASE),
            element=self._build(element, raw, inner) if is_array else None,
            base=self._build(base, raw, inner) if base else None,
            base_typmod=typmod,
            labels=tuple(labels or ()),
            delimiter=delimiter,
            attributes=tuple(attributes),
        )
        self._types[oid] = made
        return made


def _attribute_oids(parts: list[str] | None) -> list[int]:
    return [int(part.split("\t")[1]) for part in parts or ()]
