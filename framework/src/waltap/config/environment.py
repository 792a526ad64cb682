"""The environment variables waltap reads; nothing else in waltap reads the environment.

WALTAP_PLUGINS     comma list of plugins to load, by entry-point or distribution name; the
                   framework's own always load. Unset or empty: every installed plugin.
WALTAP_TRACEBACK   1: an error of the command line shows its traceback.
WALTAP_LOG_LEVEL   debug, info, warning or error (default info).
NO_COLOR, TERM     whether a terminal shows colours, and control sequences at all.
FORCE_COLOR, TTY_COMPATIBLE  whether what is no terminal is taken for one.
WALTAP_LOG         json or text; default: json when stderr is not a terminal.
${env:NAME}        in a profile: any variable, by name.
"""

import os
from collections.abc import Mapping

__all__ = [
    "colours",
    "dumb_terminal",
    "forced_terminal",
    "log_form",
    "log_level",
    "plugin_names",
    "tracebacks",
    "variable",
]


def plugin_names(environ: Mapping[str, str] | None = None) -> frozenset[str] | None:
    """Return the plugins that WALTAP_PLUGINS allows, None when it allows all."""
    value = (os.environ if environ is None else environ).get("WALTAP_PLUGINS", "")
    names = frozenset(part.strip() for part in value.split(",") if part.strip())
    return names or None


def tracebacks() -> bool:
    """Tell whether errors are shown with their traceback."""
    return os.environ.get("WALTAP_TRACEBACK", "") not in {"", "0"}


def log_level(*, default: str) -> str:
    """Return the wanted log level, upper case."""
    return os.environ.get("WALTAP_LOG_LEVEL", "").strip().upper() or default


def colours() -> bool:
    """Tell whether colours are allowed (https://no-color.org); a dumb terminal has none."""
    return not os.environ.get("NO_COLOR") and not dumb_terminal()


def dumb_terminal() -> bool:
    """Tell whether the terminal understands no control sequences (TERM, as terminfo means it)."""
    return os.environ.get("TERM", "").strip().lower() in {"dumb", "unknown"}


def forced_terminal() -> bool:
    """Tell whether output is to be taken for a terminal's although it may be none: by the variables that
    the library for terminals goes by."""
    return bool(os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE"))


def log_form(*, terminal: bool) -> str:
    """Return "json" or "text"; ``terminal`` tells whether stderr is one."""
    value = os.environ.get("WALTAP_LOG", "").strip().lower()
    return value if value in {"json", "text"} else ("text" if terminal else "json")


def variable(name: str) -> str | None:
    """Return the variable that a profile names as ``${env:name}``, None when it is not set."""
    return os.environ.get(name)
