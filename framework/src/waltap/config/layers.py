"""Where settings come from: a profile's file, then arguments. Values are kept as they were written.

Three kinds of file: a waltap profile (TOML), a Debezium ``.properties`` file and a Debezium
connector JSON, plain or as ``{"name": …, "config": {…}}``. Placeholders for secrets stay in the
values here; `waltap.config.resolve` fills them in.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waltap.config.java_properties import parse_properties
from waltap.errors import ConfigurationError, Problem

__all__ = ["RawProfile", "Setting", "load", "read_debezium", "read_tables"]

SECTIONS = ("source", "engine", "format", "offsets")
"""Sections whose properties share one namespace; [sink] and [[transforms]] have their own."""

SINK_PREFIX = "waltap.sink."


@dataclass(frozen=True, slots=True)
class Setting:
    """One property as it was given: its name there, its value, and where."""

    name: str
    value: object
    origin: str


@dataclass(slots=True, kw_only=True)
class RawProfile:
    """A profile before any component has looked at it.

    ``settings`` is the flat namespace of everything but sink and transforms. ``types`` holds the
    ``type`` of each section by section name, ``transform_names`` what their users write before the
    properties of each transform. ``problems`` are those found while reading. Relative
    paths start at ``folder`` (absolute): that of the file, for tables in memory the current one.
    """

    origin: str
    folder: Path = field(default_factory=Path.cwd)
    debezium: bool = False
    settings: dict[str, Setting] = field(default_factory=dict)
    types: dict[str, Setting] = field(default_factory=dict)
    sink: dict[str, Setting] = field(default_factory=dict)
    transforms: list[dict[str, Setting]] = field(default_factory=list)
    transform_names: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """Return the file's name without its ending."""
        return Path(self.origin).stem


def load(path: Path) -> RawProfile:
    """Read a profile's file. Raises: ConfigurationError when it cannot be read or parsed."""
    origin = str(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as cause:  # ValueError: NUL, or what is no text, in the name
        shown = origin.encode("utf-8", "backslashreplace").decode()
        why = cause.strerror if isinstance(cause, OSError) else "this is not the name of a file"
        missing = isinstance(cause, FileNotFoundError)
        allowed = "a profile's file; `waltap init FILE` writes one" if missing else None
        raise ConfigurationError(
            [Problem(shown, f"cannot be read: {why}", allowed=allowed)], origin=shown
        ) from cause
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        if path.suffix != ".properties":
            raise ConfigurationError(
                [Problem(origin, "is not UTF-8 text")], origin=origin
            ) from cause
        text = data.decode("latin-1")  # what Java reads a .properties file as
    reader = {".properties": _properties, ".json": _json, ".toml": _toml}.get(path.suffix.lower())
    if reader is None:
        reader = _json if text.lstrip()[:1] == "{" else _toml
    try:
        raw = reader(text, origin)
    except (ValueError, RecursionError) as cause:
        why = "it is nested too deep" if isinstance(cause, RecursionError) else str(cause)
        problem = Problem(origin, f"cannot be parsed: {why}", allowed=_advice(why))
        raise ConfigurationError([problem], origin=origin) from cause
    raw.folder = path.parent.absolute()  # links stay: secrets are often mounted beside them
    return raw


def read_tables(tables: Mapping[str, Any], origin: str = "profile") -> RawProfile:
    """Return the profile that nested tables (a parsed TOML file, or a dict of one's own) hold."""
    raw = RawProfile(origin=origin)
    for section, content in tables.items():
        where = f"{origin} [{section}]"
        if section == "name":
            raw.settings["name"] = Setting("name", content, origin)
        elif section == "transforms" and isinstance(content, list):
            for number, table in enumerate(content, start=1):
                if not isinstance(table, Mapping):
                    raw.problems.append(Problem("transforms", "must be [[transforms]] tables"))
                    continue
                place = f"{origin} [[transforms]] #{number}"
                raw.transforms.append(_flat(table, place))
                raw.transform_names.append(f"transforms[{number}].")
        elif section in {*SECTIONS, "sink", "labels"} and isinstance(content, Mapping):
            flat = _flat(content, where)
            if section == "labels":
                raw.labels.update({name: str(setting.value) for name, setting in flat.items()})
                continue
            if "type" in flat:
                raw.types[section] = flat.pop("type")
            if section == "sink":
                raw.sink = flat
            else:
                _merge(raw, flat)
        else:
            raw.problems.append(
                Problem(
                    section,
                    "is not a section of a profile",
                    allowed="name, [source], [sink], [engine], [format], [offsets], "
                    "[[transforms]], [labels]",
                )
            )
    return raw


def read_debezium(values: Mapping[str, object], origin: str = "connector") -> RawProfile:
    """Return the profile that the flat properties of a Debezium connector make."""
    raw = RawProfile(origin=origin, debezium=True)
    for name, value in values.items():
        if value is None:
            continue
        setting = Setting(name, _text(value), origin)
        if name == SINK_PREFIX + "type":
            raw.types["sink"] = setting
        elif name.startswith(SINK_PREFIX):
            raw.sink[name.removeprefix(SINK_PREFIX)] = setting
        else:
            raw.settings[name] = setting
    _take_transforms(raw)
    return raw


def _toml(text: str, origin: str) -> RawProfile:
    return read_tables(tomllib.loads(text), origin)


def _properties(text: str, origin: str) -> RawProfile:
    return read_debezium(parse_properties(text), origin)


def _json(text: str, origin: str) -> RawProfile:
    document = json.loads(text)
    if not isinstance(document, dict):
        message = "a connector is a JSON object"
        raise ValueError(message)  # noqa: TRY004 - one of the ways a file cannot be parsed
    config = document.get("config")
    if isinstance(config, dict):
        name = document.get("name")
        document = {"name": name, **config} if name else config
    nested = [name for name, value in document.items() if isinstance(value, dict | list)]
    if nested:
        message = f"properties of a connector are flat; {nested[0]!r} is not"
        raise ValueError(message)
    return read_debezium(document, origin)


def _flat(table: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, Setting]:
    """Join the keys of nested tables with dots."""
    flat: dict[str, Setting] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, origin, f"{name}."))
        else:
            flat[name] = Setting(name, value, origin)
    return flat


def _merge(raw: RawProfile, flat: dict[str, Setting]) -> None:
    for name, setting in flat.items():
        before = raw.settings.get(name)
        if before is not None and before.value != setting.value:
            what = f"is given twice, in {before.origin} and in {setting.origin}"
            raw.problems.append(Problem(name, what))
        raw.settings[name] = setting


def _take_transforms(raw: RawProfile) -> None:
    """Move ``transforms=a,b`` and ``transforms.a.*`` out of the flat namespace."""
    listed = raw.settings.pop("transforms", None)
    aliases = [alias.strip() for alias in str(listed.value).split(",")] if listed else []
    for alias in filter(None, aliases):
        prefix = f"transforms.{alias}."
        names = [name for name in raw.settings if name.startswith(prefix)]
        raw.transforms.append({name.removeprefix(prefix): raw.settings.pop(name) for name in names})
        raw.transform_names.append(prefix)


def _text(value: object) -> str:
    """Return a JSON scalar as the text that Kafka Connect makes of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _advice(reason: str) -> str | None:
    """Return how to write a property whose name continues another one's."""
    if "overwrite" in reason or "already" in reason or "Cannot declare" in reason:
        return (
            'names of which one continues the other must be quoted: "snapshot.mode.custom.name" = …'
        )
    return None
