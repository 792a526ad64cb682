"""Declarations of properties, from which everything else derives.

A component declares a `Properties` model; each field is one property with its name (Debezium's
where the meaning is the same), type, default, check, summary and unit. Parsing, errors, ``--help``,
the reference pages and the JSON Schema read these declarations and nothing else.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)
from pydantic.fields import FieldInfo

from waltap.base.placeholder import SecretRefresh
from waltap.base.redaction import Secret, looks_secret, masked

REQUIRED: Any = ...

UNITS = frozenset({"ms", "bytes", "rows"})
"""Ends of names that are the unit of the property's number."""

Reach = Literal["records", "rows"]
REACHES: tuple[Reach, ...] = get_args(Reach)

LONGEST_IDENTIFIER = 54
"""Bytes of an identifier made of a name: PostgreSQL takes 63, and a component may add a suffix."""


def identifier_of(name: str) -> str:
    """Return ``name`` as an identifier of a-z, 0-9 and _.

    An identifier stays as it is. If characters were replaced or cut, a part of the name's digest
    follows, so that names that differ only there have different identifiers.
    """
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    if plain == name and len(plain) <= LONGEST_IDENTIFIER:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: LONGEST_IDENTIFIER - 9]}_{digest}"


def split_list(text: str) -> tuple[str, ...]:
    r"""Split a comma list; ``\,`` is a comma in an entry."""
    # NUL represents an escaped comma: no name of PostgreSQL contains it.
    parts = (part.replace("\0", ",").strip() for part in text.replace("\\,", "\0").split(","))
    return tuple(part for part in parts if part)


def _split(value: object) -> object:
    if type(value) in {int, float}:  # a list of one number
        return (value,)
    return split_list(value) if isinstance(value, str) else value


Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
CommaList = Annotated[tuple[str, ...], BeforeValidator(_split)]
NonEmptyList = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_split)]
Shares = Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], BeforeValidator(_split)]
"""A comma list of shares: numbers above 0, at most 1."""

# Types of properties that need not be there: with the default None, False or ().
T = TypeVar("T")
Maybe = Annotated[T | None, Field(default=None)]
Switch = Annotated[bool, Field(default=False)]
MaybeList = Annotated[CommaList, Field(default=())]


def declare(
    name: str,
    *,
    default: Any = REQUIRED,
    summary: str,
    unit: str | None = None,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
    deprecated: dict[str, str] | None = None,
    common: bool = False,
    profile_default: Any = None,
    examples: tuple[str, ...] = (),
    path: bool | tuple[str, ...] = False,
    pipeline_name: bool = False,
    words: tuple[str, ...] = (),
    renewed: bool = False,
    reloadable: bool = False,
    patterns: str | None = None,
    reach: tuple[Reach, ...] = REACHES,
    **checks: Any,
) -> Any:
    """Declare a property as default of a `Properties` field.

    A property without ``default`` is required, unless its type has one (`Maybe`). ``checks`` are
    pydantic's (``ge``, …). A ``pattern`` must match the whole value.

    - ``unit``: the unit of a number, as pages and `waltap explain` show it, where the name does not end
      with it (`UNITS`).
    - ``secret``: the value is never shown: not in logs, errors, ``waltap explain`` or a ``repr``.
    - ``examples``: values for the reference page.
    - ``profile_default``: the default of a waltap profile, if it differs from a Debezium file's.
    - ``aliases``: other accepted names.
    - ``deprecated``: old name, which may be the property's own → the advice.
    - ``common``: most profiles set it, so `waltap init` lists it.
    - ``pipeline_name``: a waltap profile's default is the pipeline's name, as an identifier.
    - ``path``: a text that names a file or folder, a URI, or one of these words. Relative paths start
      at the profile's folder, as in a field of type `Path`.
    - ``words``: the allowed entries of a comma list. Case is ignored, as for a closed set.
    - ``renewed``: the origin of the value is kept, to read it again (`Properties.renewal`).
    - ``reloadable``: a SIGHUP changes the value during a run. Only for properties of the engine, whose
      parts then read the value where they use it.
    - ``reach``: the consumer's data that the property changes, if it is a property of all:
      ``records`` (of every format, with topics), ``rows`` (of every sink that takes changes), ``()``:
      neither. A property of a sink or format reaches that one only.
    - ``patterns``: the names that the entries match (`waltap.config.name_patterns`): ``schemas``,
      ``tables``, ``columns``, ``types`` (of columns, as schema.table.type), ``cells``
      (schema.table:column), ``identities`` (TABLE:VALUE), ``keys`` (tables with columns), ``table``
      (the complete value is one pattern), ``rules`` (PATTERN:VALUE of tables; VALUE alone matches all),
      ``ruled`` (the same, of the names that `Properties.ruled_name` returns), ``renames`` (PATTERN:NAME of
      columns), ``topics`` (the complete value is one pattern), ``unrenamed`` (the same, of topics
      before ``topic.regex``).
    """
    # Before any other name is bound: the parameters are the attributes.
    extra = {name: value for name, value in locals().items() if name in DEFAULTS}
    if "pattern" in checks:
        checks["pattern"] = _anchored(checks["pattern"])
    made: FieldInfo = Field(
        default,
        alias=name,
        description=summary,
        examples=list(examples) or None,
        json_schema_extra=extra,
        **checks,
    )
    if words:
        made.metadata.append(AfterValidator(partial(_known, words)))
    return made


def _known(words: tuple[str, ...], value: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := sorted(set(value) - set(words)):
        raise ValueError(f"no such word: {', '.join(unknown)}; allowed: {', '.join(words)}")
    return value


def _anchored(pattern: str) -> str:
    """Return ``pattern`` for a whole value: pydantic searches for it."""
    if pattern.startswith("^") and pattern.endswith("$"):
        return pattern
    inner = pattern.removeprefix("^").removesuffix("$")
    return f"^(?:{inner})$" if "|" in inner else f"^{inner}$"


def declare_family(
    name: str,
    *,
    pattern: str,
    summary: str,
    secret: bool = False,
    patterns: str | None = None,
    reach: tuple[Reach, ...] = REACHES,
) -> Any:
    """Declare properties whose names fully match the regular expression ``pattern``.

    The field is a ``dict[str, str]``: full property name → value. ``name`` is the family's name in the
    documentation, e.g. ``column.mask.with.N.chars``. ``patterns``, ``reach``: as for `declare`.
    """
    re.compile(pattern)
    extra: dict[str, Any] = {
        "secret": secret,
        "patterns": patterns,
        "reach": reach,
        "family": pattern,
    }
    return Field(default_factory=dict, alias=name, description=summary, json_schema_extra=extra)


class Properties(BaseModel):
    """Base of every component's configuration; `declare` makes its fields.

    Its ``repr`` shows no secret and its validation errors show no input. Secrets are of the class
    `Secret`, also where a component passes them on.
    """

    model_config = ConfigDict(
        defer_build=True,  # a start names a few of forty models; the others are never built
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    routes: ClassVar[bool] = False
    """Whether the transform may give records other topics, which waltap cannot know."""

    _renewals: dict[str, SecretRefresh] = PrivateAttr(default_factory=dict)
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def renewal(self, field: str) -> SecretRefresh | None:
        """Return the origin of a ``renewed`` field's value, or None."""
        return self._renewals.get(field)

    def keep_renewals(self, renewals: Mapping[str, SecretRefresh]) -> None:
        """Keep the origins of values, by field."""
        self._renewals.update(renewals)

    def ruled_name(self, table: str) -> str:
        """Return the name of ``table`` (schema.table) in ``ruled`` patterns."""
        return table

    def idle_names(self, names: Callable[[str], Sequence[str]]) -> Iterable[tuple[str, str]]:
        """Return (property, pattern) of patterns that match no name.

        It covers properties whose form no ``patterns`` describes. ``names`` queries the source for its
        ``tables`` or ``topics``: call it only with a pattern at hand. No topics: they are unknown.
        """
        return ()

    def given(self, field: str) -> Any:
        """Return the value of a field as the profile has it."""
        return self._given.get(field, getattr(self, field))

    def keep_given(self, values: Mapping[str, Any]) -> None:
        """Keep values of the profile, by field, that this model has replaced."""
        self._given = {**self._given, **values}

    @model_validator(mode="before")
    @classmethod
    def _case_blind(cls, values: Any) -> Any:
        """Ignore the case of values of closed sets."""
        if not isinstance(values, dict):
            return values
        given = dict(values)
        for declaration in declarations(cls):
            for name in (declaration.name, declaration.field):
                if name in given:
                    given[name] = declaration.chosen(given[name])
        return given

    @model_validator(mode="after")
    def _veil(self) -> Self:
        """Hide secrets, and addresses that contain one, in a ``repr``."""
        # `__dict__`, since a frozen model refuses assignments.
        for declaration in declarations(type(self)):
            name, secret = declaration.field, declaration.secret
            value = self.__dict__.get(name)
            if isinstance(value, str):
                if secret or masked(value) != value:
                    self.__dict__[name] = Secret(value)
            elif isinstance(value, dict):
                self.__dict__[name] = {
                    key: Secret(each) if secret and isinstance(each, str) else _veiled(key, each)
                    for key, each in value.items()
                }
            elif isinstance(value, tuple):
                self.__dict__[name] = tuple(_veiled("", each) for each in value)
        return self


def _veiled(name: str, value: Any) -> Any:
    """Hide a value that looks secret, for a ``repr``."""
    if isinstance(value, str) and (looks_secret(name) or masked(value) != value):
        return Secret(value)
    return value


# Defaults for a field without the attribute: another library declared it, or a plugin by pydantic's
# `Field`. Such a field changes no consumer's data (``reach``); one of `declare` changes all by default.
DEFAULTS: Mapping[str, Any] = {
    "reloadable": False, "unit": None, "secret": False, "aliases": (),
    "deprecated": None, "common": False, "profile_default": None,
    "pipeline_name": False, "words": (), "path": False, "renewed": False, "patterns": None,
    "reach": (), "family": None,
}  # fmt: skip


class PropertyDeclaration:
    """One declared property; `declare` has the meaning of its attributes."""

    def __init__(self, field: str, info: FieldInfo) -> None:
        self.field, self.info = field, info
        self.name = info.alias or field
        self.summary = info.description or ""
        self.required = info.is_required()
        annotation = info.annotation
        # The values of a closed set, () of an open one.
        self.choices = tuple(_literals(annotation))
        given = info.json_schema_extra
        extra = {**DEFAULTS, **(given if isinstance(given, dict) else {})}
        last = self.name.rpartition(".")[2]
        self.unit: str | None = extra["unit"] or (last if last in UNITS else None)
        self.secret: bool = extra["secret"]
        self.common: bool = extra["common"]
        self.renewed: bool = extra["renewed"]
        self.reloadable: bool = extra["reloadable"]
        self.pipeline_name: bool = extra["pipeline_name"]
        self.profile_default: object = extra["profile_default"]
        self.patterns: str | None = extra["patterns"]
        self.reach: tuple[str, ...] = tuple(extra["reach"])
        self.words: tuple[str, ...] = tuple(extra["words"])
        self.deprecated: dict[str, str] = dict(extra["deprecated"] or {})
        # The name and all other accepted names, deprecated ones last.
        self.names = tuple(dict.fromkeys((self.name, *extra["aliases"], *self.deprecated)))
        path = extra["path"]
        self.local = Path in (get_args(annotation) or (annotation,))
        self.path = path is not False or self.local
        # Values with another meaning than a path.
        self.path_words: tuple[str, ...] = tuple(path) if isinstance(path, list | tuple) else ()
        # The name pattern of a family of properties, None for a single one.
        self.family = re.compile(extra["family"]) if extra["family"] else None

    @property
    def default(self) -> object:
        return None if self.required else self.info.get_default(call_default_factory=True)

    def profile_default_of(self, pipeline: str) -> object:
        """Return a profile's own default of ``pipeline``, or None."""
        return identifier_of(pipeline) if self.pipeline_name else self.profile_default

    @property
    def allowed(self) -> str:
        """Return the allowed values in words, "" for any text."""
        if self.choices:
            return ", ".join(self.choices)
        words = _allowed(self.info.annotation, self.info.metadata)
        return words or ("a path" if self.path else "")

    def chosen(self, value: object) -> object:
        """Return ``value`` as its closed set spells it, without regard to case.

        Other values, and values of an open set, stay as they are.
        """
        known = self.words or self.choices
        if not known:
            return value
        if self.words:
            value = _split(value)
        if isinstance(value, list | tuple):
            return tuple(_member(entry, known) for entry in value)
        return _member(value, known)


def _literals(annotation: Any) -> Iterator[str]:
    """Return the members of a ``Literal``, also of an optional one."""
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        elif get_origin(argument) is Literal:
            yield from _literals(argument)


def _member(value: object, known: tuple[str, ...]) -> object:
    if isinstance(value, int) and str(value) in known:
        return str(value)  # TOML distinguishes 1 from "1"
    if not isinstance(value, str):
        return value
    word = value.strip()
    return next((each for each in known if each.casefold() == word.casefold()), word)


# Words of a check → the attribute that has its limit.
BOUNDS = {
    "at least": "ge", "more than": "gt", "at most": "le", "less than": "lt", "matching": "pattern",
}  # fmt: skip


def _allowed(annotation: Any, checks: list[Any]) -> str:
    """Describe a type with its checks (``annotated_types`` bounds, pydantic patterns)."""
    plain = [part for part in (get_args(annotation) or (annotation,)) if part is not type(None)]
    bounds = {
        f"{words} {limit}": None
        for words, bound in BOUNDS.items()
        for check in checks
        if (limit := getattr(check, bound, None)) is not None
    }
    if bool in plain:
        noun = "true or false"
    elif int in plain:
        noun = "a whole number"
    elif float in plain:
        noun = "a number"
    elif Path in plain:
        noun = "a path"
    elif Ellipsis in plain:
        noun = "a comma list"
    else:
        noun = "a string" if bounds else ""
    return ", ".join([noun, *bounds]) if noun else ""


def declarations(model: type[Properties]) -> list[PropertyDeclaration]:
    """Return the declarations of ``model`` in order."""
    return _declarations(model)


@cache
def _declarations(model: type[Properties]) -> list[PropertyDeclaration]:
    # A start requests the same forty models a hundred times.
    return [PropertyDeclaration(name, info) for name, info in model.model_fields.items()]
