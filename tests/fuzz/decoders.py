"""Feeds damaged and random input to a decoder: messages or DecodeError may come out, nothing else.

    python -m tests.fuzz.decoders NAME [--seed N] [--inputs N]

runs until stopped (or N inputs) and prints the seed of what fails. One input is a recorded session
of which one frame, or several, were changed; the decoder must answer within a second.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable

from tests.harness.captures import READERS, decoderbufs, sessions, yboutput

from waltap.changes.decode import Decoder, Frame
from waltap.errors import DecodeError

SECONDS_PER_INPUT = 1.0

SUBJECTS: dict[str, dict[str, Callable[[], Decoder]]] = {
    "pgoutput": {name: make for name, make in READERS.items() if "pgoutput" in name},
    "yboutput": {"pgoutput_v1": yboutput, "pgoutput_v1_root": yboutput},
    "wal2json": {name: make for name, make in READERS.items() if "wal2json" in name},
    "decoderbufs": {"decoderbufs": decoderbufs},
}
TOKENS = [
    b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"t\0\0\0\x01", b"n",
    b"u", b"b", b"N", b"K", b"O", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN",
    b"-0", b"1e999", b"\xc3\x28", b'"value":', b'{"action":"B"}', b"]}", b"\x0a\x00", b"\x20\x09",
    b"9" * 5000, b"[" * 500,
]  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with a few random changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(7)
        if what == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif what == 1 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif what == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif what == 3:
            out[at:at] = rng.choice(TOKENS)
        elif what == 4:
            out[at:at] = out[at // 2 : at]
        elif what == 5:
            del out[at:]
        else:
            out[at : at + 4] = rng.randrange(1 << 32).to_bytes(4, "big")
    return bytes(out)


def session(frames: list[Frame], rng: random.Random) -> list[Frame]:
    """Return a session with something wrong in it, now and then in its order, too."""
    chosen = list(frames[: rng.randrange(1, len(frames) + 1)])
    how = rng.randrange(10)
    if how == 0:
        rng.shuffle(chosen)
    elif how == 1:
        del chosen[rng.randrange(len(chosen))]
    elif how == 2:
        chosen[-1] = (chosen[-1][0], rng.randbytes(rng.randrange(80)))
    else:
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(max(0, len(chosen) - 3), len(chosen))
            lsn, data = chosen[at]
            chosen[at] = lsn, damaged(data, rng)
    return chosen


def attempt(name: str, seed: int) -> str:
    """Feed the input of ``seed``; return what came of it.

    Raises: AssertionError for an answer that took too long, and whatever a decoder wrongly raises.
    """
    rng = random.Random(seed)
    recording, make = rng.choice(list(SUBJECTS[name].items()))
    frames = session(rng.choice(list(sessions(recording).values())), rng)
    result, seconds = _answer(make, frames)
    if seconds >= SECONDS_PER_INPUT:  # or garbage of all tests before was collected meanwhile
        result, seconds = _answer(make, frames)
    assert seconds < SECONDS_PER_INPUT, f"seed {seed} took {seconds:.2f} s"
    return result


def _answer(make: Callable[[], Decoder], frames: "list[Frame]") -> tuple[str, float]:
    """Return what came of ``frames``, and the seconds of the processor: a busy machine is no decoder's fault."""
    begun = time.thread_time()
    try:
        make().feed(frames)
        result = "messages"
    except DecodeError as error:
        assert str(error)
        result = "refused"
    return result, time.thread_time() - begun


def run(name: str, seeds: range) -> dict[str, int]:
    """Try every seed; return counts of results. The seed of what fails is noted on the error."""
    counts = {"messages": 0, "refused": 0}
    for seed in seeds:
        try:
            counts[attempt(name, seed)] += 1
        except BaseException as error:
            error.add_note(f"{name}: seed {seed}")
            raise
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SUBJECTS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 40))
    parser.add_argument("--inputs", type=int, default=0, help="0: until stopped")
    given = parser.parse_args()
    done, block = 0, 1000
    while not given.inputs or done < given.inputs:
        size = min(block, given.inputs - done) if given.inputs else block
        first = given.seed + done
        print(first, run(given.name, range(first, first + size)), flush=True)
        done += size


if __name__ == "__main__":
    sys.exit(main())
