"""Records what Java's transforms answer, or looks for questions on which the two differ.

python -m tests.differential.connect_transforms record          # recorded.jsonl anew
python -m tests.differential.connect_transforms look SEED EACH  # EACH questions about every class
"""

import json
import sys

from tests.differential.connect_transforms.cases import questions
from tests.differential.connect_transforms.judge import judged, ours, same
from tests.differential.connect_transforms.recorded import EACH, RECORDED, SEED, SOURCE


def record() -> None:
    """Write the questions of `SEED` with the answers of the classes."""
    asked = list(questions(SEED, EACH))
    lines = [json.dumps({"source": SOURCE})]
    for question, answer in zip(asked, judged(asked), strict=True):
        lines.append(json.dumps({**question, "answer": answer}, ensure_ascii=False))
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(asked)} answers in {RECORDED}")


def look(seed: str, each: int) -> int:
    """Print differences; return how many there are."""
    asked = list(questions(seed, each))
    found = 0
    for question, answer in zip(asked, judged(asked), strict=True):
        given = ours(question)
        if not same(answer, given):
            found += 1
            print(json.dumps({**question, "java": answer, "ours": given}, ensure_ascii=False))
    print(f"{len(asked)} questions, {found} differences")
    return found


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record"]:
            record()
        case ["look", seed, each]:
            sys.exit(bool(look(seed, int(each))))
        case _:
            sys.exit(__doc__)
