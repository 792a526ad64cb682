"""Errors of plugins and of requests for them: WT-11xx."""

from collections.abc import Collection

from waltap.errors import PluginError, WaltapError


class SpecMissing(PluginError):
    """No loaded plugin contributes the requested name.

    ``excuses`` name the plugins that might have it but cannot be used.
    """

    code = "WT-1101"
    remedy = "{hint}`waltap plugins` shows every plugin with its contributions and its health."

    def __init__(
        self,
        what: str,
        *,
        known: Collection[str],
        nearest: str | None = None,
        excuses: tuple[str, ...] = (),
    ) -> None:
        self.what, self.nearest, self.excuses = what, nearest, excuses
        self.known = ", ".join(sorted(known)) or "none"
        text = "; ".join((f"{what}; known: {self.known}", *excuses))
        # The remedy begins with the likely name.
        super().__init__(text, hint=f"Did you mean {nearest}? " if nearest else "")


class DuplicateName(PluginError):
    """Two plugins contribute the same name of one kind."""

    code = "WT-1102"
    remedy = (
        "Uninstall {first} or {second}, or name the plugins to load: WALTAP_PLUGINS=name,name; "
        "`waltap plugins` lists their names."
    )


class HookRaised(PluginError):
    """A hook implementation raised."""

    code = "WT-1103"
    remedy = (
        "{distribution} has a bug: update it, or report it to its authors; "
        "WALTAP_PLUGINS=name,name loads other plugins only."
    )


WrongApiVersion = PluginError.define(
    "WrongApiVersion",
    "WT-1104",
    "A plugin was written for another version of the plugin interface.",
    "Install a version of {distribution} for this waltap: pip install --upgrade {distribution}.",
)
ImportFailed = PluginError.define(
    "ImportFailed",
    "WT-1105",
    "A plugin's module cannot be imported.",
    "Reinstall {distribution} with its dependencies: pip install --force-reinstall "
    "{distribution}; or uninstall it if you do not need it.",
)
LibraryMissing = PluginError.define(
    "LibraryMissing",
    "WT-1112",
    "The profile needs a library of an extra that is not installed.",
    "Install it: pip install 'waltap[{extra}]'.",
)
MisspeltHook = PluginError.define(
    "MisspeltHook",
    "WT-1106",
    "A plugin implements an unknown hook, or one with unknown arguments.",
    "Authors of {distribution}: docs/reference/hooks.md lists every hook with its arguments.",
)
WrongSpec = PluginError.define(
    "WrongSpec",
    "WT-1107",
    "A ``register_*`` hook returned an object of another kind.",
    "Authors of {distribution}: {hook} returns an iterable of {expected} objects.",
)
RoleIncomplete = PluginError.define(
    "RoleIncomplete",
    "WT-1113",
    "A connector or sink has some methods of a role, and not all.",
    "Its authors: add {missing}, or name the others differently; a part of a role would be ignored "
    "silently. docs/plugin-authors/write-a-connector.md and write-a-sink.md list the roles.",
)
# It may be a sink, a check, a decoder or a transform.
PluginRaised = WaltapError.define(
    "PluginRaised",
    "WT-1108",
    "Plugin code raised an exception of its own, or returned an unusable value.",
    "{distribution} has a bug: update it, or report it to its authors with the traceback of "
    "WALTAP_TRACEBACK=1. The position covers only data that is durable.",
)
