"""What plugin authors import is named by the packages, and is what the name says."""

import importlib
import inspect

import pytest

PACKAGES = [
    "waltap",
    "waltap.changes.capture",
    "waltap.config",
    "waltap.changes.decode",
    "waltap.encoders.format",
    "waltap.changes.mapping",
    "waltap.ports.notifications",
    "waltap.ports.offsets",
    "waltap.ports.signals",
    "waltap.ports.sink",
    "waltap.ports.snapshot",
    "waltap.ports.source",
    "waltap.changes.transactions",
    "waltap.ports.transforms",
    "waltap_testing",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_is_no_module(package):
    """A module of the same name would take its place once somebody imports it."""
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert not inspect.ismodule(getattr(module, name)), name
        with pytest.raises(ImportError):
            importlib.import_module(f"{package}.{name}")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind
