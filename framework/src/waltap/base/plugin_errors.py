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


class WrongApiVersion(PluginError):
    """A plugin was written for another version of the plugin interface."""

    code = "WT-1104"
    remedy = (
        "Install a version of {distribution} for this waltap: pip install --upgrade {distribution}."
    )


class ImportFailed(PluginError):
    """A plugin's module cannot be imported."""

    code = "WT-1105"
    remedy = (
        "Reinstall {distribution} with its dependencies: pip install --force-reinstall "
        "{distribution}; or uninstall it if you do not need it."
    )


class LibraryMissing(PluginError):
    """The profile needs a library of an extra that is not installed."""

    code = "WT-1112"
    remedy = "Install it: pip install 'waltap[{extra}]'."


class MisspeltHook(PluginError):
    """A plugin implements an unknown hook, or one with unknown arguments."""

    code = "WT-1106"
    remedy = (
        "Authors of {distribution}: docs/reference/hooks.md lists every hook with its arguments."
    )


class WrongSpec(PluginError):
    """A ``register_*`` hook returned an object of another kind."""

    code = "WT-1107"
    remedy = "Authors of {distribution}: {hook} returns an iterable of {expected} objects."


class PluginRaised(WaltapError):
    """Plugin code raised an exception of its own, or returned an unusable value.

    It may be a sink, a check, a decoder or a transform.
    """

    code = "WT-1108"
    remedy = (
        "{distribution} has a bug: update it, or report it to its authors with the traceback of "
        "WALTAP_TRACEBACK=1. The position covers only data that is durable."
    )
