"""Find plugins, check them, and look up their contributions.

A host is made per command or engine, never at import. Plugins are the entry points of group ``waltap``
(including waltap's own) and the arguments of `Host.register`. A plugin that cannot be used is kept with
its error and shown by ``waltap plugins``. It is fatal only if a profile needs a missing contribution.
"""

import contextlib
import enum
import inspect
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import Distribution, entry_points
from types import FrameType, FunctionType, MappingProxyType, MethodType
from typing import Any, Generic, TypeVar

import pluggy

from waltap.base.environment import plugin_names
from waltap.base.plugin_errors import (
    DuplicateName,
    HookRaised,
    ImportFailed,
    MisspeltHook,
    PluginRaised,
    SpecMissing,
    UnusableResult,
    WrongApiVersion,
    WrongSpec,
    extra_for,
    interrupts,
    require_call,
)
from waltap.base.text import in_brief, nearest
from waltap.errors import PluginError, SystemRefused, WaltapError
from waltap.plugins import hookspecs
from waltap.plugins.guard import Accept, Pending, calling, guard
from waltap.ports import specs
from waltap.ports.specs import KIND_OF, KINDS, LazyReference, Spec, SpecKind, TypeSpec


class _PluginManager(pluggy.PluginManager):
    """Skip the unmarked names of a module.

    pluggy would inspect each of them, in half of the time that it takes to find the plugins.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if inspect.ismodule(plugin):
            value = vars(plugin).get(name)
            if not isinstance(value, FunctionType | MethodType) or not hasattr(
                value, "waltap_impl"
            ):
                return None
        return super().parse_hookimpl_opts(plugin, name)


def _name_and_version(distribution: Distribution | None) -> tuple[str, str]:
    """Return the name and the version of a distribution from its METADATA.

    `Distribution.name` and `.version` parse the whole file as an e-mail each time: README included, 1 ms.
    """
    if distribution is None:
        return "unknown", ""
    headers = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    found = dict(re.findall(r"^(Name|Version): *(\S+)", headers, re.MULTILINE))
    if len(found) < 2:  # an egg of an older installer
        return distribution.name, distribution.version
    return found["Name"], found["Version"]


ENTRY_POINT_GROUP = "waltap"
IN_PROCESS = "in process"

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Spec | TypeSpec)
E = TypeVar("E", bound=BaseException)


# --- plugins -------------------------------------------------------------------------------------


class PluginHealth(enum.Enum):
    """Whether a plugin can be used, and if not, why."""

    OK = "ok"
    IMPORT_FAILED = "failed to import"
    WRONG_API = "wrong API version"
    MISSPELT_HOOK = "misspelt hook"
    HOOK_RAISED = "hook raised"
    NAME_CLASH = "name clash"
    NOT_LOADED = "not loaded"


@dataclass(slots=True)
class PluginInfo:
    """One plugin in the list of ``waltap plugins``."""

    name: str
    distribution: str
    version: str
    module: str
    health: PluginHealth = PluginHealth.OK
    error: PluginError | None = None
    # Kind (attribute) → names.
    provides: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()

    @property
    def identifier(self) -> str:
        """Return the plugin's unique name.

        Two distributions may use one entry-point name.
        """
        return f"{self.distribution}:{self.name}"

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    def fail(self, health: PluginHealth, error: PluginError) -> None:
        """Record why this plugin cannot be used; the first reason stays."""
        if self.health is PluginHealth.OK:
            self.health, self.error = health, error


@dataclass(slots=True)
class _SpecRegistry:
    """All contributions of one kind."""

    specs: dict[str, Any] = field(default_factory=dict)
    by_any_name: dict[str, Any] = field(default_factory=dict)
    clashes: dict[str, PluginError] = field(default_factory=dict)

    def whatever_case(self, name: str) -> Any:
        """Return the only spec with this name in any case.

        Return None without one, or if several match.
        """
        folded = name.strip().casefold()
        found = [spec for known, spec in self.by_any_name.items() if known.casefold() == folded]
        return found[0] if all(spec is found[0] for spec in found[1:]) and found else None


# --- the host ------------------------------------------------------------------------------------


class _Contributions(Generic[S]):
    """The specs of one kind by name: an attribute of a host."""

    def __init__(self, kind: type[S]) -> None:
        self._kind = kind

    def __get__(self, host: "Host", owner: type["Host"]) -> Mapping[str, S]:
        return MappingProxyType(host._registry(KIND_OF[self._kind]).specs)  # noqa: SLF001


class Host:
    """The plugins of this process and their contributions.

    ``discover`` False makes a host without installed plugins (see `register`). ``only`` limits the
    installed plugins by entry-point or distribution name; None uses WALTAP_PLUGINS. The framework's own
    plugin always loads. Raises: SpecMissing if ``only`` names no plugin.
    """

    def __init__(self, *, discover: bool = True, only: Collection[str] | None = None) -> None:
        self._manager = _PluginManager("waltap")
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, PluginInfo] = {}
        self._registries: dict[str, _SpecRegistry] = {}
        # The caller of each ``on_*`` hook, bound once: `notify` runs for every batch.
        self._notices: dict[str, Callable[[dict[str, Any]], None]] = {}
        # By id() of a spec. The spec is kept: another object could otherwise get the same id.
        self._owners: dict[int, tuple[PluginInfo, Any]] = {}
        # Modules of the program, whose code installed plugins may call.
        self._of_program: set[str] = set()
        # Observers whose exceptions were logged as a warning already.
        self._complained: set[tuple[str, str]] = set()
        self._pending: Pending = {}
        if discover:
            self._discover(plugin_names() if only is None else frozenset(only))

    # --- what there is ---------------------------------------------------------------------------

    # The contributions of each kind by name.
    connectors = _Contributions(specs.ConnectorSpec)
    decoders = _Contributions(specs.DecoderSpec)
    replica_identities = _Contributions(specs.ReplicaIdentitySpec)
    snapshotters = _Contributions(specs.SnapshotterSpec)
    formats = _Contributions(specs.FormatSpec)
    transforms = _Contributions(specs.TransformSpec)
    predicates = _Contributions(specs.PredicateSpec)
    converters = _Contributions(specs.ColumnConverterSpec)
    topic_naming = _Contributions(specs.TopicNamingSpec)
    sinks = _Contributions(specs.SinkSpec)
    table_formats = _Contributions(specs.TableFormatSpec)
    offset_stores = _Contributions(specs.OffsetStoreSpec)
    signal_actions = _Contributions(specs.SignalActionSpec)
    signal_channels = _Contributions(specs.SignalChannelSpec)
    notification_channels = _Contributions(specs.NotificationChannelSpec)
    checks = _Contributions(specs.CheckSpec)
    commands = _Contributions(specs.CommandSpec)

    @property
    def types(self) -> tuple[TypeSpec, ...]:
        return tuple(sorted(self.specs(TypeSpec), key=lambda spec: spec.order))

    def specs(self, kind: type[S]) -> list[S]:
        return list(self._registry(KIND_OF[kind]).specs.values())

    def find(self, kind: type[S], name: str) -> S:
        """Return the spec of ``kind`` by name or alias.

        Raises: SpecMissing, with the known names, the nearest one and the plugins that could not be
        loaded; DuplicateName if two plugins claim the name.
        """
        registry = self._registry(KIND_OF[kind])
        if name in registry.clashes:
            raise registry.clashes[name]
        spec: S | None = registry.by_any_name.get(name) or registry.whatever_case(name)
        if spec is None:
            raise self._missing(KIND_OF[kind], name, registry)
        return spec

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin and its contributions, sorted by identifier."""
        for kind in KINDS:
            self._registry(kind)
        return sorted(self._plugins.values(), key=lambda plugin: plugin.identifier)

    # --- hooks -----------------------------------------------------------------------------------

    def implements(self, hook: str) -> bool:
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return bool(caller.get_hookimpls())

    def implementers(self, hook: str) -> str:
        """Return the names of the plugins that implement ``hook``."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        plugins = (self._plugins[each.plugin_name] for each in caller.get_hookimpls())
        return " or ".join(map(_who, plugins))

    def choose(self, hook: str, **arguments: Any) -> Any:
        """Call a ``choose_*`` hook; return None if no plugin answers.

        pluggy's rules hold: the plugin registered last is asked first, ``tryfirst`` before it, and a
        wrapper sees the answer and may replace it. Raises: HookRaised.
        """
        return getattr(self._manager.hook, hook)(**arguments)

    def notify(self, hook: str, **arguments: Any) -> None:
        """Notify the observers of an ``on_*`` hook; nearly free without any.

        An observer that raises is logged, the first time as a warning, and otherwise ignored.
        """
        notice = self._notices.get(hook)
        if notice is None:
            caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
            notice = (lambda given: caller(**given)) if caller.get_hookimpls() else lambda _: None
            self._notices[hook] = notice
        notice(arguments)

    def calling(self, name: str) -> AbstractContextManager[None]:
        """Let `pending` name a call of a plugin while the block lasts."""
        return calling(self._pending, name)

    def pending(self) -> tuple[str, float] | None:
        """Return the first call that has not returned and its seconds. Any thread may ask."""
        for name, began in self._pending.copy().values():
            return name, time.monotonic() - began
        return None

    def blamed(self, error: E) -> E | WaltapError:
        """Return the error to report instead of ``error``.

        A refusal of the operating system becomes SystemRefused. An exception from the code of an installed
        plugin, or an unusable result of it, becomes PluginRaised. Other errors are returned unchanged.
        """
        if isinstance(error, WaltapError) or interrupts(error):
            return error
        if isinstance(error, OSError) and (refused := SystemRefused.of(error)) is not None:
            return refused
        if isinstance(error, UnusableResult):
            plugin = self._by_package().get(error.module.partition(".")[0])
            if plugin is None:
                return error
            return PluginRaised(
                f"plugin {plugin.name!r} of {plugin}: {error}", distribution=plugin.distribution
            )
        found = self._innermost(reversed(list(traceback.walk_tb(error.__traceback__))))
        if found is None:
            return error
        plugin, where = found
        return PluginRaised(
            f"plugin {plugin.name!r} of {plugin} raised {in_brief(error)} ({where})",
            distribution=plugin.distribution,
        )

    def at_work(self, thread: int) -> str:
        """Name the plugin whose code a thread runs, and its line.

        It is "" for none. Any thread may ask.
        """
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no public function
        frames: list[tuple[FrameType, int]] = []
        # The stack may change meanwhile, and then Python 3.11 can show an object that is no frame.
        with contextlib.suppress(AttributeError):
            frames.extend(traceback.walk_stack(frame) if frame is not None else ())
        found = self._innermost(frames)
        return "" if found is None else f"plugin {found[0].name!r} of {found[0]} ({found[1]})"

    def _innermost(self, frames: Iterable[tuple[FrameType, int]]) -> tuple[PluginInfo, str] | None:
        """Return the first installed plugin in ``frames``, and the place.

        The innermost comes first: it answers for the code that it calls.
        """
        owners = self._by_package()
        for frame, line in frames:
            module = str(frame.f_globals.get("__name__", ""))
            if module in self._of_program:
                return None
            plugin = owners.get(module.partition(".")[0])
            if plugin is not None:
                return plugin, f"{frame.f_code.co_filename}:{line}"
        return None

    def _by_package(self) -> dict[str, PluginInfo]:
        return {
            plugin.module.partition(":")[0].partition(".")[0]: plugin
            for plugin in self._plugins.values()
            # Exceptions of an in-process plugin belong to the program that registered it, and the
            # framework is no plugin.
            if plugin.distribution not in {IN_PROCESS, "waltap"}
        }

    def register(self, plugin: object, name: str) -> None:
        """Add an in-process plugin: a module, or an object with hook implementations.

        Raises: PluginError (WT-11xx) if the plugin cannot be used; the host is then unchanged.
        """
        entry = PluginInfo(name, IN_PROCESS, "", getattr(plugin, "__name__", type(plugin).__name__))
        if entry.identifier in self._plugins:
            raise DuplicateName(
                f"a plugin called {name!r} is registered already", first=name, second=name
            )
        # A failed registration must leave the health of other plugins unchanged.
        before = [(other, other.health, other.error) for other in self._plugins.values()]
        self.add_callback(plugin)
        self._admit(entry, plugin)
        for kind in KINDS:
            if entry.error is None and kind.hook in entry.hooks:
                self._registry(kind)
        if entry.error is not None:
            with contextlib.suppress(ValueError):
                self._manager.unregister(name=entry.identifier)
            del self._plugins[entry.identifier]
            for other, health, error in before:  # a clash blamed both sides
                other.health, other.error = health, error
            self._forget()
            raise entry.error

    def add_callback(self, given: object) -> None:
        """Add the program's code: its errors blame no plugin."""
        own = given.__name__ if inspect.ismodule(given) else getattr(given, "__module__", None)
        self._of_program.add(str(own))

    def unregister(self, name: str) -> None:
        """Remove an in-process plugin.

        Raises: KeyError if no such plugin has the name.
        """
        identifier = PluginInfo(name, IN_PROCESS, "", "").identifier
        del self._plugins[identifier]
        self._manager.unregister(name=identifier)
        self._forget()

    # --- finding and checking --------------------------------------------------------------------

    def _discover(self, only: frozenset[str] | None) -> None:
        seen: set[str] = set()
        for point in entry_points(group=ENTRY_POINT_GROUP):
            distribution, version = _name_and_version(point.dist)
            own = distribution == "waltap"
            entry = PluginInfo(point.name, distribution, version, point.value)
            if entry.identifier in self._plugins:
                continue  # one distribution found twice on sys.path: the first one is imported
            seen |= {point.name, distribution}
            if only is not None and not own and not only & {point.name, distribution}:
                entry.health = PluginHealth.NOT_LOADED
                self._plugins[entry.identifier] = entry
                continue
            try:
                module = point.load()
            except BaseException as cause:
                if interrupts(cause):
                    raise
                error = ImportFailed(
                    f"plugin {entry.name!r} of {entry} failed to import: {in_brief(cause)}",
                    distribution=distribution,
                )
                error.__cause__ = cause
                entry.fail(PluginHealth.IMPORT_FAILED, error)
                self._plugins[entry.identifier] = entry
                continue
            self._admit(entry, module)
        unknown = sorted((only or frozenset()) - seen)
        # A misspelt name in WALTAP_PLUGINS would otherwise load nothing, silently.
        if unknown:
            raise SpecMissing(
                f"WALTAP_PLUGINS asks for {', '.join(map(repr, unknown))}, not installed",
                known=seen,
            )

    def _admit(self, entry: PluginInfo, plugin: object) -> None:
        """Register ``plugin`` with pluggy, or record its error in ``entry``."""
        self._plugins[entry.identifier] = entry
        self._forget()
        # A plugin without a version accepts every version.
        version = getattr(plugin, "WALTAP_API", hookspecs.API_VERSION)
        if version != hookspecs.API_VERSION:
            error: PluginError = WrongApiVersion(
                f"plugin {entry.name!r} of {entry} wants plugin interface {version}, "
                f"this waltap has {hookspecs.API_VERSION}",
                distribution=entry.distribution,
            )
            entry.fail(PluginHealth.WRONG_API, error)
            return
        if (known := self._manager.get_name(plugin)) is not None:
            first = self._plugins[known]
            error = DuplicateName(
                f"plugin {entry.name!r} of {entry} is plugin {first.name!r} of {first} again",
                first=entry.distribution,
                second=first.distribution,
            )
            entry.fail(PluginHealth.NAME_CLASH, error)
            return
        fault = self._pluggy_register(entry, plugin)
        # A misspelt hook would silently never be called.
        if fault is not None:
            entry.fail(
                PluginHealth.MISSPELT_HOOK, MisspeltHook(fault, distribution=entry.distribution)
            )
            with contextlib.suppress(ValueError):
                self._manager.unregister(name=entry.identifier)
            return
        callers = self._manager.get_hookcallers(plugin) or []
        entry.hooks = tuple(sorted(caller.name for caller in callers))
        for caller in callers:
            for implementation in caller.get_hookimpls():
                if implementation.plugin is plugin:
                    self._guard(entry, caller.name, implementation)

    def _guard(self, plugin: PluginInfo, hook: str, implementation: pluggy.HookImpl) -> None:
        """Blame ``plugin`` for exceptions of its implementation.

        The kind of ``hook`` decides whether the error is fatal.
        """

        def raised(cause: BaseException) -> PluginError:
            return HookRaised(
                f"{hook} of {_who(plugin)} raised {in_brief(cause)}",
                distribution=plugin.distribution,
            )

        def contributed(cause: BaseException) -> None:
            error = cause if isinstance(cause, WrongSpec) else raised(cause)
            error.__cause__ = cause if error is not cause else None
            plugin.fail(PluginHealth.HOOK_RAISED, error)

        def observed(cause: BaseException) -> None:
            self._complain(hook, plugin.identifier, cause)

        kind = next((kind for kind in KINDS if kind.hook == hook), None)
        failed = contributed if kind else observed if hook.startswith("on_") else raised
        own, several = plugin.distribution == IN_PROCESS, implementation.wrapper

        def judged(cause: BaseException) -> Exception | None:
            # The program that registered a plugin may end itself; an installed plugin may not.
            if interrupts(cause) or (own and not isinstance(cause, Exception)):
                raise cause
            return failed(cause)

        accept = partial(self._accepted, plugin, kind, several=several) if kind else _answer(hook)
        guard(implementation, judged, accept, f"{hook} of {_who(plugin)}", self._pending)

    def _accepted(
        self, plugin: PluginInfo, kind: SpecKind, result: Any, *, several: bool
    ) -> list[Any] | None:
        """Return the result of a ``register_*`` hook as lists.

        A wrapper returns a list for each of ``several`` plugins. Its own new specs count as its plugin's.
        Raises: WrongSpec.
        """
        if several:
            lists = [list(specs) for specs in result]
            flat = [spec for specs in lists for spec in specs]
        elif result is None:
            return None  # pluggy's own rule: no contribution
        else:
            lists = flat = list(result)
        for spec in flat:
            of_kind = isinstance(spec, kind.spec)
            fault = _fault(spec) if of_kind else type(spec).__name__
            if fault:
                returned = f"{kind.spec.__name__} {fault}" if of_kind else fault
                raise WrongSpec(
                    f"{kind.hook} of {_who(plugin)} returned a {returned}",
                    distribution=plugin.distribution,
                    hook=kind.hook,
                    expected=kind.spec.__name__,
                )
        for spec in flat:
            if not several or id(spec) not in self._owners:
                self._owners[id(spec)] = (plugin, spec)
        return lists

    def _pluggy_register(self, entry: PluginInfo, plugin: object) -> str | None:
        """Register the plugin; return the fault of its hooks, None without one."""
        who = f"plugin {entry.name!r} of {entry}"
        known = [
            name for name in dir(hookspecs) if name.startswith(("register_", "choose_", "on_"))
        ]
        try:
            self._manager.register(plugin, name=entry.identifier)
            self._manager.check_pending()
        except pluggy.PluginValidationError as cause:
            # pluggy's error does not name the plugin's hook: search for the one without a specification.
            relay = vars(self._manager.hook).items()
            for name, caller in relay:
                if isinstance(caller, pluggy.HookCaller) and not caller.has_spec():
                    hint = nearest(name, known)
                    if any(impl.plugin is plugin for impl in caller.get_hookimpls()):
                        guess = f"; did you mean {hint}?" if hint else ""
                        return f"{who} implements {name}, which is not a hook{guess}"
            text = str(cause)
            hook = re.search(r"hook '(\w+)'", text)
            return f"{who}: {hook[1] if hook else 'a hook'}: {text.splitlines()[-1].strip()}"
        for name in known:
            function = getattr(plugin, name, None)
            marks = getattr(function, "waltap_impl", None)
            # pluggy ignores functions without its marker, and all that is no function.
            if callable(function) and (marks is None or not inspect.isroutine(function)):
                lacks = "without @hookimpl" if marks is None else f"as a {type(function).__name__}"
                return f"{who} defines {name} {lacks}, so it would never be called"
            # What a ``register_*`` hook yields is its result.
            yields = inspect.isgeneratorfunction(function) and not name.startswith("register_")
            given = marks or {"wrapper": False, "hookwrapper": False}
            stray = given["hookwrapper"] or (yields and not given["wrapper"])
            if stray or inspect.iscoroutinefunction(function):
                return f"{who}: {name} is async, or has a yield without wrapper=True"
        return None

    # --- collecting ------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._registries.clear()
        self._notices.clear()
        self._owners.clear()

    def _registry(self, kind: SpecKind) -> _SpecRegistry:
        """Return the contributions of ``kind``; call the hooks on first use."""
        registry = self._registries.get(kind.attribute)
        # Specs are collected on first use: a command needs few of the kinds.
        if registry is None:
            registry = self._registries[kind.attribute] = _SpecRegistry()
            owners: dict[str, tuple[PluginInfo, Spec | TypeSpec]] = {}
            for plugin, specs in self._contributions(kind):
                for spec in specs:
                    for name in (spec.name, *getattr(spec, "aliases", ())):
                        if name in owners and owners[name][1] is not spec:
                            self._clash(kind, name, (owners[name][0], plugin), registry)
                        else:
                            owners[name] = (plugin, spec)
                    registry.specs.setdefault(spec.name, spec)
                plugin.provides[kind.attribute] = tuple(spec.name for spec in specs)
            registry.by_any_name.update({name: spec for name, (_, spec) in owners.items()})
            for name in registry.clashes:
                # Neither plugin gets a contested name: the order of installation must not decide.
                registry.specs.pop(name, None)
                registry.by_any_name.pop(name, None)
        return registry

    def _contributions(self, kind: SpecKind) -> list[tuple[PluginInfo, list[Any]]]:
        """Return each plugin's specs of ``kind``, after wrappers.

        The plugins are in the order of their registration.
        """
        caller: pluggy.HookCaller = getattr(self._manager.hook, kind.hook)
        found: dict[str, tuple[PluginInfo, list[Any]]] = {}
        for implementation in caller.get_hookimpls():
            plugin = self._plugins[implementation.plugin_name]
            if plugin.health is PluginHealth.OK:
                found[plugin.identifier] = (plugin, [])
        # pluggy asks the plugin registered last first
        for given in reversed(caller()):
            for spec in given:
                plugin, _ = self._owners[id(spec)]
                found.setdefault(plugin.identifier, (plugin, []))[1].append(spec)
        return list(found.values())

    def _clash(
        self,
        kind: SpecKind,
        name: str,
        between: tuple[PluginInfo, PluginInfo],
        registry: _SpecRegistry,
    ) -> None:
        first, second = between
        error = DuplicateName(
            f"{kind.noun} {name!r} is contributed twice: by {_who(first)} and by {_who(second)}",
            first=first.distribution if first.distribution != IN_PROCESS else first.name,
            second=second.distribution if second.distribution != IN_PROCESS else second.name,
        )
        registry.clashes[name] = error
        first.fail(PluginHealth.NAME_CLASH, error)
        second.fail(PluginHealth.NAME_CLASH, error)

    def _missing(self, kind: SpecKind, name: str, registry: _SpecRegistry) -> SpecMissing:
        extra = extra_for(kind.attribute, name)
        excuses = [
            f"{plugin.error.problem}, and might have it"
            for plugin in self._plugins.values()
            if plugin.error is not None
        ]
        not_loaded = [p.name for p in self._plugins.values() if p.health is PluginHealth.NOT_LOADED]
        if not_loaded:
            # A plugin that is installed but not loaded may have the name.
            excuses.append(f"WALTAP_PLUGINS keeps out {', '.join(sorted(not_loaded))}")
        if extra is not None and not excuses:
            excuses.append(f"{name} is not installed: pip install '{extra}' brings it")
        return SpecMissing(
            f"no {kind.noun} is called {name!r}",
            known=registry.specs,
            nearest=nearest(name, registry.by_any_name) if extra is None else None,
            excuses=tuple(excuses),
        )

    def _complain(self, hook: str, plugin: str, cause: BaseException) -> None:
        first = (hook, plugin) not in self._complained
        self._complained.add((hook, plugin))
        logger.log(
            # An observer that fails for each batch must not fill the log.
            logging.WARNING if first else logging.DEBUG,
            "observer raised and is ignored",
            extra={"hook": hook, "plugin": plugin, "error_code": HookRaised.code},
            exc_info=cause,
        )


def _who(plugin: PluginInfo) -> str:
    return f"{plugin.name} ({plugin})" if plugin.distribution == IN_PROCESS else str(plugin)


def _answer(hook: str) -> Accept:
    """Return the check of an answer, None for unknown hooks."""
    if getattr(getattr(hookspecs, hook, None), "__annotations__", {}).get("return") != str | None:
        return lambda result: result

    def text(result: Any) -> Any:
        if not isinstance(result, str | None):
            raise TypeError(f"it gave {type(result).__name__}, not text")
        return result

    return text


def _fault(spec: Any) -> str:
    """Return the fault in the fields of a plugin's spec, or ""."""
    aliases = getattr(spec, "aliases", ())
    names = (spec.name, *(aliases if isinstance(aliases, tuple | list) else (None,)))
    if not all(isinstance(name, str) and name for name in names):
        return f"with the name {spec.name!r} and the aliases {aliases!r}"
    if not isinstance(spec.summary, str):
        return f"without a summary: {spec.name}"
    for called in ("factory", "claims", "build"):
        if not callable(getattr(spec, called, callable)):
            return f"whose {called} is no function: {spec.name}"
    if isinstance(spec, TypeSpec):
        try:
            require_call(spec.claims, spec.claims, "", None)
            require_call(spec.build, spec.build, "", None, None)
        except UnusableResult as refusal:
            return f"whose {refusal}"
    # Reading the field would import a `lazy` model.
    model = getattr(spec, "__dict__", {}).get("properties")
    # Its class is not imported here: every command comes this way.
    if not (model is None or isinstance(model, LazyReference) or hasattr(model, "model_fields")):
        return f"whose properties are no Properties: {spec.name}"
    return ""
