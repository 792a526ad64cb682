"""House rules that a linter does not know: names, sizes, errors, and what may not be committed."""

import ast
import gc
import itertools
import re
import string
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from tests.harness.command import run_program

from waltap.cli.reference.pages import error_classes
from waltap.errors import WaltapError

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "waltap": "framework/src",
    "waltap_decoders": "plugins/decoders/src",
    "waltap_postgres": "plugins/postgres/src",
    "waltap_formats": "plugins/formats/src",
    "waltap_types": "plugins/types/src",
    "waltap_kafka": "plugins/kafka/src",
    "waltap_lake": "plugins/lake/src",
    "waltap_streams": "plugins/streams/src",
    "waltap_transforms": "plugins/transforms/src",
    "waltap_yugabyte": "plugins/yugabyte/src",
    "waltap_sinks": "plugins/sinks/src",
    "waltap_spark": "plugins/spark/src",
    "waltap_testing": "plugins/testing/src",
    "waltap_demo": "plugins/demo/src",
}
MODULE_LINES_MAX = 800
TEST_LINES_MAX = 800
FUNCTION_LINES_MAX = 80  # a screen; the rule is 70, docstring and signature not counted
GENERATED = re.compile(r"_pb2\.py$")
CODE = re.compile(r"WT-\d{4}")

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home)/(?!USER\b)\w")
REGISTRY = re.compile(
    r"https?://[^\s\"')]*(?:/simple/?(?=[\s\"')]|$)|/maven2|/artifactory|/repository/)"
    r"|pypi\.org|pythonhosted\.org|repo1\.maven|\bquay\.io|\bdocker\.io|\bghcr\.io",
)
TOKEN = re.compile(r"ghp_\w{20}|AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY")


@cache
def committed() -> tuple[Path, ...]:
    """Return every file that git knows and that is there, but for what it ignores."""
    command = "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"
    listed = run_program(*command, cwd=ROOT).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def sources() -> list[Path]:
    return [
        path
        for path in committed()
        if path.suffix == ".py"
        and any(path.is_relative_to(ROOT / folder) for folder in PACKAGES.values())
        and not GENERATED.search(path.name)
    ]


def other_code() -> list[Path]:
    folders = ("benchmarks", "scripts", "tests")
    return [p for p in committed() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in folders]


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # a million nodes, all kept: each collection would look at them in vain
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module: several tests look at all of them."""
    return tuple(ast.walk(tree(path)))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def modules() -> dict[str, Path]:
    """Return every module of ours: dotted name → file."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_no_module_is_longer_than_a_reader_likes() -> None:
    long = {}
    for path in [*sources(), *other_code()]:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > (TEST_LINES_MAX if "tests" in path.parts else MODULE_LINES_MAX):
            long[named(path)] = lines
    assert not long


def test_no_package_has_more_than_twelve_modules() -> None:
    """A reader looks through the modules of one package at a glance."""
    beside = Counter(path.parent for path in sources() if path.stem != "__init__")
    assert {str(folder): count for folder, count in beside.items() if count > 12} == {}


def test_every_function_fits_one_screen() -> None:
    long = {
        f"{named(path)}:{node.lineno} {node.name}": size
        for path in [*sources(), *other_code()]
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long


def test_a_package_that_offers_names_lists_them() -> None:
    unlisted = []
    for path in sources():
        if path.name != "__init__.py":
            continue
        names = [n for node in tree(path).body for n in _bound_names(node)]
        if "__all__" not in names and [n for n in names if not n.startswith("_")]:
            unlisted.append(named(path))
    assert not unlisted


def test_a_module_lists_only_names_that_it_passes_on() -> None:
    """A list of a module's own names would repeat its definitions: an underscore marks the others."""
    repeated = []
    for path in [*sources(), *other_code()]:
        lists = any("__all__" in _bound_names(node) for node in tree(path).body)
        if path.name == "__init__.py" or not lists:
            continue
        passed_on = {
            alias.asname or alias.name
            for node in nodes(path)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        if not any(
            f'"{name}"' in path.read_text().partition("__all__")[2].partition("]")[0]
            for name in passed_on
        ):
            repeated.append(named(path))
    assert not repeated


def _bound_names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ImportFrom() | ast.Import():
            yield from (alias.asname or alias.name for alias in node.names)
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_no_module_is_dead() -> None:
    """Every module is imported by another one, is an entry point, or is loaded by its name."""
    mentioned: set[str] = set()
    for path in [
        *sources(),
        *other_code(),
        *(p for p in committed() if p.name == "pyproject.toml"),
    ]:
        mentioned |= _mentions(path)
    dead = [
        name
        for name, path in modules().items()
        if path.name not in ("__init__.py", "__main__.py") and name not in mentioned
    ]
    assert not dead


def _mentions(path: Path) -> set[str]:
    """Return the dotted names that a file imports or has in a string."""
    if path.suffix != ".py":
        return set(re.findall(r"waltap[\w.]*", path.read_text(encoding="utf-8")))
    own = next((name for name, file in modules().items() if file == path), "")
    found: set[str] = set()
    for node in nodes(path):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]{2,80}(:\w+)?", text):
                # commands and the like are loaded by name, relative to their package
                text = text.partition(":")[0]
                found |= {text, f"{own}.{text}", f"{own.rpartition('.')[0]}.{text}"}
    return found - {own}


LETTERS = {"d", "n", "f", "i", "c"}
KNOW_LETTERS = re.compile(
    r"^(framework/src/waltap/changes/decode/replica_identity"
    r"|plugins/(postgres|yugabyte)/src/\w+/identity(/\w+)?"
    r"|plugins/decoders/src/.*)\.py$"  # what their wire says of an old tuple
)


def test_replica_identities_are_asked_and_their_letter_is_read_nowhere_else() -> None:
    """``relation.identity`` is compared, looked up or matched by the identities themselves alone."""
    readers = [
        f"{named(path)}:{node.lineno}"
        for path in sources()
        if not KNOW_LETTERS.match(named(path))
        for node in nodes(path)
        if _reads_letter(node)
    ]
    assert not readers


def _reads_letter(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            constants = {
                each
                for side in sides
                for part in ast.walk(side)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                for each in part.value
            }
            return any(map(_is_identity, sides)) and bool(constants & LETTERS)
        case ast.Subscript(slice=key):
            return _is_identity(key)
        case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
            return _is_identity(key)
        case ast.Match(subject=subject):
            return _is_identity(subject)
    return False


def _is_identity(node: ast.AST) -> bool:
    """Return whether ``node`` is a relation's letter: ``x.identity``, or a name for it."""
    return (isinstance(node, ast.Attribute) and node.attr == "identity") or (
        isinstance(node, ast.Name) and node.id in ("identity", "relreplident")
    )


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("relation.identity == 'i'", True),
        ("relation.identity in ('d', 'c')", True),
        ("identity in 'fc'", True),
        ("known[relation.identity]", True),
        ("known.get(relation.identity)", True),
        ("match relation.identity:\n case 'f': pass", True),
        ("self.identity == other.identity", False),
        ("identity_evidence(relation.identity)", False),
        ("plan.identity is None", False),
    ],
)
def test_the_search_for_letters_finds_them(code: str, reads: bool) -> None:
    assert any(map(_reads_letter, ast.walk(ast.parse(code)))) is reads


def test_every_error_class_has_a_code_of_its_own() -> None:
    codes: dict[str, str] = {}
    for cls in error_classes(PACKAGES):
        assert "code" in vars(cls), f"{cls.__qualname__} has no code of its own"
        assert CODE.fullmatch(cls.code), cls
        first = codes.setdefault(cls.code, cls.__qualname__)
        assert first == cls.__qualname__, f"{cls.code}: {first} and {cls.__qualname__}"


def test_every_code_that_is_mentioned_is_an_errors() -> None:
    """In code, documents and tests: what a log line or a page names has a page of its own."""
    known = {cls.code for cls in error_classes(PACKAGES)}
    strange = {
        f"{named(path)}: {code}"
        for path, text in _texts()
        if path.suffix in {".py", ".md", ".toml"} and path.parts[-2] != "decisions"
        for code in set(CODE.findall(text)) - known
        if code[4] != "9"  # WT-x9xx: of examples, and of plugins in tests
    }
    assert not strange


def test_remedies_format_with_what_is_raised() -> None:
    """Every field of a remedy is given where the error is made, or by its own constructor."""
    wanted = {cls.__name__: (cls, fields_of(cls.remedy)) for cls in error_classes(PACKAGES)}
    wrong = []
    for path, node in ((path, node) for path in sources() for node in nodes(path)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in wanted:
                cls, fields = wanted[name]
                given = {keyword.arg for keyword in node.keywords}
                if None not in given and (missing := fields - given - _supplied(cls)):
                    wrong.append(f"{named(path)}:{node.lineno}: {name} lacks {sorted(missing)}")
    assert not wrong


def fields_of(remedy: str) -> set[str]:
    return {
        re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(remedy) if name
    }


def _supplied(cls: type[WaltapError]) -> set[str]:
    """Return the fields that constructors of the class pass on by themselves."""
    found: set[str] = set()
    for ancestor in cls.__mro__:
        if "__init__" not in vars(ancestor) or not issubclass(ancestor, WaltapError):
            continue
        path = modules()[ancestor.__module__]
        definition = next(
            node
            for node in nodes(path)
            if isinstance(node, ast.ClassDef) and node.name == ancestor.__name__
        )
        for node in ast.walk(definition):
            if isinstance(node, ast.Call):
                found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


def _texts() -> Iterator[tuple[Path, str]]:
    for path in committed():
        if path == Path(__file__):
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(MACHINE_PATH, id="path-of-one-machine"),
        pytest.param(REGISTRY, id="registry-address"),
        pytest.param(TOKEN, id="secret"),
    ],
)
def test_no_committed_file_holds_a(pattern: re.Pattern[str]) -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()[:100]}"
        for path, text in _texts()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path, text in _texts():
        if path.suffix != ".md":
            continue
        for target in re.findall(
            r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        ):
            file = target.split("#")[0]
            if "://" not in target and file and not (path.parent / file).exists():
                broken.append(f"{named(path)}: {target}")
        examples = re.findall(r"`(examples/[\w./-]+)", text)
        broken += [f"{named(path)}: {each}" for each in examples if not (ROOT / each).exists()]
    assert not broken


def test_modules_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    properties = (ROOT / "docs" / "reference" / "properties.md").read_text(encoding="utf-8")
    files = {
        module.as_posix()
        for package, source in PACKAGES.items()
        for module in (ROOT / source / package).rglob("*.py")
    }
    dotted = {path.rpartition("/src/")[2].removesuffix(".py").replace("/", ".") for path in files}
    dotted |= {name.removesuffix(".__init__") for name in dotted}
    named_files = re.findall(r"`([a-z_/]+\.py)`", page)
    named_modules = re.findall(r"`(waltap[a-z_]*(?:\.[a-z_]+)+)`", page)
    assert len(named_files) > 20
    gone = [name for name in named_files if not any(path.endswith(f"/{name}") for path in files)]
    gone += [name for name in named_modules if name not in dotted and f"`{name}`" not in properties]
    assert not gone


def test_every_document_is_reached_from_the_index() -> None:
    pages = {
        path for path, _ in _texts() if path.suffix == ".md" and path.is_relative_to(ROOT / "docs")
    }
    seen, waiting = set(), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page not in pages:
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert not {named(page) for page in pages - seen}


def test_pinned_packages_run_on_the_oldest_python() -> None:
    """A version that asks for a later patch stops the set-up on a system's own Python, such as 3.11.2."""
    text = (ROOT / "framework" / "pyproject.toml").read_text()
    oldest = re.findall(r">=([\d.]+)", tomllib.loads(text)["project"]["requires-python"])[0]
    pinned = set(pins())
    asked = {
        f"{each.name} {each.version}": SpecifierSet(each.metadata.get("Requires-Python") or "")
        for each in metadata.distributions()
        if canonicalize_name(each.name) in pinned
    }
    assert not {
        name: str(versions) for name, versions in asked.items() if f"{oldest}.0" not in versions
    }


def test_constraints_pin_one_exact_version_each() -> None:
    assert len(set(pins())) == len(pins())


def pins() -> list[str]:
    """Return the packages of constraints.txt, each of which has a version and hashes of its files."""
    text = (ROOT / "constraints.txt").read_text()
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    entries = text.replace(" \\\n", " ").splitlines()
    form = re.compile(r"([\w.-]+)==[\w.]+(?: +--hash=sha256:[0-9a-f]{64})+")
    matches = [form.fullmatch(entry) for entry in entries]
    assert all(matches), "run `python -m scripts.pin_hashes`"
    return [canonicalize_name(match[1]) for match in matches if match]


def test_every_dependency_is_pinned() -> None:
    """What our distributions and the development group require, and what that requires in turn."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    members = [(ROOT / folder).parent / "pyproject.toml" for folder in PACKAGES.values()]
    waiting = [Requirement(each) for each in group]
    for member in members:
        project = tomllib.loads(member.read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        waiting += map(Requirement, [*project["dependencies"], *itertools.chain(*extras)])
    pinned, seen = set(pins()), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith("waltap") or str(requirement) in seen:
            continue
        seen.add(str(requirement))
        assert name in pinned, f"{name}: give it a version in constraints.txt"
        for extra in ("", *requirement.extras):
            waiting += [
                found
                for found in map(Requirement, metadata.requires(name) or ())
                if found.marker is None or found.marker.evaluate({"extra": extra})
            ]


# --- imports -----------------------------------------------------------------------------------------


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for annotations count: what only types know of each other is one thing all the same."""
    graph = grimp.build_graph(*PACKAGES)
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := [module for module, imported in below.items() if not imported & below.keys()]:
        for module in leaves:
            del below[module]
    used = set().union(*below.values())
    assert sorted(module for module in below if module in used) == []


# --- what nobody calls ---------------------------------------------------------------------------

KIT = "waltap_testing"
OF_LIBRARIES = {"emit", "format_commands", "format_epilog", "on_broken_pipe"}
"""Methods that a library calls: of `logging.Handler`, of typer's groups and commands, of rich's console."""
OF_LIBRARIES |= {"streamReader", "initialOffset", "latestOffset", "getDefaultReadLimit"}
OF_LIBRARIES |= {"prepareForTriggerAvailableNow", "reportLatestOffset"}
"""And of data sources, which Spark calls."""
OF_LIBRARIES |= {
    "do_GET",
    "do_HEAD",
    "do_POST",
    "service_actions",
    "handle_error",
    "version_string",
}
OF_LIBRARIES |= {"log_message"}
"""And of `http.server`."""
ASKED_BY_FIELDS = {"DecoderCapabilities"}
"""Classes whose fields are read by `dataclasses.fields`, for a page."""
CONTRACTS = ("Capabilities", "Context", "Spec")
"""Endings of classes whose fields somebody must read."""


def _own_sources() -> list[Path]:
    """Return the sources but the kit's, whose callers are authors."""
    return [path for path in sources() if KIT not in path.parts]


def _public_names() -> set[str]:
    """Return what packages name in ``__all__``, and what pages for users and authors name in code."""
    found: set[str] = set()
    for path in _own_sources():
        if path.name == "__init__.py":
            found |= {
                constant.value
                for node in tree(path).body
                if isinstance(node, ast.Assign)
                if any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
                for constant in ast.walk(node.value)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
            }
    for path, text in _texts():
        if path.suffix == ".md" and "reference" not in path.parts:
            text = " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
        elif not (path.is_relative_to(ROOT / "examples") or path.suffix == ".tmpl"):
            continue
        found |= set(re.findall(r"\w+", text))
    return found


def _read_names() -> set[str]:
    """Return every name that production code reads: loaded, matched, or in a short string."""
    found: set[str] = set()
    for path in _own_sources():
        listed = {
            id(inner)
            for node in nodes(path)
            if isinstance(node, ast.Assign)
            if any(
                isinstance(t, ast.Name) and t.id in {"__all__", "__slots__"} for t in node.targets
            )
            for inner in ast.walk(node)
        }
        for node in nodes(path):
            if id(node) in listed:
                continue
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    found.add(name)
                case ast.MatchClass(kwd_attrs=names):
                    found |= set(names)
                case ast.Constant(value=str(text)) if len(text) < 80:
                    found |= set(re.findall(r"\w+", text))
    return found


def _defined(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Give every public function, class, method and constant of a module, and fields of contracts."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        for name in _bound_names(node) if isinstance(node, ast.Assign) else ():
            yield name, node
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                yield member.name, member
            elif (
                isinstance(member, ast.AnnAssign)
                and isinstance(member.target, ast.Name)
                and node.name.endswith(CONTRACTS)
                and node.name not in ASKED_BY_FIELDS
            ):
                yield member.target.id, member


def test_nothing_is_public_that_only_tests_call() -> None:
    """A function, class, method or field of a contract has a reader in production code, is named by a
    package or a page as something to use, or is called by its decorator's owner."""
    known = _read_names() | _public_names() | OF_LIBRARIES
    dead = [
        f"{named(path)}:{node.lineno} {name}"  # type: ignore[attr-defined]
        for path in _own_sources()
        for name, node in _defined(path)
        if not name.startswith("_") and name not in known
        if not getattr(node, "decorator_list", ()) or _is_plain(node)
    ]
    assert not dead


def _is_plain(node: ast.AST) -> bool:
    """Return whether no decorator of a definition registers it somewhere."""
    plain = {
        "property",
        "classmethod",
        "staticmethod",
        "abc.abstractmethod",
        "contextmanager",
        "cache",
    }
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
    return all(each in plain or each.startswith(("dataclass", "lru_cache")) for each in decorators)


def test_only_its_own_methods_change_the_state_of_a_run() -> None:
    """A run, its state, writer, stages and branches have transitions; no other object assigns attributes."""
    owners = {
        "run",
        "state",
        "delivery",
        "stages",
        "branch",
        "connector",
        "memory",
        "dead_letters",
    }
    assigned = [
        f"{named(path)}:{node.lineno} {ast.unparse(node)}"
        for path in sources()
        if "pipeline" in path.parts
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value).rpartition(".")[2].lstrip("_") in owners
    ]
    assert not assigned


def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 writes them into ids, which pytest from 9.2 on does not take."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.partition("@")[2]


def test_every_mutant_applies_and_names_tests_that_exist() -> None:
    """A mutant that no longer fits the code proves nothing."""
    from tests.mutants.__main__ import read_mutant

    faults = []
    for path in sorted((ROOT / "tests/mutants").glob("*.patch")):
        fits = run_program("git", "apply", "--check", path, code=None, cwd=ROOT)
        faults += [f"{path.stem}: {fits.stderr}"] if fits.returncode else []
        tests = [word for words in read_mutant(path).tests.values() for word in words]
        named = [word.partition("::")[0] for word in tests if word.startswith("tests/")]
        faults += [f"{path.stem}: no {name}" for name in named if not (ROOT / name).exists()]
        faults += [] if named else [f"{path.stem}: names no tests"]
    assert not faults
