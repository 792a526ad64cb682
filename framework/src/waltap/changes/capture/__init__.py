"""Select the tables, topics and column transforms of a pipeline."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules
    from waltap.changes.capture.properties import CaptureProperties
    from waltap.changes.capture.topic_naming import TopicNaming

__all__ = ["CaptureProperties", "CaptureRules", "TopicNaming"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
