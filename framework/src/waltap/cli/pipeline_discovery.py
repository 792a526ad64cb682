"""The pipelines of a folder, and what each process that runs one says of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["PipelineInfo", "members", "profiles", "report"]

PROFILES = (".toml", ".properties", ".json")
SOURCE = re.compile(r"^\s*\[source\]|connector\.class|^\s*debezium\.source\.", re.MULTILINE)
"""What only a profile has: a folder may hold other files of these suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """One pipeline. ``origin`` is its profile, or its state folder; ``state_dir`` is None where the
    profile cannot be read, and ``problem`` says why."""

    name: str
    origin: Path
    state_dir: Path | None
    problem: str = ""


def members(folder: Path, host: "Host", set_: list[str] | None = None) -> list[PipelineInfo]:
    """Return the pipelines of a folder, by name: those of the profiles in it; where there are none, those
    that keep their state there."""
    from waltap.ports.offsets.state_folder import LOCK, OFFSET

    found = [_of_profile(path, host, set_) for path in sorted(profiles(folder))]
    if not found:
        found = [
            PipelineInfo(name=path.name, origin=path, state_dir=path)
            for path in sorted(folder.iterdir())
            if path.is_dir() and ((path / LOCK).exists() or (path / OFFSET).exists())
        ]
    return sorted(found, key=lambda each: each.name)


def report(member: PipelineInfo) -> dict[str, Any]:
    """Return what is known of a pipeline without asking its database: ``run`` is the status that the
    process which runs it gives, None where none does."""
    from waltap.services.control.protocol import PipelineNotRunning

    found: dict[str, Any] = {
        "pipeline": member.name,
        "origin": str(member.origin),
        "run": None,
        "stored_ms": None,
        "problem": member.problem,
    }
    if member.state_dir is None:
        return found
    try:
        found["run"] = run_of(member.state_dir)
    except PipelineNotRunning:
        found["stored_ms"] = _stored_ms(member.state_dir)
    except WaltapError as error:
        found["problem"] = error.problem
    return found


def run_of(state_dir: Path) -> dict[str, Any] | None:
    """Return the status of the pipeline whose state is in a folder. Raises: PipelineNotRunning,
    ControlSocketUnusable."""
    from waltap.services.control.client import ask
    from waltap.services.control.protocol import StatusRequest

    return ask(state_dir, StatusRequest()).status


def profiles(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are profiles."""
    for path in folder.iterdir():
        if path.suffix in PROFILES and path.is_file():
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            if SOURCE.search(text):
                yield path


def _of_profile(path: Path, host: "Host", set_: list[str] | None) -> PipelineInfo:
    from waltap.cli.profile_source import overrides, read
    from waltap.config.resolve import resolve

    try:
        raw = read(str(path))
        profile = resolve(raw, host, overrides=overrides(raw, set_), at_rest=True)
    except WaltapError as error:
        return PipelineInfo(name=path.stem, origin=path, state_dir=None, problem=error.problem)
    state = profile.engine.state_dir / profile.name
    return PipelineInfo(name=profile.name, origin=path, state_dir=state)


def _stored_ms(state_dir: Path) -> int | None:
    """Return when the last position was stored, None where there is none."""
    from waltap.ports.offsets.state_folder import OFFSET

    try:
        return (state_dir / OFFSET).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None
