"""What plugin authors import is named by the packages, and is what the name says."""

import importlib
import inspect

import pytest

PACKAGES = [
    "waltap",
    "waltap.capture",
    "waltap.config",
    "waltap.decode",
    "waltap.format",
    "waltap.mapping",
    "waltap.notifications",
    "waltap.offsets",
    "waltap.signals",
    "waltap.sink",
    "waltap.snapshot",
    "waltap.source",
    "waltap.transactions",
    "waltap.transforms",
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
