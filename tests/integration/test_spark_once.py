"""``waltap spark apply --once``, run again and again: what nobody needs any more goes, as it does where a
process follows the log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.changelog import Database, batch, context, relation

from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
LONG_AGO = "20200101T000"


def apply_once(folder: Path, java: Path) -> None:
    given = ("grace.seconds=0", "changelog.retention.hours=1", "fold.min.rows=0", "fold.share=0")
    sets = [word for each in given for word in ("--set", each)]
    done = subprocess.run(
        [sys.executable, "-m", "waltap", "spark", "apply", "--once", "--master", "local[1]", *sets,
         "--changelog", str(folder / "log"), "--output", str(folder / "out")],
        capture_output=True, text=True, check=False, env={**os.environ, "JAVA_HOME": str(java)},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def files(folder: Path, pattern: str) -> int:
    return sum(1 for path in folder.glob(pattern) if path.is_file())


def test_runs_that_end_leave_no_more_behind_than_one_that_goes_on(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltap_sinks.changelog.sink.bucket_of", lambda _now: LONG_AGO)
    sink = ChangeLogSink(
        ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path, resumes=True)
    )
    sink.open()
    db, out = Database(), tmp_path / "out"
    for number in range(3):
        for more in range(3):
            if number or more:
                db.update(PEOPLE, ["1"], name=f"{number}{more}")
            else:
                db.insert(PEOPLE, ["1", "new"])
            sink.write(batch(db.commit()))
            sink.flush()
        apply_once(tmp_path, java)
    assert files(tmp_path, "log/manifests/**/*.json") == 1, "the newest alone stays"
    assert files(tmp_path, "log/segments/**/*.parquet") == 1
    assert files(out, "tables/public/people/current/**/*.parquet") == 1
    sink.close()
    apply_once(tmp_path, java)
    assert files(out, "_waltap/garbage/*.json") == 0
