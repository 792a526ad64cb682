"""The plugin host: what it finds, what it says of plugins that cannot be used, who it shows."""

import importlib
import inspect
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

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
    part_of,
)
from waltap.errors import PluginError
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host, PluginHealth, PluginInfo
from waltap.ports.offsets.offset import OffsetStore
from waltap.ports.specs import KINDS, LazyReference, SinkSpec, TypeSpec, lazy

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Iterator[Install]:
    """Return what installs a distribution: a module, and the metadata pip would write for it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = ["acme_sink"]

    def installed(distribution: str, source: str, *, name: str = "", version: str = "1.0") -> None:
        module = distribution.replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[waltap]\n{name or module} = {module}\n")

    yield installed
    for module in modules:
        sys.modules.pop(module, None)


SINK = """
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec

@hookimpl
def register_sinks():
    return [SinkSpec(name="{name}", aliases=({aliases}), summary="s", factory=print)]
"""


def sink_source(name: str, aliases: str = "") -> str:
    return SINK.format(name=name, aliases=aliases)


def plugin_of(host: Host, distribution: str) -> PluginInfo:
    (found,) = [p for p in host.plugins() if p.distribution == distribution]
    return found


def module(**members: object) -> ModuleType:
    made = ModuleType("made_here")
    for name, member in members.items():
        setattr(made, name, member)
    return made


def sinks(*names: str) -> ModuleType:
    @hookimpl
    def register_sinks() -> list[SinkSpec]:
        return [SinkSpec(name=name, summary="s", factory=print) for name in names]  # type: ignore[arg-type]

    return module(register_sinks=register_sinks)


# --- finding ---------------------------------------------------------------------------------------


def test_an_installed_plugin_is_listed_with_distribution_version_and_what_it_provides(install):
    install("acme-sinks", sink_source("acme", '"acme2",'), version="2.5")
    host = Host()
    plugin = plugin_of(host, "acme-sinks")
    assert (plugin.version, plugin.health, plugin.error) == ("2.5", PluginHealth.OK, None)
    assert plugin.provides["sinks"] == ("acme",)
    assert plugin.hooks == ("register_sinks",)
    assert host.sinks["acme"] is host.find(SinkSpec, "acme2")


def test_every_plugin_of_ours_is_usable():
    plugins = [p for p in Host().plugins() if p.distribution.startswith("waltap")]
    assert {p.distribution for p in plugins} >= {"waltap", "waltap-decoders", "waltap-postgres"}
    assert {p.identifier: str(p.error) for p in plugins if p.error is not None} == {}


# --- code that is loaded when it is used -----------------------------------------------------------

LATE = """
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import lazy, SinkSpec

@hookimpl
def register_sinks():
    code = ("acme_sink:AcmeProperties", "acme_sink:AcmeSink", "acme_sink:absent", "not_there:at_all")
    return [
        SinkSpec(name=name, summary="s", properties=lazy(model), factory=lazy(factory))
        for name, model, factory in (("acme", *code[:2]), ("bad", *code[2:]))
    ]
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "SyntaxError: '\\(' was never closed"),
        ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ("raise SystemExit('needs libfoo')", "SystemExit: needs libfoo"),
    ],
)
def test_a_module_that_fails_when_it_is_used_is_an_error_of_its_package(
    install, tmp_path, source, words
):
    install("acme-late", LATE)
    (tmp_path / "acme_sink.py").write_text(source)
    spec = Host().find(SinkSpec, "acme")
    with pytest.raises(ImportFailed, match=f"acme_sink:AcmeProperties cannot be imported: {words}"):
        _ = spec.properties


def test_our_plugins_name_code_of_their_own_that_there_is():
    """No import contract sees such a name, and no type checker."""
    named = [
        (plugin.module.partition(".")[0], late)
        for plugin in Host().plugins()
        for late in _named(plugin)
        if plugin.distribution.startswith("waltap")
    ]
    assert len(named) > 50
    for package, late in named:
        assert late.reference.partition(".")[0] == package
        assert late.imported() is not None


def _named(plugin: PluginInfo) -> Iterator[LazyReference]:
    """Return every `lazy` in the specs of a plugin, made again: the host's may be resolved."""
    module = importlib.import_module(plugin.module)
    for kind in KINDS:
        for spec in getattr(module, kind.hook, tuple)():
            for value in getattr(spec, "__dict__", {}).values():
                owner = getattr(value, "__self__", value)  # of a command: the bound method
                if isinstance(owner, LazyReference):
                    yield owner


# --- plugins that cannot be used -------------------------------------------------------------------

HOOK = "from waltap.plugins.hookspecs import hookimpl\n@hookimpl\n"
WRAPPER = "from waltap.plugins.hookspecs import hookimpl\n@hookimpl(wrapper=True)\ndef register_sinks():\n"
SINKS = f"{HOOK}def register_sinks():\n    "
MUTE = """
class Mute(BaseException):
    def __str__(self):
        raise RuntimeError
"""
HEALTH = {
    ImportFailed: PluginHealth.IMPORT_FAILED,
    WrongApiVersion: PluginHealth.WRONG_API,
    MisspeltHook: PluginHealth.MISSPELT_HOOK,
    HookRaised: PluginHealth.HOOK_RAISED,
    WrongSpec: PluginHealth.HOOK_RAISED,
}
OF_ACME = "register_sinks of acme 1.0"
FAULTS: list[tuple[str, type[PluginError], str]] = [
    ("import not_there_at_all", ImportFailed, "acme 1.0 … ModuleNotFoundError … not_there_at_all … pip install"),
    ("import sys; sys.exit('needs libfoo')", ImportFailed, "SystemExit: needs libfoo"),
    ("WALTAP_API = 99", WrongApiVersion, "wants plugin interface 99 … has 1 … --upgrade acme"),
    (f"{HOOK}def register_sink():\n    return []", MisspeltHook, "register_sink … did you mean register_sinks?"),
    (f"{HOOK}def on_state(pipeline, colour):\n    pass", MisspeltHook, "on_state … colour"),
    ("def register_sinks():\n    return []", MisspeltHook, "register_sinks without @hookimpl"),
    ("from functools import partial\non_state = partial(print)", MisspeltHook, "on_state without @hookimpl"),
    ("from functools import partial\nfrom waltap.plugins.hookspecs import hookimpl\non_state = hookimpl(partial(print))",
     MisspeltHook, "on_state as a partial, so it would never be called"),
    (f"{HOOK}async def register_sinks():\n    return []", MisspeltHook, "register_sinks is async"),
    (f"{HOOK}async def on_state(detail):\n    print(detail)", MisspeltHook, "on_state is async"),
    (f"{HOOK}def choose_topic(relation):\n    yield relation.name", MisspeltHook, "choose_topic … has a yield"),
    (f"{SINKS}raise RuntimeError('no luck')", HookRaised, f"{OF_ACME} raised RuntimeError: no luck"),
    (f"{SINKS}yield None.name", HookRaised, "AttributeError"),
    (f"{MUTE}raise Mute", ImportFailed, "acme 1.0 failed to import: Mute"),
    (f"{MUTE}{SINKS}raise Mute", HookRaised, f"{OF_ACME} raised Mute"),
    *[
        (f"from waltap.ports.specs import SinkSpec\n{SINKS}return [SinkSpec(**{{'name': 'acme', 'summary': 's',"
         f" 'factory': print, **dict({wrong})}})]", WrongSpec, f"{OF_ACME} returned a SinkSpec … {words}")
        for wrong, words in [
            ("name=None", "with the name None"),
            ("aliases=None", "and the aliases None"),
            ("summary=None", "without a summary"),
            ("factory=None", "whose factory is no function"),
            ("properties=dict", "whose properties are no Properties"),
        ]
    ],
    (f"from waltap.ports.specs import TypeSpec\n{HOOK}def register_types():\n    return [TypeSpec(name='t', "
     "summary='s', claims=lambda: True, build=print)]", WrongSpec, "<lambda> refuses its arguments"),
    (f"{SINKS}return ['jsonl']", WrongSpec, "returned a str … iterable of SinkSpec"),
    *[
        (WRAPPER + body, HookRaised, f"{OF_ACME} … {words}")
        for body, words in [
            ("    raise ValueError('before')\n    yield", "ValueError: before"),
            ("    yield\n    raise ValueError('after')", "ValueError: after"),
            ("    yield\n    yield", "yielded twice"),
            ("    return\n    yield", "did not yield"),
        ]
    ],
    (f"{WRAPPER}    return [['mine'], *(yield)]", WrongSpec, f"{OF_ACME} returned a str"),
    (f"{WRAPPER}    yield\n    return 7", HookRaised, f"{OF_ACME} raised TypeError"),
    (WRAPPER.replace("wrapper", "hookwrapper") + "    yield", MisspeltHook, "without wrapper=True"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "error", "words"), FAULTS)
def test_a_faulty_plugin_is_reported_and_fatal_only_for_what_it_might_have(
    install, source, error, words
):
    install("acme", source)
    host = Host()
    plugin = plugin_of(host, "acme")
    assert plugin.health is HEALTH[error]
    assert type(plugin.error) is error
    assert all(word in str(plugin.error) for word in (error.code, *words.split(" … ")))
    assert host.sinks  # the others work
    with pytest.raises(SpecMissing) as missing:
        host.find(SinkSpec, "acme")
    assert plugin.error is not None
    assert plugin.error.problem in str(missing.value)


@pytest.mark.parametrize("named", [("clash",), ("second", '"clash",')], ids=["name", "alias"])
def test_one_name_from_two_distributions_names_both_and_spares_the_rest(install, named):
    install("acme-one", sink_source("clash"))
    install("acme-two", sink_source(*named), version="3.1")
    host = Host()
    assert "clash" not in host.sinks
    assert ("second" in host.sinks) == ("second" in named)
    assert "terminal" in host.sinks
    with pytest.raises(DuplicateName) as error:
        host.find(SinkSpec, "clash")
    text = str(error.value)
    assert "WT-1102" in text
    assert "acme-one 1.0" in text
    assert "acme-two 3.1" in text
    assert {plugin_of(host, d).health for d in ("acme-one", "acme-two")} == {
        PluginHealth.NAME_CLASH
    }


# --- choosing which load ---------------------------------------------------------------------------


def test_a_module_that_two_entry_points_name_is_one_plugin(install, tmp_path):
    """As a package that was renamed, beside its old name."""
    install("acme", sink_source("of-acme"))
    install("acme-old", "")
    (tmp_path / "acme_old-1.0.dist-info" / "entry_points.txt").write_text("[waltap]\nold = acme\n")
    host = Host()
    assert host.find(SinkSpec, "of-acme").name == "of-acme"
    healths = [plugin_of(host, name).health for name in ("acme", "acme-old")]
    assert sorted(health.value for health in healths) == ["name clash", "ok"]
    with pytest.raises(DuplicateName, match="is plugin '(acme|old)' of acme.* again"):
        host.register(sys.modules["acme"], "again")
    assert "of-acme" in host.sinks


def test_waltap_plugins_limits_which_load_but_never_the_framework(install, monkeypatch):
    install("acme-sinks", sink_source("acme"))
    install("rest", "raise SystemError('must not be imported')")
    monkeypatch.setenv("WALTAP_PLUGINS", "postgres, acme-sinks")
    host = Host()
    assert "acme" in host.sinks
    assert plugin_of(host, "waltap").health is PluginHealth.OK
    assert plugin_of(host, "rest").health is PluginHealth.NOT_LOADED
    with pytest.raises(SpecMissing, match=r"WALTAP_PLUGINS keeps out .*rest"):
        host.find(SinkSpec, "other")


def test_waltap_plugins_naming_something_unknown_is_an_error(monkeypatch):
    monkeypatch.setenv("WALTAP_PLUGINS", "postgres,spork")
    with pytest.raises(SpecMissing, match=r"'spork', not installed; known: .*postgres"):
        Host()


# --- asking for a spec -----------------------------------------------------------------------------


def test_a_name_that_is_not_there_gives_the_known_ones_and_the_nearest():
    host = Host(discover=False)
    host.register(sinks("jsonl", "null"), "mine")
    with pytest.raises(SpecMissing) as error:
        host.find(SinkSpec, "jsnol")
    assert error.value.nearest == "jsonl"
    assert str(error.value) == (
        "WT-1101 no sink is called 'jsnol'; known: jsonl, null. Did you mean jsonl? "
        "`waltap plugins` shows every plugin with its contributions and its health."
    )


def test_types_come_in_the_order_in_which_they_are_asked():
    def spec(name: str, order: int) -> TypeSpec:
        return TypeSpec(name=name, summary="s", claims=bool, build=print, order=order)  # type: ignore[arg-type]

    @hookimpl
    def register_types() -> list[TypeSpec]:
        return [spec("late", 100), spec("early", 10), spec("middle", 50)]

    host = Host(discover=False)
    host.register(module(register_types=register_types), "types")
    assert [found.name for found in host.types] == ["early", "middle", "late"]


# --- plugins of this process -----------------------------------------------------------------------


class Unmarked:
    def on_state(self, state: str) -> None:
        """Never called without the marker."""


@pytest.mark.parametrize(
    ("plugin", "name", "error", "words"),
    [
        (module(WALTAP_API=2), "second", WrongApiVersion, None),
        (module(register_sink=hookimpl(lambda: [])), "second", MisspeltHook, None),
        (Unmarked(), "second", MisspeltHook, "defines on_state without @hookimpl"),
        (module(register_sinks=hookimpl(lambda: [1])), "second", WrongSpec, None),
        (sinks("taken"), "second", DuplicateName, None),
        (sinks("other"), "first", DuplicateName, "'first' is registered already"),
    ],
    ids=["wrong-api", "misspelt", "unmarked", "wrong-spec", "taken-name", "taken-plugin-name"],
)
def test_a_plugin_that_cannot_be_registered_leaves_the_host_as_it_was(plugin, name, error, words):
    host = Host(discover=False)
    host.register(sinks("taken"), "first")
    with pytest.raises(error, match=words):
        host.register(plugin, name)
    assert list(host.sinks) == ["taken"]
    assert [(p.name, p.health) for p in host.plugins()] == [("first", PluginHealth.OK)]


# --- observers and choices -------------------------------------------------------------------------


class Observer:
    def __init__(self) -> None:
        self.seen: list[object] = []

    @hookimpl
    def on_state(self, state: str) -> None:
        self.seen.append(state)


class Faulty:
    @hookimpl
    def on_state(self, pipeline: str, state: str, detail: str) -> None:
        raise ValueError(detail)


@hookimpl(wrapper=True)
def before() -> Iterator[None]:
    raise ValueError
    yield


@hookimpl(wrapper=True)
def after() -> Iterator[None]:
    yield
    raise ValueError


@pytest.mark.parametrize("faulty", [Faulty(), module(on_state=before), module(on_state=after)])
def test_an_observer_that_raises_is_logged_once_and_the_others_are_reported(faulty, caplog):
    host, observer = Host(discover=False), Observer()
    host.register(observer, "observer")
    host.register(faulty, "faulty")
    with caplog.at_level(logging.WARNING, "waltap.plugins.host"):
        for state in ("checking", "streaming"):
            host.notify("on_state", pipeline="p", state=state, detail="why")
    assert observer.seen == ["checking", "streaming"]
    (record,) = caplog.records
    fields = vars(record)
    assert (fields["hook"], fields["plugin"]) == ("on_state", "in process:faulty")


def test_a_hook_that_has_not_returned_is_known_with_its_plugin():
    host, seen = Host(discover=False), []
    look = SimpleNamespace(on_state=hookimpl(lambda: seen.append(host.pending())))
    host.register(look, "observer")
    host.notify("on_state", pipeline="p", state="streaming", detail="")
    ((name, seconds),) = seen
    assert (name, seconds < 60, host.pending()) == ("on_state of observer (in process)", True, None)
    with host.calling("channel slow"):
        assert host.pending()[0] == "channel slow"
    assert host.pending() is None


LEAVES = f"""
import asyncio
{MUTE}
{HOOK}def on_state(detail):
    leave(detail)
{HOOK}def choose_topic(relation):
    leave(relation)

def leave(error):
    raise {{"cancelled": asyncio.CancelledError, "mute": Mute, "interrupt": KeyboardInterrupt}}[error]
"""


@pytest.mark.parametrize(("how", "name"), [("cancelled", "CancelledError"), ("mute", "Mute")])
def test_an_installed_plugin_cannot_leave_by_an_exception_that_is_none(install, how, name, caplog):
    install("acme", LEAVES)
    host = Host()
    host.notify("on_state", pipeline="p", state="streaming", detail=how)
    assert [vars(record)["plugin"] for record in caplog.records] == ["acme:acme"]
    with pytest.raises(HookRaised, match=f"choose_topic of acme 1.0 raised {name}"):
        host.choose("choose_topic", relation=how)


def test_the_interrupt_of_a_user_is_no_fault_of_the_code_that_it_meets(install):
    """Python raises it wherever the program is; where a command handles SIGINT a plugin raised it."""
    install("acme", LEAVES)
    host = Host()
    before = signal.getsignal(signal.SIGINT)
    try:
        # programs have their own, like PySpark's; the last has no module
        for handler in (signal.default_int_handler, lambda *_: None, [].append):
            signal.signal(signal.SIGINT, handler)
            with pytest.raises(KeyboardInterrupt) as interrupt:
                host.notify("on_state", pipeline="p", state="streaming", detail="interrupt")
            assert host.blamed(interrupt.value) is interrupt.value
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        host.notify("on_state", pipeline="p", state="streaming", detail="interrupt")
        blamed = host.blamed(interrupt.value)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(blamed, PluginRaised)
    assert "acme 1.0 raised KeyboardInterrupt" in str(blamed)


class Given:
    """A part whose methods do or do not take what an offset store's are called with."""

    def load(self): ...
    def store(self, offset): ...
    def clear(self): ...


@pytest.mark.parametrize(("contract", "factory", "problem"), [
    (OffsetStore, lambda: Given(), "<lambda> refuses its arguments: too many positional arguments"),
    (OffsetStore, lazy(f"{__name__}:OffsetStore"), "OffsetStore lacks clear, load, store"),
    (OffsetStore, lambda path: 7, "<lambda> gave int, no OffsetStore: clear, load, store is missing"),
    (OffsetStore, lambda path: type("Own", (Given,), {"store": lambda self: 7})(),
     "Own.store refuses its arguments: too many positional arguments"),
    (2, lambda path: 7, "<lambda> gave int, not a function"),
    (2, lambda path: lambda schema: schema, "<lambda> refuses its arguments: too many positional arguments"),
])  # fmt: skip
def test_a_part_is_called_with_what_its_contract_says_and_refuses_that_when_it_is_made(
    contract, factory, problem
):
    """Python would raise at the first call, in a frame of the framework."""
    with pytest.raises(UnusableResult, match=re.escape(problem)):
        part_of(factory, contract, "path")
    part_of(lambda path: Given(), OffsetStore, "path")
    part_of(lambda path: max, 2, "path")


@pytest.mark.parametrize("hook", ["on_something_new", "choose_something_new"])
def test_a_plugin_may_have_hooks_of_a_later_version(hook):
    """As pluggy's ``optionalhook`` says."""
    host, observer = Host(discover=False), Observer()
    later = hookimpl(optionalhook=True)(lambda state: None)
    host.register(module(**{hook: later, "on_state": observer.on_state}), "mine")
    host.notify("on_state", pipeline="p", state="streaming", detail="")
    assert observer.seen == ["streaming"]


def around(hook: str, seen: list[object], change: Callable[[Any], Any]) -> ModuleType:
    """Return a plugin that wraps ``hook`` and changes its result."""

    @hookimpl(wrapper=True)
    def wrap():
        seen.append("begins")
        result = yield
        seen.append(result)
        return change(result)

    return module(**{hook: wrap})


def test_a_wrapper_sees_and_changes_what_the_wrapped_implementations_give():
    @hookimpl
    def choose_topic() -> str:
        return "shop"

    host, observer = Host(discover=False), Observer()
    seen: dict[str, list[object]] = {"choose_topic": [], "on_state": [], "register_sinks": []}
    changes: dict[str, Callable[[Any], Any]] = {
        "choose_topic": lambda answer: f"{answer}.v2",
        "on_state": lambda result: result,
        "register_sinks": lambda lists: [
            *([spec for spec in specs if spec.name != "hidden"] for specs in lists),
            sinks("of the wrapper").register_sinks(),
        ],
    }
    for hook, change in changes.items():
        host.register(around(hook, seen[hook], change), f"around {hook}")
    host.register(module(choose_topic=choose_topic), "chooser")
    host.register(observer, "observer")
    host.register(sinks("one", "hidden"), "sinks")
    assert host.choose("choose_topic", relation=None) == "shop.v2"
    assert seen["choose_topic"] == ["begins", "shop"]
    host.notify("on_state", pipeline="p", state="streaming", detail="")
    assert (observer.seen, seen["on_state"]) == (["streaming"], ["begins", []])
    assert sorted(host.sinks) == ["of the wrapper", "one"]
    with pytest.raises(SpecMissing):
        host.find(SinkSpec, "hidden")
    provided = {plugin.name: plugin.provides.get("sinks") for plugin in host.plugins()}
    assert provided["sinks"] == ("one",)
    assert provided["around register_sinks"] == ("of the wrapper",)


def test_a_wrapper_of_a_choice_may_catch_its_error_or_be_blamed_for_its_own():
    @hookimpl
    def choose_topic(relation: object) -> str:
        raise KeyError("x")

    def around_choice(error: type[Exception] | None) -> ModuleType:
        @hookimpl(wrapper=True)
        def choose_topic():
            try:
                return (yield)
            except HookRaised as inner:
                if error is None:
                    return "caught"
                raise error from inner

        return module(choose_topic=choose_topic)

    host = Host(discover=False)
    host.register(module(choose_topic=choose_topic), "chooser")
    host.register(around_choice(None), "catches")
    assert host.choose("choose_topic", relation=None) == "caught"
    host.unregister("catches")
    host.register(around_choice(OSError), "raises")
    with pytest.raises(HookRaised, match=r"choose_topic of raises .* raised OSError"):
        host.choose("choose_topic", relation=None)


# --- names that plugin authors import --------------------------------------------------------------


PACKAGES = [
    "waltap",
    "waltap.changes.capture",
    "waltap.config",
    "waltap.changes.decode",
    "waltap.encoders.format",
    "waltap.changes.mapping",
    "waltap.ports.notifications",
    "waltap.ports.offsets",
    "waltap.ports.signals",
    "waltap.ports.sink",
    "waltap.ports.snapshot",
    "waltap.ports.source",
    "waltap.changes.transactions",
    "waltap.ports.transforms",
    "waltap_testing",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_is_no_module(package):
    """A module of the same name would take its place once somebody imports it."""
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert not inspect.ismodule(getattr(module, name)), name
        with pytest.raises(ImportError):
            importlib.import_module(f"{package}.{name}")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind
