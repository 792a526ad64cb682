"""Tables of the hunt, and how they are altered: the statements, drawn from a `Random`. Pure."""

from collections.abc import Callable
from random import Random

from tests.hunt.catalogue import SCHEMAS, Known, name_of
from tests.hunt.values import KEY_TYPES, TYPES, literal

TABLE_NAMES = (
    "a",
    "orders",
    "Odd Name",
    "t.dot",
    "ünï",
    "select",
    "zz_last",
    "b'q",
    'd"q',
    "m1",
    "m2",
    "ü" * 31 + "x",
)
"""The last one has the 63 bytes that a name may have."""
COLUMN_NAMES = (
    *("v", "w", "Mixed Case", "x.y", "ö", "from", "a b", 'q"q', "n1", "n2", "n3", "n4"),
    "é" * 31 + "z",
)

STYLES = ("key", "composite", "index", "deferrable", "wide", "none", "partitions", "child")
"""Of tables; the first ones stand for themselves: with a key, without others that depend on them."""

KEY_NAMES = ("id", "k 2", "Key3")


class Alterations:
    """DDL of one table each. ``number`` makes names that are new."""

    def __init__(self) -> None:
        self.number = 0

    def draw(self, random: Random, known: Known) -> list[str]:
        """Return the statements of one alteration; none where it does not fit the table."""
        acts: list[tuple[float, Callable[[Random, Known], list[str]]]] = [
            (3, self._add_column),
            (1, self.add_volatile),
            (2, self._drop_column),
            (2, self.rename_column),
            (1, self.retype),
            (2, self._rename_table),
            (1, self._drop_table),
            (1, self._recreate),
            (2, self._drop_key),
            (1, self._change_key),
            (2, self._identity),
            (0.5, self._schema),
            (0.7, self._view),
            (0.5, self._label),
        ]
        weights, makers = zip(*acts, strict=True)
        return random.choices(makers, weights)[0](random, known)

    def _new_column(self, random: Random, known: Known) -> str:
        taken = {column[0] for column in known.columns}
        free = [name for name in COLUMN_NAMES if name not in taken]
        self.number += 1
        return random.choice(free) if free else f"c{self.number}"

    def _add_column(self, random: Random, known: Known) -> list[str]:
        kind = random.choice(list(TYPES))
        text = (
            f"ALTER TABLE {known.sql} ADD COLUMN {name_of(self._new_column(random, known))} {kind}"
        )
        if random.random() < 0.5:
            text += f" DEFAULT {literal(TYPES[kind](random))}"
            text += " NOT NULL" if random.random() < 0.4 else ""
        return [text]

    def add_volatile(self, random: Random, known: Known) -> list[str]:
        name = name_of(self._new_column(random, known))
        return [f"ALTER TABLE {known.sql} ADD COLUMN {name} uuid DEFAULT gen_random_uuid()"]

    @staticmethod
    def _free(known: Known) -> list[tuple[str, str, bool, bool]]:
        return [c for c in known.columns if c[0] not in known.primary_key + known.identity_index]

    def _drop_column(self, random: Random, known: Known) -> list[str]:
        free = self._free(known)
        if len(free) < 2:
            return []
        return [f"ALTER TABLE {known.sql} DROP COLUMN {name_of(random.choice(free)[0])} CASCADE"]

    def rename_column(self, random: Random, known: Known) -> list[str]:
        old = random.choice(known.columns)[0]
        new = self._new_column(random, known)
        return [f"ALTER TABLE {known.sql} RENAME COLUMN {name_of(old)} TO {name_of(new)}"]

    def retype(self, random: Random, known: Known) -> list[str]:
        to = {
            "smallint": "int4", "integer": "int8", "character varying": "text", "numeric": "text",
            "boolean": "text", "date": "timestamp", "text": "varchar(30)", "uuid": "text",
        }  # fmt: skip
        key = known.primary_key + known.identity_index  # a date as a timestamp is another key
        free = [
            c
            for c in known.columns
            if c[1] in to and not c[3] and not (c[0] in key and c[1] == "date")
        ]
        if not free:
            return []
        name, kind, _required, _generated = random.choice(free)
        quoted = name_of(name)
        using = f" USING left({quoted}, 30)" if kind == "text" else ""
        return [f"ALTER TABLE {known.sql} ALTER COLUMN {quoted} TYPE {to[kind]}{using}"]

    def _rename_table(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        return [
            f"ALTER TABLE {known.sql} RENAME TO {name_of(f'{known.table[:20]}_r{self.number}')}"
        ]

    def _drop_table(self, random: Random, known: Known) -> list[str]:
        return [f"DROP TABLE {known.sql} CASCADE"]

    def _recreate(self, random: Random, known: Known) -> list[str]:
        style = random.choice(("key", "composite"))
        return [
            f"DROP TABLE {known.sql} CASCADE",
            *definition(random, known.schema, known.table, style),
        ]

    def _drop_key(self, random: Random, known: Known) -> list[str]:
        if not known.primary_key or known.kind != "r" or "'" in known.sql:
            return []
        find = (
            "DO $$ DECLARE c text; BEGIN SELECT conname INTO c FROM pg_constraint"
            f" WHERE conrelid = {known.oid} AND contype = 'p';"
            f" EXECUTE format('ALTER TABLE {known.sql} DROP CONSTRAINT %I', c); END $$"
        )
        keep = [f"ALTER TABLE {known.sql} REPLICA IDENTITY FULL"] if random.random() < 0.6 else []
        return [find, *keep]

    def _change_key(self, random: Random, known: Known) -> list[str]:
        """Another key: a generated column, so that it is unique at once."""
        if known.kind != "r":
            return []
        name = name_of(self._new_column(random, known))
        add = f"ALTER TABLE {known.sql} ADD COLUMN {name} uuid DEFAULT gen_random_uuid()"
        key = f"ALTER TABLE {known.sql} ADD PRIMARY KEY ({name})"
        return [*(self._drop_key(random, known)), add, key]

    def _identity(self, random: Random, known: Known) -> list[str]:
        if known.kind != "r":
            return []
        word = "FULL" if known.identity != "f" and random.random() < 0.8 else "DEFAULT"
        return [f"ALTER TABLE {known.sql} REPLICA IDENTITY {word}"]

    def _schema(self, random: Random, known: Known) -> list[str]:
        other = SCHEMAS[1 - SCHEMAS.index(known.schema)]
        return [f"ALTER TABLE {known.sql} SET SCHEMA {name_of(other)}"]

    def _view(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        name = name_of("public", f"view{self.number}")
        if random.random() < 0.5:
            return [f"CREATE VIEW {name} AS SELECT 1 AS one FROM {known.sql}"]
        made = (
            f"CREATE MATERIALIZED VIEW {name} AS SELECT row_number() OVER () AS n FROM {known.sql}"
        )
        index = f"CREATE UNIQUE INDEX ON {name} (n)"
        return [made, index, f"REFRESH MATERIALIZED VIEW CONCURRENTLY {name}"]

    def _label(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        return [f"ALTER TYPE mood ADD VALUE 'label{self.number}'"]


def definition(random: Random, schema: str, table: str, style: str) -> list[str]:
    """Return the statements that create one table of a style."""
    name = name_of(schema, table)
    tail, columns, after = "", list[str](), list[str]()
    key = [f"{name_of('id')} {random.choice(KEY_TYPES)}"]
    if style == "composite":
        key += [f"{name_of(n)} {random.choice(KEY_TYPES)}" for n in KEY_NAMES[1:]]
    match style:
        case "key" | "composite":
            names = [column.rsplit('"', 1)[0] + '"' for column in key]
            random.shuffle(names)
            columns += [*key, f"PRIMARY KEY ({', '.join(names)})"]
        case "deferrable":
            # not INITIALLY DEFERRED: what has two rows of one key for a while no consumer by key can follow
            columns += ["id int4 PRIMARY KEY DEFERRABLE"]
            after = [f"ALTER TABLE {name} REPLICA IDENTITY FULL"] if random.random() < 0.85 else []
        case "wide":
            columns += ["id int4 PRIMARY KEY"]
            columns += [f"wide{n} int2" for n in range(random.choice((250, 1590)))]
        case "none":
            columns += key
        case "index":
            columns += [f"{key[0]} NOT NULL UNIQUE"]
            after = [
                f"CREATE UNIQUE INDEX {name_of('ix ' + table)} ON {name} (id)",
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name_of('ix ' + table)}",
            ]
        case "partitions":
            columns += ["id int4 PRIMARY KEY"]
            tail = " PARTITION BY HASH (id)"
            after = [
                f"CREATE TABLE {name_of(schema, f'{table[:20]} p{n}')} PARTITION OF {name}"
                f" FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
                for n in range(2)
            ]
        case "child":
            columns += ["id int4 PRIMARY KEY"]
            child = name_of(schema, f"{table[:20]} child")
            after = [f"CREATE TABLE {child} (extra text, PRIMARY KEY (id)) INHERITS ({name})"]
    for column in random.sample(COLUMN_NAMES, random.randrange(1, 7)):
        kind = random.choice(list(TYPES))
        text = f"{name_of(column)} {kind}"
        if random.random() < 0.25:
            text += f" DEFAULT {literal(TYPES[kind](random))}"
        if random.random() < 0.2:
            text += " NOT NULL"
        if kind in ("text", "jsonb", "bytea") and random.random() < 0.7:
            after.append(f"ALTER TABLE {name} ALTER COLUMN {name_of(column)} SET STORAGE EXTERNAL")
        columns.append(text)
    if random.random() < 0.15:
        made = random.choice(("41 + 1", "CASE WHEN id IS NULL THEN 0 ELSE 1 END"))
        columns.append(f"gen int4 GENERATED ALWAYS AS ({made}) STORED")
    order = columns[:]
    if random.random() < 0.3:
        random.shuffle(order)
    return [f"CREATE TABLE {name} ({', '.join(order)}){tail}", *after]
