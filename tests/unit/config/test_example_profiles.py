"""The profiles in examples/ are valid as they stand."""

from pathlib import Path

import pytest
from waltap.config.layers import load
from waltap.config.resolve import examine
from waltap.host import Host

EXAMPLES = Path(__file__).parents[3] / "examples" / "profiles"
FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_profile_resolves_without_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SHOP_PASSWORD", "INVENTORY_PASSWORD"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop-password").write_text("x\n")
    (tmp_path / "inventory.properties").write_text("password=x\n")
    raw = load(path)
    raw.folder = tmp_path
    for name, setting in raw.settings.items():
        if isinstance(setting.value, str) and "/run/secrets/" in setting.value:
            value = setting.value.replace("/run/secrets/", "")
            raw.settings[name] = type(setting)(name, value, setting.origin)
    sink = None if "sink" in raw.types else "jsonl:events.jsonl"
    assert examine(raw, Host(), sink=sink).warnings == ()


def test_every_example_is_in_the_list() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in FILES if f"`{path.name}`" not in text] == []
