"""Properties: declared once, everything else derives from the declaration.

A component declares a `Properties` model; each field is one property with its name (Debezium's
where the meaning is the same), type, default, check, summary and unit. Parsing, errors, ``--help``,
the reference pages and the JSON Schema read these declarations and nothing else.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.fields import FieldInfo

from waltap.base.placeholder import SecretRefresh
from waltap.base.redaction import Secret, looks_secret, masked

__all__ = [
    "CommaList",
    "Properties",
    "PropertyDeclaration",
    "Reach",
    "Shares",
    "declarations",
    "declare",
    "declare_family",
    "identifier_of",
]

REQUIRED: Any = ...

Reach = Literal["records", "rows"]
REACHES: tuple[Reach, ...] = get_args(Reach)

LONGEST_IDENTIFIER = 54
"""Bytes of an identifier made of a name; servers take 63, and a component may add an ending."""


def identifier_of(name: str) -> str:
    """Return ``name`` as an identifier that every server takes: of a-z, 0-9 and _.

    A name that is one already stays. Where something had to be replaced or cut, a part of its
    digest follows: names that differ only there give different identifiers.
    """
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    if plain == name and len(plain) <= LONGEST_IDENTIFIER:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: LONGEST_IDENTIFIER - 9]}_{digest}"


def _split(value: object) -> object:
    r"""Split a comma list; ``\,`` is a comma inside an entry; blanks around entries go away."""
    if not isinstance(value, str):
        return value
    parts = (part.replace("\0", ",").strip() for part in value.replace("\\,", "\0").split(","))
    return tuple(part for part in parts if part)


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split)]
Shares = Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], BeforeValidator(_split)]
"""Shares of a whole: a comma list of numbers above 0, at most 1."""


def declare(
    name: str,
    *,
    default: Any = REQUIRED,
    summary: str,
    unit: str | None = None,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
    deprecated: dict[str, str] | None = None,
    advanced: bool = False,
    common: bool = False,
    profile_default: Any = None,
    examples: tuple[str, ...] = (),
    path: bool | tuple[str, ...] = False,
    pipeline_name: bool = False,
    words: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    renewed: bool = False,
    reloadable: bool = False,
    patterns: str | None = None,
    reach: tuple[Reach, ...] = REACHES,
    **checks: Any,
) -> Any:
    """Declare one property as the default of a field of a `Properties` model.

    ``profile_default`` is the default in a profile of our own, where it differs from the one that
    a Debezium file has. ``aliases`` are other accepted names; ``deprecated`` maps old names, which may be
    the property's own, to what to use instead; ``checks`` are pydantic's (``ge``, ``pattern``, …). A
    property without ``default`` is required. ``path``: a text that names a file or folder, or a URI, or
    is one of these words; a relative path starts at the folder of its profile, as that of a field of type
    `Path` does.
    ``pipeline_name``: the default in a profile of our own is the pipeline's name, as an identifier.
    ``common``: most profiles set it, so `waltap init` lists it.
    ``words``: what the entries of a comma list may be; they know no case, as a closed set's values.
    ``refused``: old names that mean something else now, so that they are refused, with this one named.
    ``renewed``: where its value came from is kept, to be asked again (`Properties.renewal`).
    ``reloadable``: a run takes another value while it goes on, when its profile is read again (SIGHUP);
    only the engine's properties may be, and its parts then read the value where they use it.
    ``patterns``: what its entries match: ``schemas``, ``tables``, ``columns``, ``types`` (of columns, as
    schema.table.type), ``cells`` (schema.table:column), ``identities`` (tables, with a value behind a
    colon), ``keys`` (tables with columns), ``table`` (the whole value is one pattern of tables), ``rules``
    (PATTERN:VALUE of tables; VALUE alone matches all), ``ruled`` (the same, of what `Properties.called`
    gives), ``renames`` (PATTERN:NAME of columns), ``topics`` (the whole value is one pattern of topics) or
    ``unrenamed`` (the same, of topics before ``topic.regex``); see `waltap.config.name_patterns`.
    ``reach``: what of a consumer's data the property changes, where it is of all: ``records`` (of every
    format, with their topics), ``rows`` (of the change log and of every sink that takes changes), ``()``:
    neither. What a sink or a format declares itself reaches that alone.
    """
    extra: dict[str, Any] = {
        "refused": refused,
        "reloadable": reloadable,
        "unit": unit,
        "secret": secret,
        "aliases": aliases,
        "deprecated": deprecated or {},
        "advanced": advanced,
        "common": common,
        "profile_default": profile_default,
        "pipeline_name": pipeline_name,
        "words": words,
        "path": path,
        "renewed": renewed,
        "patterns": patterns,
        "reach": reach,
    }
    return Field(
        default,
        alias=name,
        description=summary,
        examples=list(examples) or None,
        json_schema_extra=extra,
        **checks,
    )


def declare_family(
    name: str,
    *,
    pattern: str,
    summary: str,
    secret: bool = False,
    patterns: str | None = None,
    reach: tuple[Reach, ...] = REACHES,
) -> Any:
    """Declare properties whose names follow ``pattern`` (a regular expression, full match).

    The field is a ``dict[str, str]``: full property name → value. ``name`` is how documentation
    writes the family, e.g. ``column.mask.with.N.chars``. ``patterns``, ``reach``: as for `declare`.
    """
    re.compile(pattern)
    extra: dict[str, Any] = {
        "secret": secret,
        "advanced": True,
        "patterns": patterns,
        "reach": reach,
        "family": pattern,
    }
    return Field(default_factory=dict, alias=name, description=summary, json_schema_extra=extra)


class Properties(BaseModel):
    """Base of every component's configuration. Fields are declared with `declare`.

    Its ``repr`` shows no secret and its validation errors show no input. Secrets are of the class
    `Secret`, wherever they are handed on to.
    """

    model_config = ConfigDict(
        defer_build=True,  # a start names a few of forty models; the others are never built
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    routes: ClassVar[bool] = False
    """Whether the transform that has them may give records other topics: what those are is not known."""

    _renewals: dict[str, SecretRefresh] = PrivateAttr(default_factory=dict)
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def renewal(self, field: str) -> SecretRefresh | None:
        """Return where the value of a ``renewed`` field came from, None where no profile gave it."""
        return self._renewals.get(field)

    def keep_renewals(self, renewals: Mapping[str, SecretRefresh]) -> None:
        """Take over where values came from, by field."""
        self._renewals.update(renewals)

    def called(self, table: str) -> str:
        """Return what properties whose ``patterns`` are ``ruled`` know ``table`` (schema.table) as."""
        return table

    def idle_names(self, names: Callable[[str], Sequence[str]]) -> Iterable[tuple[str, str]]:
        """Return (property, pattern) of what fits no name there is, of properties whose form no
        ``patterns`` describes. ``names`` gives the ``tables`` or ``topics`` there are, and asks the source
        for them: call it where there is something to look up. No topics: they are not known."""
        return ()

    def given(self, field: str) -> Any:
        """Return the value of a field as the profile has it."""
        return self._given.get(field, getattr(self, field))

    def keep_given(self, values: Mapping[str, Any]) -> None:
        """Take over, by field, what the profile had where this has something else."""
        self._given = {**self._given, **values}

    @model_validator(mode="before")
    @classmethod
    def _case_blind(cls, values: Any) -> Any:
        """Values of closed sets know no case, wherever they come from."""
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
        """Make the secrets among the values, and addresses that hold one, unseen in a ``repr``."""
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
    """Return a value of a family or list, unseen in a ``repr`` where its name or its form says so."""
    if isinstance(value, str) and (looks_secret(name) or masked(value) != value):
        return Secret(value)
    return value


# Values of `declare`'s keywords that a declaration does not give.
DEFAULTS: Mapping[str, Any] = {
    "refused": (), "reloadable": False, "unit": None, "secret": False, "aliases": (),
    "deprecated": {}, "advanced": False, "common": False, "profile_default": None,
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
        self.unit: str | None = extra["unit"]
        self.secret: bool = extra["secret"]
        self.advanced: bool = extra["advanced"]
        self.common: bool = extra["common"]
        self.renewed: bool = extra["renewed"]
        self.reloadable: bool = extra["reloadable"]
        self.pipeline_name: bool = extra["pipeline_name"]
        self.profile_default: object = extra["profile_default"]
        self.patterns: str | None = extra["patterns"]
        self.reach: tuple[str, ...] = tuple(extra["reach"])
        self.words: tuple[str, ...] = tuple(extra["words"])
        self.refused: tuple[str, ...] = tuple(extra["refused"])
        self.deprecated: dict[str, str] = dict(extra["deprecated"])
        # The name and all other accepted names, deprecated ones last.
        self.names = tuple(dict.fromkeys((self.name, *extra["aliases"], *self.deprecated)))
        path = extra["path"]
        self.path = path is not False or Path in (get_args(annotation) or (annotation,))
        # Values with another meaning than a path.
        self.path_words: tuple[str, ...] = tuple(path) if isinstance(path, list | tuple) else ()
        # The name pattern of a family of properties, None for a single one.
        self.family = re.compile(extra["family"]) if extra["family"] else None

    @property
    def default(self) -> object:
        """Return the default, None without one."""
        return None if self.required else self.info.get_default(call_default_factory=True)

    def profile_default_of(self, pipeline: str) -> object:
        """Return the default in a waltap profile of ``pipeline``, None for the usual one."""
        return identifier_of(pipeline) if self.pipeline_name else self.profile_default

    @property
    def allowed(self) -> str:
        """Return the allowed values in words, "" for any text."""
        if self.choices:
            return ", ".join(self.choices)
        words = _allowed(self.info.annotation, self.info.metadata)
        return words or ("a path" if self.path else "")

    def chosen(self, value: object) -> object:
        """Return ``value`` as its closed set, or that of its entries, writes it; it knows no case.

        What is no member, and any value of an open set, stays as it is.
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
    """Return the members of a ``Literal``, also of one that is optional."""
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        elif get_origin(argument) is Literal:
            yield from _literals(argument)


def _member(value: object, known: tuple[str, ...]) -> object:
    if isinstance(value, int) and str(value) in known:
        return str(value)  # TOML tells 1 from "1"
    if not isinstance(value, str):
        return value
    word = value.strip()
    return next((each for each in known if each.casefold() == word.casefold()), word)


def _allowed(annotation: Any, checks: list[Any]) -> str:
    """Describe a type with its checks (``annotated_types`` bounds, pydantic patterns)."""
    plain = [part for part in (get_args(annotation) or (annotation,)) if part is not type(None)]
    bounds = [
        f"{words} {limit}"
        for check in checks
        for words, limit in (
            ("at least", getattr(check, "ge", None)),
            ("more than", getattr(check, "gt", None)),
            ("at most", getattr(check, "le", None)),
            ("less than", getattr(check, "lt", None)),
            ("matching", getattr(check, "pattern", None)),
        )
        if limit is not None
    ]
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
    # A start asks a hundred times for the same forty models.
    return [PropertyDeclaration(name, info) for name, info in model.model_fields.items()]
