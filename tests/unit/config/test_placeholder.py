"""Secrets in profiles: filled in from the environment and from files."""

from pathlib import Path

import pytest
from waltap.config.placeholder import SecretMissing, fill, holds_placeholder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WALTAP_TEST_SECRET", "s3cret")
    monkeypatch.setenv("WALTAP_TEST_EMPTY", "")
    (tmp_path / "password").write_text("from file\n")
    (tmp_path / "secrets.properties").write_text("db.user=ann\ndb.password=p\\u00e4ss\n")
    return tmp_path


@pytest.mark.parametrize(
    ("value", "filled", "secrets"),
    [
        pytest.param("plain", "plain", (), id="none"),
        pytest.param("${env:WALTAP_TEST_SECRET}", "s3cret", ("s3cret",), id="env"),
        pytest.param("${env:WALTAP_TEST_EMPTY}", "", ("",), id="empty-is-a-value"),
        pytest.param("${file:password}", "from file", ("from file",), id="file-relative"),
        pytest.param("${file:secrets.properties:db.password}", "päss", ("päss",), id="key-of-file"),
        pytest.param(
            "${file:secrets.properties:db.user}:${env:WALTAP_TEST_SECRET}@host",
            "ann:s3cret@host",
            ("ann", "s3cret"),
            id="two-in-a-text",
        ),
        pytest.param("$1 ${1} $${x}", "$1 ${1} $${x}", (), id="not-placeholders"),
    ],
)
def test_placeholders_are_filled_in(
    folder: Path, value: str, filled: str, secrets: tuple[str, ...]
) -> None:
    assert fill(value, folder) == (filled, secrets)
    assert holds_placeholder(value) is bool(secrets)


def test_an_absolute_path_is_taken_as_it_is(folder: Path) -> None:
    assert fill(f"${{file:{folder / 'password'}}}", Path("/nowhere"))[0] == "from file"
    key = f"${{file:{folder / 'secrets.properties'}:db.user}}"
    assert fill(key, Path("/nowhere"))[0] == "ann"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param("${env:WALTAP_TEST_NOT_SET}", "WALTAP_TEST_NOT_SET is not set", id="env"),
        pytest.param("${file:absent}", "absent cannot be read: No such file", id="file"),
        pytest.param("${file:secrets.properties:x}", "has no key 'x'", id="key"),
        pytest.param(
            "${vault:db/password}", "no secrets provider is called 'vault'", id="provider"
        ),
    ],
)
def test_what_is_missing_is_named(folder: Path, value: str, reason: str) -> None:
    with pytest.raises(SecretMissing, match=reason):
        fill(value, folder)
