"""Files of the pipeline's state folder that cannot be used are told as that."""

from pathlib import Path

from waltap.pipeline.lock import state_unusable


def failure(path: Path) -> OSError:
    try:
        path.read_bytes()
    except OSError as error:
        return error
    raise AssertionError(path)


def test_only_what_lies_in_the_folder_is_the_folders_fault(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "spill").mkdir(parents=True)
    found = state_unusable(failure(state / "spill"), state)
    assert found is not None
    assert found.problem == f"{state / 'spill'} cannot be used: Is a directory"
    assert str(state) in found.advice()
    assert state_unusable(failure(tmp_path / "elsewhere"), state) is None
    assert state_unusable(OSError(28, "No space left on device"), state) is None
    assert state_unusable(ValueError("x"), state) is None
