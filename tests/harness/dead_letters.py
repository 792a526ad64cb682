"""Dead letters of a pipeline in a test: what is kept, and the command that works on them."""

import json
import subprocess
from typing import Any

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig

from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.store import LetterStore

KEEP = {"errors.tolerance": "dead_letter"}


def letters_of(pipeline: PipelineRig) -> list[DeadLetter]:
    return LetterStore(pipeline.offset_file.parent / "dead-letters").letters()


def dead_letters(pipeline: PipelineRig, verb: str, *rest: str) -> subprocess.CompletedProcess[str]:
    """Run ``waltap dead-letters`` on the profile of the pipeline."""
    return _command(pipeline, "dead-letters", verb, "p.toml", *rest)


def verified(pipeline: PipelineRig, *rest: str) -> subprocess.CompletedProcess[str]:
    """Run ``waltap verify`` on it."""
    return _command(pipeline, "verify", "p.toml", "--patience", "0", *rest)


def write_profile(pipeline: PipelineRig) -> None:
    """Write what ``pipeline`` runs with as ``p.toml``, for commands."""
    settings = {"waltap.state.dir": "state", **pipeline.settings}
    own = {k.removeprefix("sink."): v for k, v in settings.items() if k.startswith("sink.")}
    others = {k: v for k, v in settings.items() if not k.startswith("sink.") and v is not None}
    tables = [("source", others), ("sink", own)] if not pipeline.outlets else [("source", others)]
    text = 'name = "p"\n'
    for name, table in tables:
        text += f"[{name}]\n" + _lines(table)
    for outlet in pipeline.outlets:
        text += "[[sinks]]\n" + _lines(outlet)
    (pipeline.folder / "p.toml").write_text(text)


def _command(pipeline: PipelineRig, *command: str) -> subprocess.CompletedProcess[str]:
    write_profile(pipeline)
    return waltap(*command, cwd=pipeline.folder, COLUMNS="300")


def _lines(table: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in table.items())
