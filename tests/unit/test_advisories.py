"""The audit by a folder of advisories, as OSV writes them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripts.advisories import Advisories, affects

RANGE = {"type": "ECOSYSTEM"}


@pytest.mark.parametrize(
    ("events", "inside", "outside"),
    [
        ([{"introduced": "0"}], ["0.1", "9"], []),
        ([{"introduced": "0"}, {"fixed": "1.2"}], ["0.1", "1.2rc1", "1.1.9"], ["1.2", "1.10"]),
        ([{"introduced": "1.9"}, {"last_affected": "1.10"}], ["1.9", "1.10"], ["1.8", "1.10.1"]),
        (
            [{"introduced": "1"}, {"fixed": "1.5"}, {"introduced": "2"}, {"fixed": "2.3"}],
            ["1.4", "2.0", "2.2.9"],
            ["0.9", "1.5", "1.9", "2.3"],
        ),
    ],
)
def test_a_range_is_what_lies_between_its_events(events, inside, outside):
    affected = {"ranges": [{**RANGE, "events": events}]}
    assert [v for v in inside if not affects(affected, v)] == []
    assert [v for v in outside if affects(affected, v)] == []


def test_versions_may_be_listed_and_commits_say_nothing():
    affected = {
        "versions": ["1.0.0", "not a version"],
        "ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}],
    }
    assert affects(affected, "1.0")
    assert not affects(affected, "1.1")


def record(name: str, modified: str, **more: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    events = [{"introduced": "0"}, {"fixed": "2"}]
    return {
        "id": f"TEST-{name}",
        "modified": modified,
        "affected": [{"package": package, "ranges": [{**RANGE, "events": events}]}],
        **more,
    }


def test_a_folder_is_read_with_its_age(tmp_path):
    (tmp_path / "vulns").mkdir()
    yaml = "id: TEST-y\nmodified: 2026-01-02T03:04:05Z\naffected:\n- package: {ecosystem: PyPI, name: Y.y}\n"
    (tmp_path / "vulns/y.yaml").write_text(f"{yaml}  versions: ['1']\n")
    for given in (
        record("a", "2026-03-01T00:00:00Z"),
        record("b", "2026-04-01T00:00:00Z", withdrawn="2026-04-02T00:00:00Z"),
    ):
        (tmp_path / f"{given['id']}.json").write_text(json.dumps(given))
    found = Advisories.read(tmp_path)
    assert found.of("A", "1.9") == ["TEST-a"]
    assert found.of("y-y", "1.0") == ["TEST-y"]
    assert found.of("a", "2.0") == found.of("b", "1") == found.of("c", "1") == []
    assert found.newest == datetime(2026, 3, 1, tzinfo=UTC)
    assert not found.stale(found.newest + timedelta(days=29))
    assert found.stale(found.newest + timedelta(days=31))


def test_a_folder_without_any_is_no_audit(tmp_path):
    with pytest.raises(ValueError, match="no advisories"):
        Advisories.read(tmp_path)
