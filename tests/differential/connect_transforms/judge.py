"""Java's transforms, as judges of ours: the same records through both."""

from collections.abc import Sequence
from typing import Any

from tests.differential.connect_transforms.form import read_record, written_record
from tests.differential.transforms import asked

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.encoders.format.record_transform import RecordTransformContext, RecordUnfit
from waltap.plugins.host import Host
from waltap.ports.specs import RecordTransformSpec, TransformSpec

HOST = Host()

Question = dict[str, Any]
"""``class``, ``config``, and the ``record`` as `written_record` writes it."""

Answer = dict[str, Any]
"""``record``, ``dropped`` or ``error``."""


def judged(questions: Sequence[Question]) -> list[Answer]:
    """Return what the classes answer, in order. Raises: subprocess errors."""
    found = asked({**each, "records": [each["record"]]} for each in questions)
    return [_answer(each) for each in found]


def _answer(found: dict[str, Any]) -> Answer:
    if "error" in found:
        return {"error": found["error"]}
    return {"record": found["records"][0]} if found["records"] else {"dropped": True}


def ours(question: Question) -> Answer:
    """Return what our transform of the class's name answers."""
    spec = HOST.find(TransformSpec, question["class"])
    assert isinstance(spec, RecordTransformSpec), question["class"]
    capture = CaptureRules(CaptureProperties.model_validate({"topic.prefix": "t"}))
    context = RecordTransformContext(label=spec.name, capture=capture)
    try:
        properties = None
        if spec.properties is not None:
            properties = spec.properties.model_validate(question["config"])
        transform = spec.factory(properties, context)
        found = transform([read_record(question["record"])])
        if not found:
            return {"dropped": True}
        (record,) = found
        return {"record": written_record(record)}
    except (RecordUnfit, ValueError) as error:
        return {"error": str(error)}


def same(one: Answer, other: Answer) -> bool:
    """Return whether Java's answer and ours are alike: errors are, whatever they say. One of Java's we do not
    share: its mask of a decimal has no scale, so that nothing could write it where the column has one."""
    if "mismatching scale" in one.get("error", ""):
        return "error" not in other
    if "error" in one or "error" in other:
        return "error" in one and "error" in other
    return repr(_plain(one)) == repr(_plain(other))


def _plain(value: Any) -> Any:
    """Return ``value`` with the members of objects in one order: 1 is not 1.0, and NaN is itself."""
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
