"""Generate the page of all errors: codes, causes, retries, remedies."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from waltap.base.text import GENERATED
from waltap.errors import RetryVerdict, WaltapError
from waltap.plugins.host import PluginHealth

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["error_classes", "errors_page"]

# First digit of a code → heading of its errors.
FAMILIES = {
    "1": "Configuration and plugins",
    "2": "Source",
    "3": "Decode",
    "4": "Snapshot",
    "5": "Sink",
    "6": "Offsets",
    "9": "Bugs",
}
RETRIES = {
    RetryVerdict.NEVER: "no",
    RetryVerdict.RECONNECT: "yes, after a reconnect",
    RetryVerdict.SAME_BATCH: "yes, with the same batch",
}


def error_classes(host: "Host") -> list[type[WaltapError]]:
    """Return the error classes of the framework and installed plugins.

    They are sorted by code.
    """
    # A plugin may be installed, and yet be kept out by WALTAP_PLUGINS.
    loaded = [plugin for plugin in host.plugins() if plugin.health is not PluginHealth.NOT_LOADED]
    packages = {"waltap", *(plugin.module.partition(".")[0] for plugin in loaded)}
    # Classes are known once their modules are imported, so all modules are imported.
    for package in sorted(packages):
        for module in _modules(package):
            try:
                importlib.import_module(module)
            except ImportError:
                # The module needs an optional library that is not installed.
                continue
    # Tests and other programs may define subclasses, too; they do not belong on the page.
    found = {c for c in _subclasses(WaltapError) if c.__module__.partition(".")[0] in packages}
    return sorted(found, key=lambda c: (c.code, c.__name__))


def errors_page(host: "Host") -> str:
    """Return the page."""
    lines = ["# Errors", "", GENERATED, ""]
    lines += [
        "Every error has a stable code, says whether waltap tries again by itself, and names the",
        "command, property or SQL that fixes it. `{…}` stands for what the message fills in. Exit",
        "codes: 1 failed, 2 bad configuration or plugin, 3 retriable and retries spent.",
        "",
    ]
    family = ""
    for error in error_classes(host):
        if error.code[3] != family:
            family = error.code[3]
            lines += [f"## {FAMILIES.get(family, family)}", ""]
        lines += [f"### {error.code}", ""]  # other pages link to the code
        about = _flat(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0])
        lines += [f"`{error.__name__}`: {about}", ""]
        lines += [f"- tried again: {RETRIES[error.retry]}", f"- remedy: {_flat(error.remedy)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _modules(package: str) -> Iterator[str]:
    root = importlib.import_module(package)
    yield package
    for module in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{package}."):
        # An import of ``__main__`` would run a command, and pytest may be missing.
        if not module.name.endswith(("__main__", "pytest_plugin")):
            yield module.name


def _subclasses(error: type[WaltapError]) -> Iterator[type[WaltapError]]:
    yield error
    for child in error.__subclasses__():
        yield from _subclasses(child)
