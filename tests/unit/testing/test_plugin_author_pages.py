"""The pages for plugin authors say what the code says."""

import ast
import importlib
import io
import re
import tokenize

import pytest
from tests.unit.testing.quoted import PAGES, ROOT, filled

DECODER = ROOT / "examples/plugins/waltap-testdecoding/src/waltap_testdecoding/decoder.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_code_is_that_of_the_files(page):
    assert page.read_text() == filled(page.read_text()), "run python -m tests.unit.testing.quoted"


def test_the_decoder_has_no_more_than_100_lines_of_code():
    """Code: what is neither blank, comment, docstring nor import."""
    source = DECODER.read_text()
    lines, rest = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            rest |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            rest |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*nothing, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    assert 50 < len(lines - rest) <= 100


def test_every_suite_is_in_the_table():
    page = (ROOT / "docs/plugin-authors/test-a-plugin.md").read_text()
    rows = re.findall(r"`(waltap_testing\.suites\.\w+)` \| `(\w+)`, `(\w+)` \| `(\w+)` \|", page)
    folder = ROOT / "plugins/testing/src/waltap_testing/suites"
    assert {module.rpartition(".")[2] for module, *_ in rows} == {
        path.stem for path in folder.glob("[a-z]*.py")
    }
    for name, suite, rig, fixture in rows:
        module = importlib.import_module(name)
        assert hasattr(getattr(module, suite), fixture)
        assert hasattr(module, rig)
