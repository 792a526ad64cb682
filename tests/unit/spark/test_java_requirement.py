"""No Java or pyspark, or the wrong one, is said in words before Spark says it in a stack trace."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from waltap_spark import java as requirement
from waltap_spark.errors import JavaMissing, PysparkUnfit
from waltap_spark.java import _require_fit as require_fit
from waltap_spark.java import require_java, require_pyspark


def program(folder: Path, script: str) -> Path:
    """Put a ``java`` there that is a shell script."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"WT-5201 .*JAVA_HOME=.* has no bin/java.*apt-get"):
        require_java()


def test_no_java_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on PATH"):
        require_java()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="is version 11"):
        require_java()


def test_a_reduced_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'openjdk version \"17.0.2\"' >&2; echo java.base@17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"without the module jdk\.incubator\.vector"):
        require_java()


def test_a_whole_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo 'openjdk version \"21\"' >&2; echo jdk.incubator.vector@21"
    path = program(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == path


def test_a_java_that_was_killed_is_asked_again_and_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; kill -9 $$; }}"
    path = program(tmp_path, f"{killed}; echo 'version \"21\"' >&2; echo jdk.incubator.vector@21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == path
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    require_fit.cache_clear()
    with pytest.raises(JavaMissing, match="-version was killed by signal 9"):
        require_java()


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.4.0", "5.0.0", "odd"])
def test_a_pyspark_of_another_generation_is_refused(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirement, "version", lambda _name: found)
    told = rf"WT-5210 pyspark is version {found}.*pip install 'pyspark>=4\.1,<4\.3'"
    with pytest.raises(PysparkUnfit, match=told):
        require_pyspark()


@pytest.mark.parametrize("found", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_a_pyspark_of_a_generation_that_serves_is_taken(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirement, "version", lambda _name: found)
    assert require_pyspark() == found


def test_no_pyspark_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirement, "version", none)
    with pytest.raises(PysparkUnfit, match=r"WT-5210 pyspark is not installed.*pip install"):
        require_pyspark()
