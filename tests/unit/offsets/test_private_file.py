"""Files and folders of a pipeline's state are its owner's alone, whatever the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltap.base.files.durable_file import close_to_others, private, private_folder, replace_durably
from waltap.base.files.store import FileStore
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.services.recording.file import RecordingMark, RecordingWriter


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return what others may see of ``folder`` and in it."""
    paths = [folder, *folder.rglob("*")]
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


def test_what_is_made_is_private_with_the_folders_that_were_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "a/b/c")
    os.close(private(tmp_path / "a/b/c/file", os.O_WRONLY | os.O_CREAT))
    replace_durably(tmp_path / "a/d/offset.json", b"{}")
    with RecordingWriter(tmp_path / "a/monday.recording") as recording:
        recording.put(RecordingMark(1))
    assert open_to_others(tmp_path / "a") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_there_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "relations").write_text("a")
    with open(tmp_path / "relations", "a", opener=private) as file:
        file.write("b")
    assert (tmp_path / "relations").read_text() == "ab"
    assert (tmp_path / "relations").stat().st_mode & 0o777 == 0o600


def test_a_state_folder_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / ".waltap", tmp_path / "elsewhere"
    (state / "shop/spill").mkdir(parents=True)
    (state / "shop/spill/stream-7-1.spill").touch()
    (state / "shop/lock").touch()
    elsewhere.touch()
    (state / "shop/link").symlink_to(elsewhere)
    with PipelineLock(state / "shop"):
        (state / "shop/link").unlink()
        assert open_to_others(state) == []
    assert elsewhere.stat().st_mode & 0o077


def test_a_folder_with_more_than_states_of_pipelines_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "shop.toml").touch()
    with PipelineLock(tmp_path / "shop"):
        assert open_to_others(tmp_path / "shop") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_files_in_a_private_folder_are_private_and_elsewhere_the_umask_decides(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "state").mkdir(mode)
    store = FileStore(str(tmp_path / "state/spool"), None)
    store.lock("lock")
    store.publish("manifests/1", b"1")
    store.put("data/1", b"1")
    with store.create("data/2") as file:
        file.write(b"2")
    store.unlock()
    found = open_to_others(tmp_path / "state")
    assert bool(found) == (mode == 0o755)
    assert len(found) in {0, 7}, found  # each but the lock
    assert close_to_others(tmp_path / "state") is None
    assert open_to_others(tmp_path / "state") == []
