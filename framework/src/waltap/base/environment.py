"""Read the environment variables of waltap; no other module reads them.

WALTAP_PLUGINS     comma list of plugins to load, by entry-point or distribution name; the
                   framework's own always load. Unset or empty: every installed plugin.
WALTAP_TRACEBACK   1: an error of the command line shows its traceback.
WALTAP_LOG_LEVEL   debug, info, warning or error (default info).
NO_COLOR, TERM     whether a terminal shows colours, and control sequences at all.
FORCE_COLOR, TTY_COMPATIBLE  whether other output is treated as a terminal.
WALTAP_LOG         json or text; default: json when stderr is not a terminal.
${env:NAME}        in a profile: any variable, by name.
"""

import os


def plugin_names() -> frozenset[str] | None:
    """Return the allowed plugins of WALTAP_PLUGINS, None for all."""
    value = os.environ.get("WALTAP_PLUGINS", "")
    # An empty variable counts as unset.
    names = frozenset(part.strip() for part in value.split(",") if part.strip())
    return names or None


def tracebacks() -> bool:
    """Return whether errors are shown with their traceback."""
    return os.environ.get("WALTAP_TRACEBACK", "") not in {"", "0"}


def log_level(*, default: str) -> str:
    """Return the configured log level in upper case."""
    return os.environ.get("WALTAP_LOG_LEVEL", "").strip().upper() or default


def colours() -> bool:
    """Return whether output may have colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and not dumb_terminal()


def dumb_terminal() -> bool:
    """Return whether the terminal knows no control sequences (TERM)."""
    return os.environ.get("TERM", "").strip().lower() in {"dumb", "unknown"}


def forced_terminal() -> bool:
    """Return whether other output must be treated as a terminal."""
    # The terminal library uses the same variables.
    return bool(os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE"))


def log_form(*, terminal: bool) -> str:
    """Return "json" or "text"; ``terminal`` is true for a terminal at stderr."""
    value = os.environ.get("WALTAP_LOG", "").strip().lower()
    return value if value in {"json", "text"} else ("text" if terminal else "json")


def variable(name: str) -> str | None:
    """Return the variable of ``${env:name}``, None if unset."""
    return os.environ.get(name)
