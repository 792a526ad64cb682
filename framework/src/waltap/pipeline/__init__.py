"""Joins the stages: the engine, its limits, and what it is made of."""

from waltap.pipeline.engine import Engine
from waltap.pipeline.stop_conditions import Limits

__all__ = ["Engine", "Limits"]
