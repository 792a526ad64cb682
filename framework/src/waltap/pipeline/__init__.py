"""Run pipelines: the engine, its stages, and their state."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.pipeline.engine.engine import Engine
    from waltap.pipeline.runtime.run_state import Limits

__all__ = ["Engine", "Limits"]

if not TYPE_CHECKING:
    # The properties of this package are read for help and checks, without an engine.
    __getattr__ = on_first_use(__name__)
