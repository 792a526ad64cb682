"""Check a signal's SQL before it runs.

A writer of the signal table makes waltap's role run such SQL. So it may only compare values of its
own table by built-in functions and operators. Three checks decide, and none runs the SQL:

- the types of the table's columns and all their parts: the server runs a domain's CHECK as soon as
  it parses a literal of the domain, and a cast to json or text when a built-in function prints a
  value;
- the words: a name with another schema than ``pg_catalog`` or the table's is refused. Sessions find
  nothing else without a schema, and so no type that the first check did not see;
- the parse tree: the server only parses the statement, and the tree has every function, operator,
  type and relation as an OID.

Source: PostgreSQL's ``src/include/nodes/primnodes.h``, ``outfuncs.c`` and ``read.c`` for the tree's text;
the setting ``debug_print_parse``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Relation
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import ConditionRefused

# Objects of the server itself have lower OIDs.
BUILT_IN: Final = 16384

# Compiled at the first condition: most pipelines have none.
TOKENS: Final = r"""
    (?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<text>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|(?:[bBxXnN])?'(?:[^']|'')*(?:'|\Z)
      |\$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][\w]*)?)\$.*?(?:\$(?P=tag)\$|\Z))
    |(?P<escaped>[uU]&["'])
    |(?P<quoted>"(?:[^"]|"")*(?:"|\Z))
    |(?P<number>\.?\d[\w.]*)
    |(?P<name>[A-Za-z_\x80-\U0010ffff][\w$]*)
    |(?P<other>.)
    """
NODES: Final = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)

# Nodes that a tree may have: no subqueries, aggregates, window functions, parameters or domains.
ALLOWED: Final = frozenset(
    {
        *("QUERY", "RTE", "RANGETBLENTRY", "ALIAS", "FROMEXPR", "RANGETBLREF", "TARGETENTRY"),
        "SORTGROUPCLAUSE",
        *("VAR", "CONST", "FUNCEXPR", "OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR"),
        *("BOOLEXPR", "NULLTEST", "BOOLEANTEST", "RELABELTYPE", "COERCEVIAIO", "ARRAYCOERCEEXPR"),
        *("CASE", "CASEEXPR", "WHEN", "CASEWHEN", "CASETESTEXPR", "COALESCE", "COALESCEEXPR"),
        *("MINMAX", "MINMAXEXPR", "ARRAY", "ARRAYEXPR", "ROW", "ROWEXPR", "ROWCOMPARE"),
        *("ROWCOMPAREEXPR", "SUBSCRIPTINGREF", "ARRAYREF", "SBSREF", "FIELDSELECT"),
        *("SQLVALUEFUNCTION", "NAMEDARGEXPR", "COLLATE", "COLLATEEXPR"),
        *("RTEPERMISSIONINFO", "PERMINFO"),
    }
)
CALLS: Final = ("funcid", "opfuncid", "elemfuncid", "hashfuncid", "negfuncid")
OPERATORS: Final = ("opno", "opnos", "eqop", "sortop")
TYPES: Final = (
    "resulttype",
    "consttype",
    "array_typeid",
    "element_typeid",
    "minmaxtype",
    "row_typeid",
)
# Nodes that make a value of a type, whose functions then see the value.
RESULTS: Final = frozenset({"COERCEVIAIO", "ARRAYCOERCEEXPR", "CONST", "ARRAY", "ARRAYEXPR"})

# Volatile functions that only return another value each time.
HARMLESS: Final = frozenset({"random", "clock_timestamp", "timeofday", "gen_random_uuid"})

# Functions that read other relations, run SQL of their arguments, or make values of a type that an
# argument names.
READS: Final = re.compile(
    r"(?:table|schema|database|query|cursor)_to_xml|ts_stat|pg_get_viewdef|pg_input_"
)

# The last column marks functions of a type, which make a value of any type whose OID they get.
FUNCTIONS_SQL: Final = """
SELECT oid::int8, proname::text, provolatile = 'v',
  'cstring'::regtype = ANY (proargtypes) OR 'internal'::regtype = ANY (proargtypes)
  FROM pg_proc WHERE oid = ANY (ARRAY[{}]::oid[])
"""

# For the types of a table's values, with their arrays and multiranges: the functions in a language
# that any user may write, and the trees of CHECK constraints.
COLUMN_TYPES_SQL: Final = """
WITH RECURSIVE reached(oid) AS (
  SELECT reltype FROM pg_class WHERE oid = {oid}
  UNION
  SELECT x.oid FROM reached r CROSS JOIN LATERAL (
    SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
     WHERE t.oid = r.oid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT t.typelem FROM pg_type t WHERE t.oid = r.oid
    UNION ALL SELECT t.typbasetype FROM pg_type t WHERE t.oid = r.oid
    UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE g.rngtypid = r.oid
    UNION ALL SELECT d.objid FROM pg_depend d
     WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = r.oid
       AND d.classid = 'pg_type'::regclass AND d.deptype = 'i'
  ) x(oid) WHERE x.oid >= {built_in}
), code(type, what, oid) AS (
  SELECT t.oid, 'is read', t.typinput FROM reached r JOIN pg_type t ON t.oid = r.oid
  UNION ALL SELECT t.oid, 'is written', t.typoutput FROM reached r JOIN pg_type t ON t.oid = r.oid
  UNION ALL SELECT r.oid, 'has a cast', c.castfunc FROM reached r JOIN pg_cast c ON c.castsource = r.oid
)
SELECT format_type(c.type, NULL), c.what || ' by ' || p.proname, NULL
  FROM code c JOIN pg_proc p ON p.oid = c.oid JOIN pg_language l ON l.oid = p.prolang
 WHERE l.lanname NOT IN ('internal', 'c')
UNION ALL
SELECT format_type(r.oid, NULL), NULL, k.conbin::text
  FROM reached r JOIN pg_constraint k ON k.contypid = r.oid
"""
TYPES_SQL: Final = """
SELECT t.oid::int8, t.typname::text FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem
 WHERE t.oid = ANY (ARRAY[{}]::oid[]) AND t.typtype <> 'e' AND coalesce(e.typtype, '') <> 'e'
"""

NAMES: Final = frozenset({"name", "quoted"})
TRUE: Final = frozenset({True, "t"})
Words = Sequence[tuple[str, str]]
Ask = Callable[[str], list[tuple[Any, ...]]]
Parse = Callable[[str], str]


@dataclass(slots=True)
class ParseNode:
    """Hold a node of a parse tree: its tag and fields."""

    tag: str
    fields: dict[str, list["str | ParseNode"]] = field(default_factory=dict)

    def numbers(self, name: str) -> list[int]:
        """Return the OIDs in a field."""
        return [int(v) for v in self.fields.get(name, ()) if isinstance(v, str) and v.isdecimal()]

    def walk(self) -> Iterator["ParseNode"]:
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            for values in node.fields.values():
                waiting += [value for value in values if isinstance(value, ParseNode)]


def parse_tree(text: str) -> list[ParseNode]:
    """Return the root nodes of a parse tree that the server printed."""
    root = ParseNode("")
    values = root.fields.setdefault("", [])
    stack: list[tuple[ParseNode, list[str | ParseNode]]] = []
    node, opens = root, False
    for word in NODES.findall(text):
        if opens:
            made = ParseNode(word)
            values.append(made)
            stack.append((node, values))
            node, values, opens = made, made.fields.setdefault("", []), False
        elif word == "{":
            opens = True
        elif word == "}":
            if not stack:
                raise ConditionRefused("the server's parse tree cannot be read")
            node, values = stack.pop()
        elif word[0] == ":" and word not in {":", ":="}:
            if word[1:] in node.fields:  # a name that looks like a field
                raise ConditionRefused(f"a name begins with a colon: {word}")
            values = node.fields.setdefault(word[1:], [])
        elif word not in "()":
            values.append(word)
    return [value for value in root.fields[""] if isinstance(value, ParseNode)]


def take_role(session: PostgresSession) -> None:
    """Switch to the profile's role for signals, if there is one.

    The switch lasts until the end of the transaction. Raises: SourceError if the connection's role
    is no member of it.
    """
    role = session.properties.signal_role
    if role is not None:
        session.execute(f"SET LOCAL ROLE {sql_name(role)}")


@dataclass(frozen=True, slots=True)
class ConditionCheck:
    """Check a signal's SQL in the transaction that reads its table."""

    relation: Relation
    # Lets the server parse one statement in that transaction and returns the tree's text. Its lock
    # keeps the columns from changing.
    parse: Parse
    # Runs a query that sees the present catalogue, as the parser does.
    ask: Ask

    def condition(self, source: str, condition: str) -> None:
        """Refuse anything but one boolean expression over the table.

        ``source`` is the table's text after FROM. Raises: SourceError with the server's message,
        ConditionRefused.
        """
        self._words(condition)
        self._column_types()
        # Parsed between brackets and between parentheses: text that closes neither is one
        # expression, and cannot end the query around it.
        self.parse(f"SELECT FROM {source} WHERE (ARRAY[{condition}\n]::boolean[])[1]")
        self._tree(self.parse(f"SELECT FROM {source} WHERE ({condition}\n)"))

    def statement(self, statement: str) -> None:
        """Refuse all but one SELECT of the table's rows."""
        self._words(statement)
        self._column_types()
        self._columns(self._tree(self.parse(statement)))

    # --- types ---

    def _column_types(self) -> None:
        self.parse(f"SELECT FROM {sql_name(self.relation.schema, self.relation.table)}")
        rows = self.ask(COLUMN_TYPES_SQL.format(oid=self.relation.oid, built_in=BUILT_IN))
        for name, runs, check in rows:
            if runs is not None:
                raise ConditionRefused(f"the table has values of the type {name}, which {runs}")
            nodes = [node for root in parse_tree(check or "") for node in root.walk()]
            try:
                self._expressions(nodes, ALLOWED | {"COERCETODOMAINVALUE"})
            except ConditionRefused as error:
                raise ConditionRefused(
                    f"the table has values of the domain {name}, of whose CHECK {error.problem}"
                ) from error

    # --- words ---

    def _words(self, text: str) -> None:
        words = [
            ("text" if match["text"] is not None else match.lastgroup or "other", match[0])
            for match in re.finditer(TOKENS, text, re.VERBOSE | re.DOTALL)
            if match["space"] is None
        ]
        own = self._names_of_the_table(words)
        for at, (kind, word) in enumerate(words):
            if kind == "escaped":
                raise ConditionRefused(f"{word} hides the condition there: write it as it is")
            if kind not in NAMES or _at(words, at + 1) != "." or _at(words, at - 1) == ".":
                continue
            first = _folded(kind, word)
            if first not in {"pg_catalog", *own} and not self._begins_table(words, at):
                raise ConditionRefused(
                    f"{word}.{_at(words, at + 2)} is neither the table nor built in: a condition compares "
                    f"values of {self.relation.name} by what pg_catalog has"
                )

    def _begins_table(self, words: Words, at: int) -> bool:
        """Return whether the word at ``at`` begins the table's name.

        The name is after FROM or before a column. Elsewhere the same two words name the table's row
        type or a function.
        """
        if at + 2 >= len(words) or words[at + 2][0] not in NAMES:
            return False
        if (_folded(*words[at]), _folded(*words[at + 2])) != self.relation.table_id:
            return False
        before = _at(words, at - 1).lower()
        if _at(words, at + 3) == ".":
            return before not in {":", "as"} and _kind(words, at + 5) != "text"
        return before in {"from", "only"} and _at(words, at + 3) != "("

    def _names_of_the_table(self, words: Words) -> set[str]:
        """Return the names that may precede a column.

        They are the table's name and its aliases in a SELECT.
        """
        found = {self.relation.table}
        for at in range(len(words)):
            if self._begins_table(words, at) and _at(words, at - 1).lower() in {"from", "only"}:
                after = at + 3 + (_at(words, at + 3).lower() == "as")
                if _kind(words, after) in NAMES:
                    found.add(_folded(*words[after]))
        # A name that is also a schema's could reach that schema's types and functions.
        names = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(found))
        rows = self.ask(f"SELECT nspname::text FROM pg_namespace WHERE nspname IN ({names})")
        return found - {name for (name,) in rows}

    # --- the tree ---

    def _tree(self, text: str) -> ParseNode:
        nodes = [node for root in parse_tree(text) for node in root.walk()]
        queries = [node for node in nodes if node.tag == "QUERY"]
        if len(queries) != 1:
            raise ConditionRefused("a condition has no query of its own, and a SELECT no other")
        self._expressions(nodes, ALLOWED)
        (query,) = queries
        if query.fields["commandType"] != ["1"]:
            raise ConditionRefused("the statement writes; a snapshot only reads")
        relations = [node for node in nodes if node.tag in {"RTE", "RANGETBLENTRY"}]
        if len(relations) > 1 or any(
            node.fields["rtekind"] != ["0"] or node.numbers("relid") != [self.relation.oid]
            for node in relations
        ):
            raise ConditionRefused(f"it reads another relation than {self.relation.name}")
        return query

    def _columns(self, query: ParseNode) -> None:
        """Refuse a SELECT with other columns than the table's own."""
        # Computed values would be delivered as the table's, and a column under another name would
        # escape its mask.
        names = {
            int(number): name
            for number, name in self.ask(
                "SELECT attnum::int4, attname::text FROM pg_attribute"
                f" WHERE attrelid = {self.relation.oid}"
                " AND attnum > 0 AND NOT attisdropped"
            )
        }
        for entry in query.fields["targetList"]:
            if not isinstance(entry, ParseNode) or entry.fields["resjunk"] == ["true"]:
                continue
            called = re.sub(r"\\(.)", r"\1", " ".join(map(str, entry.fields["resname"])))
            value = entry.fields["expr"][0]
            numbers = (
                value.numbers("varattno")
                if isinstance(value, ParseNode) and value.tag == "VAR"
                else []
            )
            if [names.get(number) for number in numbers] != [called]:
                raise ConditionRefused(
                    f"{called} is no column of {self.relation.name} as it is: a SELECT of a signal "
                    "has columns of the table under their own names"
                )

    def _expressions(self, nodes: Iterable[ParseNode], allowed: frozenset[str]) -> None:
        """Refuse nodes that may run code that is not built in."""
        calls: set[int] = set()
        types: set[int] = set()
        for node in nodes:
            if node.tag not in allowed:
                raise ConditionRefused(
                    f"it has what is not a comparison of the table's values ({node.tag})"
                )
            if node.fields.get("funcretset", ["false"]) != ["false"]:
                raise ConditionRefused("it calls a function that returns a set")
            for name in CALLS:
                calls.update(node.numbers(name))
            operators = [oid for name in OPERATORS for oid in node.numbers(name)]
            if any(oid >= BUILT_IN for oid in operators):
                raise ConditionRefused("it uses an operator that is not built in")
            if node.tag in RESULTS:
                types.update(oid for name in TYPES for oid in node.numbers(name) if oid >= BUILT_IN)
        self._calls(calls - {0})
        if types:
            for _oid, name in self.ask(TYPES_SQL.format(", ".join(map(str, types)))):
                raise ConditionRefused(f"it makes values of the type {name}, which is not built in")

    def _calls(self, calls: set[int]) -> None:
        if not calls:
            return
        rows = self.ask(FUNCTIONS_SQL.format(", ".join(map(str, calls))))
        for oid, name, volatile, types_own in sorted((int(oid), *rest) for oid, *rest in rows):
            if oid >= BUILT_IN:
                raise ConditionRefused(f"it calls {name}, which is not built in")
            if (volatile in TRUE and name not in HARMLESS) or READS.match(name):
                raise ConditionRefused(
                    f"it calls {name}, which may have side effects or read something else"
                )
            if types_own in TRUE:
                raise ConditionRefused(f"it calls {name}, which makes values of any type")


def _at(words: Words, index: int) -> str:
    return words[index][1] if 0 <= index < len(words) else ""


def _kind(words: Words, index: int) -> str:
    return words[index][0] if 0 <= index < len(words) else ""


def _folded(kind: str, word: str) -> str:
    """Return the name that a word denotes."""
    if kind == "quoted":
        return word[1:-1].replace('""', '"')
    return word.lower()
