"""Sets of settings that fill models, with problems and explanations.

A `Namespace` is one set: the pipeline's, the sink's, a transform's. Each model gets the properties
that it declares; unclaimed settings are reported. Nothing raises before the end, so that one start
reports all mistakes: `ValidationResult` collects. Secrets are filled in here, and hidden in all
output.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import ValidationError

from waltap.base.placeholder import (
    PLACEHOLDER,
    VARIABLE,
    SecretMissing,
    SecretRefresh,
    fill,
    holds_placeholder,
)
from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.base.redaction import HIDDEN, hide, looks_secret, redacted, without
from waltap.base.text import nearest, printable
from waltap.config.debezium import KnownProperty, debezium_names, known
from waltap.config.layers import SINK_PREFIX, GivenProperty
from waltap.errors import ConfigurationError, PropertyProblem

if TYPE_CHECKING:
    from waltap.config.profile import Profile

P = TypeVar("P", bound=Properties)

SHOWN_MAX = 1000
"""Shown characters of a value: a pasted certificate would hide the rest of an error."""

ARGUMENTS = frozenset({"--set", "--sink"})
"""Origins of settings that are in no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedProperty:
    """One property of a resolved profile, safe to show: secrets are hidden."""

    name: str
    value: str
    origin: str
    component: str
    declaration: PropertyDeclaration


@dataclass(slots=True, kw_only=True)
class ValidationResult:
    """Findings of one resolution: the resolved properties, and every problem."""

    # The profile's file, for errors.
    origin: str = ""
    # Whether Debezium's defaults apply.
    debezium: bool
    # Relative paths start here.
    folder: Path
    # The pipeline's name, as soon as it is known.
    name: str = ""
    # None with problems.
    profile: "Profile | None" = None
    # Kind of component → its name, ? for a missing one.
    chosen: dict[str, str] = field(default_factory=dict)
    problems: list[PropertyProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    explained: list[ExplainedProperty] = field(default_factory=list)
    # Name without effect → the reason.
    ignored: dict[str, str] = field(default_factory=dict)
    # Further names of secrets (`custom.sanitize.pattern`).
    sanitize: re.Pattern[str] | None = None
    # Values of placeholders, hidden in messages of this resolution.
    secrets: set[str] = field(default_factory=set, repr=False)
    # Values of secret properties, hidden in every later text (`hide`).
    hidden: set[str] = field(default_factory=set, repr=False)

    def error(self) -> ConfigurationError:
        return ConfigurationError(self.problems, origin=self.origin)

    def add_problem(self, property_name: str, what: str, **about: str | None) -> None:
        """Record a problem; ``about`` are the other fields of `PropertyProblem`."""
        self.problems.append(PropertyProblem(property_name, what, **about))

    def default(self, declaration: PropertyDeclaration) -> object:
        ours = None if self.debezium else declaration.profile_default_of(self.name)
        return declaration.default if ours is None else ours

    def filled(self, setting: GivenProperty, *, secret: bool = False) -> object:
        """Return a setting's value with its placeholders filled in.

        ``secret``: the property is one. Raises: SecretMissing, also for values with NUL or half
        characters, which no component can take.
        """
        value = setting.value
        if holds_placeholder(value):
            value, secrets = fill(value, self._start(setting.origin))
            self.secrets.update(found for found in secrets if found)
        if isinstance(value, str) and (secret or self.is_secret(setting)):
            self.hidden.add(value)
        unfit = _unfit(value)
        if unfit is not None:
            raise SecretMissing(unfit)
        return value

    def text(self, setting: GivenProperty | None) -> str:
        """Return a setting's stripped text, "" without one.

        A missing secret is a problem of the model that declares the setting.
        """
        try:
            return "" if setting is None else str(self.filled(setting)).strip()
        except SecretMissing:
            return ""

    def renewal(self, setting: GivenProperty) -> SecretRefresh:
        """Return the origin of a setting's value; only one with a file can change."""
        value = setting.value
        template = None
        if isinstance(value, str) and "file" in {found[1] for found in PLACEHOLDER.finditer(value)}:
            template = value
        return SecretRefresh(template, self._start(setting.origin))

    def is_secret(self, setting: GivenProperty) -> bool:
        named = self.sanitize is not None and self.sanitize.fullmatch(setting.name)
        return bool(named) or looks_secret(setting.name)

    def shown(self, setting: GivenProperty, declaration: PropertyDeclaration | None) -> str:
        """Return the value as written, with placeholders, or a mask for a secret."""
        text = as_text(setting.value)
        # A password may be beside a placeholder, such as one of a user.
        literal = PLACEHOLDER.sub(HIDDEN, text)
        if (declaration is not None and declaration.secret) or self.is_secret(setting):
            return HIDDEN if literal.replace(HIDDEN, "") or not text else _shortened(text)
        shown = redacted(literal)
        return _shortened(text if shown == literal else shown)

    def located(self, value: object, declaration: PropertyDeclaration, origin: str) -> object:
        """Return a path as an absolute one; URIs and ``path_words`` stay unchanged."""
        text = str(value) if isinstance(value, str | Path) else ""
        if not text or "://" in text or text in declaration.path_words:
            return value
        found = self._start(origin) / text
        return found if isinstance(value, Path) else str(found)

    def _start(self, origin: str) -> Path:
        """Return the start of relative paths: an argument's is the current folder."""
        return Path.cwd() if origin in ARGUMENTS else self.folder

    def masked(self, text: str) -> str:
        return redacted(without(text, self.secrets))

    def hide(self) -> None:
        """Hide secrets in every later text, except values that are also shown elsewhere.

        A password that equals the role's name would make messages unreadable without hiding anything.
        """
        hide(self.hidden - {explained.value for explained in self.explained})


class Namespace:
    """Settings by name.

    ``prefix`` precedes each name in messages, ``native`` the name in a waltap profile, if this file is
    another kind: ``[sink] ``.
    """

    def __init__(
        self,
        settings: Mapping[str, GivenProperty],
        findings: ValidationResult,
        prefix: str = "",
        native: str = "",
    ) -> None:
        self.settings = dict(settings)
        self._findings, self._prefix, self._native = findings, prefix, native
        self._claimed: set[str] = set()
        self._declared: dict[str, PropertyDeclaration] = {}

    def model(
        self, component: str, model: type[P], forced: Mapping[str, object] | None = None
    ) -> P | None:
        """Return ``model`` filled from these settings, None with problems.

        ``forced`` values, by property name, win over settings.
        """
        values: dict[str, object] = {}
        origins: dict[str, GivenProperty] = {}
        by_name = {declaration.name: declaration for declaration in declarations(model)}
        before = len(self._findings.problems)
        unreadable: set[str] = set()
        for name, declaration in by_name.items():
            self._declared.setdefault(name, declaration)
            if declaration.family is not None:
                values[name] = self._family(declaration, declaration.family)
                continue
            setting = self._given(declaration)
            if forced and name in forced:
                values[name] = forced[name]
            elif setting is not None:
                try:
                    text = self._filled(setting, declaration)
                    values[name] = _fitting(text, declaration)
                    origins[name] = setting
                    blank = isinstance(text, str) and not text.strip()
                    if declaration.path and blank and text not in declaration.path_words:
                        self._without_path(setting, declaration, values, unreadable)
                except SecretMissing as cause:
                    unreadable.add(name)
                    values.pop(name, None)
                    self.complain(setting, str(cause), declaration)
            found = values.get(name)
            if found is None and setting is None and not declaration.required:
                found = self._findings.default(declaration)
                if found != declaration.default:
                    values[name] = found
            if declaration.path and found is not None:
                origin = setting.origin if setting is not None else "default"
                values[name] = self._findings.located(found, declaration, origin)

        def unfilled(declaration: PropertyDeclaration) -> object:
            return values.get(declaration.name, self._findings.default(declaration))

        try:
            filled = model.model_validate(values)
        except ValidationError as cause:
            wrong = {str(error["loc"][0]) for error in cause.errors() if error["loc"]}
            self._findings.problems += [
                problem
                for name, problem in self._translated(cause, by_name, origins, component)
                if name not in unreadable
            ]
            self._findings.problems += self._across(component, model, values, wrong | unreadable)
            known = {name: d for name, d in by_name.items() if name not in wrong | unreadable}
            self._explain(component, known, origins, unfilled)
            return None
        except ConfigurationError as cause:  # of settings of a family, each by its name
            for problem in cause.problems:
                setting = self.settings.get(problem.property)
                if setting is not None:
                    self.complain(setting, problem.what, allowed=problem.allowed)
                else:
                    self._findings.problems.append(problem)
            self._explain(component, by_name, origins, unfilled)
            return None
        filled.keep_renewals(
            {
                by_name[name].field: self._findings.renewal(setting)
                for name, setting in origins.items()
                if by_name[name].renewed
            }
        )
        known = {name: d for name, d in by_name.items() if name not in unreadable}
        self._explain(component, known, origins, lambda d: getattr(filled, d.field))
        return None if len(self._findings.problems) > before else filled

    def _across(
        self, component: str, model: type[P], values: Mapping[str, object], wrong: Collection[str]
    ) -> Iterator[PropertyProblem]:
        """Yield contradictions between properties, except ``wrong`` ones.

        Pydantic does not compare properties while one is wrong. So it checks again with defaults or
        examples instead of wrong values; findings that name a wrong property are left out.
        """
        if not any(wrong):
            return
        by_name = {declaration.name: declaration for declaration in declarations(model)}
        others = {name: value for name, value in values.items() if name not in wrong}
        for name in by_name.keys() & set(wrong):
            declaration = by_name[name]
            if declaration.required:
                others[name] = next(iter(declaration.choices or declaration.info.examples or "x"))
        try:
            model.model_validate(others)
        except ValidationError as cause:
            for name, problem in self._translated(cause, by_name, {}, component):
                if not name and not any(each in problem.what for each in wrong):
                    yield problem
        except ConfigurationError:
            return

    def _without_path(
        self,
        setting: GivenProperty,
        declaration: PropertyDeclaration,
        values: dict[str, object],
        unreadable: set[str],
    ) -> None:
        """Refuse an empty path, which would be the current folder.

        In a Debezium file an empty optional path counts as not given.
        """
        del values[declaration.name]
        if self._findings.debezium and not declaration.required and declaration.default is None:
            return
        unreadable.add(declaration.name)
        self.complain(setting, "is empty", declaration, allowed=declaration.allowed)

    def text(self, name: str) -> str:
        """Return a setting as `ValidationResult.text`."""
        return self._findings.text(self.settings.get(name))

    def tolerate(self, models: "Iterable[type[Properties]]") -> None:
        """Treat properties of ``models`` as declared.

        The profile means a missing component of them.
        """
        for model in models:
            for declaration in declarations(model):
                self._declared.setdefault(declaration.name, declaration)
                self._claimed.update(declaration.names)
                if declaration.family is not None:
                    self._claimed.update(filter(declaration.family.fullmatch, self.settings))

    def force(self, component: str, forced: Mapping[str, object]) -> None:
        """Note the settings that ``forced`` values of a component replace."""
        for name in forced.keys() & self.settings.keys():
            why = f"{component} always has it as {as_text(forced[name])}"
            self._findings.ignored[name] = why

    def claim(self, name: str) -> None:
        """Treat ``name`` as declared: its value is used under other names."""
        self._claimed.add(name)

    def written(self, name: str) -> str | None:
        """Return a property's written name, or None."""
        return f"{self._prefix}{name}" if name in self._declared else None

    def leftovers(
        self,
        *,
        likely: bool = False,
        other_component: Callable[[str], KnownProperty | None] = lambda _name: None,
        beside: "Namespace | None" = None,
        tolerant: bool = False,
    ) -> None:
        """Report undeclared settings, except Debezium's without effect here.

        - ``likely``: a missing component may know more, so only misspelt names are problems.
        - ``other_component``: finds a property of components that the profile does not choose.
        - ``beside``: another namespace, whose names need a prefix.
        - ``tolerant``: unknown names are warnings, since Kafka Connect accepts them in transforms.
        """
        for name, setting in self.settings.items():
            if name in self._claimed:
                continue
            entry = None if self._prefix else known(name) or other_component(name)
            if entry is None:
                names = {*self._declared, *(() if self._prefix else debezium_names().known)}
                guess = (beside.written(name) if beside else None) or nearest(name, names)
                if likely and guess is None:
                    continue
                written = self._as_written(guess, setting) if guess else None
                if tolerant:
                    meant = f"; did you mean {written}?" if written else ""
                    self._findings.warnings.append(
                        f"{self._own_name(setting)} is not known and has no effect{meant}"
                    )
                    continue
                declaration = self._declared.get(guess or "")
                self.complain(setting, "is not known", declaration, guess=written)
            elif entry.accepts(setting.value):
                accepted = (
                    f"it has its default: {entry.default}" if entry.default else "it is empty"
                )
                self._findings.ignored[name] = entry.why if entry.ignored else accepted
            else:
                what = "is a property of Debezium's that waltap does not support"
                what += f": {entry.why}" if entry.why else " yet"
                if entry.component:
                    what = f"belongs to {entry.component}, which the profile does not choose"
                self.complain(setting, what, allowed=entry.allowed)

    def complain(
        self,
        setting: GivenProperty,
        what: str,
        declaration: PropertyDeclaration | None = None,
        *,
        allowed: str | None = None,
        guess: str | None = None,
    ) -> None:
        """Record a problem with a setting; secret values are hidden."""
        self._findings.add_problem(
            self._own_name(setting),
            self._findings.masked(what),
            value=self._findings.shown(setting, declaration),
            allowed=allowed,
            nearest=guess,
            native=self._native_name(setting, declaration),
        )

    def _as_written(self, name: str, like: GivenProperty) -> str:
        """Return ``name`` with the prefix that the user wrote before ``like``."""
        key = self._key(like)
        if like.full_name and like.name.endswith(key):
            return f"{like.name.removesuffix(key)}{name}"
        return f"{self._prefix}{name}"

    def _key(self, setting: GivenProperty) -> str:
        return next((key for key, each in self.settings.items() if each is setting), setting.name)

    def _own_name(self, setting: GivenProperty) -> str:
        """Return a setting's name as its user wrote it."""
        is_full = setting.full_name or setting.name.startswith((self._prefix or "\0", SINK_PREFIX))
        return setting.name if is_full else f"{self._prefix}{setting.name}"

    def _native_name(
        self, setting: GivenProperty, declaration: PropertyDeclaration | None
    ) -> str | None:
        """Return a setting's name in a waltap profile, if different."""
        key = self._key(setting)
        name = declaration.name if declaration is not None and key in declaration.names else key
        native = f"{self._native or self._prefix}{name}"
        return None if native == self._own_name(setting) else native

    def _given(self, declaration: PropertyDeclaration) -> GivenProperty | None:
        """Return the setting of a property under any of its names."""
        given = [name for name in declaration.names if name in self.settings]
        # An argument replaces what the file has under another name.
        given = [n for n in given if self.settings[n].origin in ARGUMENTS] or given
        found = [self.settings[name] for name in given]
        for name in given:
            if name in declaration.deprecated:
                self._findings.warnings.append(
                    f"{self._own_name(self.settings[name])} is an old name: write "
                    f"{declaration.deprecated[name]}"
                )
        self._claimed.update(declaration.names)
        if any(other.value != found[0].value for other in found[1:]):
            names = ", ".join(other.name for other in found[1:])
            what = f"is given again as {names}, with another value"
            self.complain(found[0], what, declaration)
        return found[0] if found else None

    def _family(self, declaration: PropertyDeclaration, pattern: re.Pattern[str]) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, setting in self.settings.items():
            if pattern.fullmatch(name):
                self._claimed.add(name)
                try:
                    values[name] = as_text(self._filled(setting, declaration))
                except SecretMissing as cause:
                    self.complain(setting, str(cause), declaration)
        return values

    def _filled(self, setting: GivenProperty, declaration: PropertyDeclaration) -> object:
        """Return a setting's value with its placeholders filled in. Raises: SecretMissing."""
        for name in VARIABLE.findall(as_text(setting.value)):
            self._findings.warnings.append(
                f"{self._own_name(setting)} has ${{{name}}}, which stays as it is: for the variable write "
                f"${{env:{name}}}"
            )
        value = self._findings.filled(setting, secret=declaration.secret)
        if declaration.local and "://" in str(value):
            raise SecretMissing("is an address, not a path of this machine")
        return value

    def _translated(
        self,
        cause: ValidationError,
        by_name: Mapping[str, PropertyDeclaration],
        origins: Mapping[str, GivenProperty],
        component: str,
    ) -> Iterator[tuple[str, PropertyProblem]]:
        """Yield pydantic's findings in a profile's words: (declared name, problem)."""
        for error in cause.errors(include_url=False, include_context=False, include_input=False):
            name = str(error["loc"][0]) if error["loc"] else ""
            declaration = by_name.get(name)
            message = self._findings.masked(error["msg"].removeprefix("Value error, "))
            if declaration is None:
                yield name, PropertyProblem(component, message)
                continue
            setting = origins.get(name, GivenProperty(name, None, "missing"))
            value = guess = None
            if error["type"] == "missing":
                message = f"is required: {declaration.summary.removesuffix('.')}"
            elif name in origins:
                value = self._findings.shown(origins[name], declaration)
                if declaration.choices:
                    guess = nearest(value, declaration.choices)
                    message = "is not one of its values"
                elif error["type"] == "string_pattern_mismatch":
                    message = "has another form"
            allowed = declaration.allowed
            # An example says more than a pattern.
            if "matching " in allowed and declaration.info.examples:
                allowed = f"{allowed}, as {declaration.info.examples[0]}"
            problem = PropertyProblem(
                self._own_name(setting),
                message[:1].lower() + message[1:],
                value=value,
                allowed=allowed or None,
                nearest=guess,
                native=self._native_name(setting, declaration),
            )
            yield name, problem

    def _explain(
        self,
        component: str,
        by_name: Mapping[str, PropertyDeclaration],
        origins: Mapping[str, GivenProperty],
        value_of: Callable[[PropertyDeclaration], Any],
    ) -> None:
        known = {explained.name for explained in self._findings.explained}
        for name, declaration in by_name.items():
            if f"{self._prefix}{name}" in known:
                continue  # two components share it
            value = value_of(declaration)
            if declaration.family is not None:
                given = {member: self.settings[member] for member in value}
            else:
                given = {name: origins[name]} if name in origins else {}
            found = []
            for member, setting in given.items():
                if declaration.path and not holds_placeholder(setting.value):
                    setting = replace(setting, value=value)  # noqa: PLW2901 - an absolute one
                shown = self._findings.shown(setting, declaration)
                found.append((member, shown, setting.origin))
            if not given and declaration.family is None:
                shown = HIDDEN if declaration.secret and value else as_text(value)
                found.append((name, shown, "default"))
            self._findings.explained += [
                ExplainedProperty(
                    name=redacted(f"{self._prefix}{member}"),
                    value=shown,
                    origin=origin,
                    component=component,
                    declaration=declaration,
                )
                for member, shown, origin in found
            ]


def _shortened(text: str) -> str:
    """Return a value in a printable form of bounded length."""
    text = printable(text)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"


def _unfit(value: object) -> str | None:
    """Return why no component can take ``value``, None if one can."""
    if isinstance(value, list | tuple):
        return next((why for why in map(_unfit, value) if why is not None), None)
    if not isinstance(value, str):
        return None
    if "\0" in value:
        return "holds NUL, which no database and no file system takes"
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        return "is not a string: it holds half of a character"
    return None


def _fitting(value: object, declaration: PropertyDeclaration) -> object:
    """Return ``value`` in its declared type: TOML may have numbers."""
    if declaration.choices or declaration.words:
        return declaration.chosen(value)
    annotation: Any = declaration.info.annotation
    if annotation is str or str in get_args(annotation):
        return as_text(value) if isinstance(value, bool | int | float) else value
    if isinstance(value, bool) and bool not in {annotation, *get_args(annotation)}:
        return as_text(value)  # true is no number
    if isinstance(value, str) and annotation is not Path:
        return value.strip()
    return value


def as_text(value: object) -> str:
    """Return a value as a ``.properties`` file would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(as_text(item) for item in value)
    return str(value)
