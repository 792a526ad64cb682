"""Dead letters of a pipeline in a test: what is kept, and the command that works on them."""

import subprocess

from tests.harness.pipeline import PipelineRig

from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.store import DeadLetterStore

KEEP = {"errors.tolerance": "dead_letter"}


def dead_letters_of(pipeline: PipelineRig) -> list[DeadLetter]:
    return DeadLetterStore(pipeline.offset_file.parent / "dead-letters").all()


def dead_letters(pipeline: PipelineRig, verb: str, *rest: str) -> subprocess.CompletedProcess[str]:
    return pipeline.command("dead-letters", verb, "FILE", *rest)


def verified(pipeline: PipelineRig, *rest: str) -> subprocess.CompletedProcess[str]:
    return pipeline.command("verify", "FILE", "--patience", "0", *rest)
