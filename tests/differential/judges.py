"""Java processes of the peer that judge: one of each kind answers all questions of this process.

To start one and to warm it up takes longer than what a test asks.
"""

import atexit
import functools
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from typing import IO

from tests.differential.engines import PEER

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It runs for seconds: better code would come too late."""


def asked(kind: str, questions: Iterable[str], class_path: str = "") -> Iterator[str]:
    """Yield what a judge (``--converters``, ``--transforms``) answers to each question, a line for a line.

    Raises: ChildProcessError when it ends before.
    """
    lines = list(questions)
    judge = _started(kind, class_path)
    assert judge.stdin is not None
    assert judge.stdout is not None
    given = "".join(f"{line}\n" for line in lines)
    asking = threading.Thread(target=_ask, args=(judge.stdin, given), daemon=True)
    asking.start()
    for _ in lines:
        while (answer := judge.stdout.readline()) and answer[0] != "{":
            pass
        if not answer:
            raise ChildProcessError(f"{PEER} {kind} ended")
        yield answer
    asking.join()


def _ask(stdin: IO[str], text: str) -> None:
    stdin.write(text)
    stdin.flush()


@functools.cache
def _started(kind: str, class_path: str) -> "subprocess.Popen[str]":
    """Start a judge, which ends with us."""
    judge = subprocess.Popen(
        [PEER, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={
            **os.environ,
            "PEER_LOG_LEVEL": "OFF",
            "PEER_JAVA_OPTS": OPTIONS,
            "PEER_CLASS_PATH": class_path,
        },
    )

    def end() -> None:
        judge.kill()
        judge.communicate()

    atexit.register(end)
    return judge
