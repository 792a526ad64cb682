"""What `waltap init` writes of the address of a sink."""

import pytest
from waltap.cli.init import without_password


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("postgresql://u:secret@h/db", "postgresql://u:*@h/db"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:*@h/db"),
        ("postgresql://u@srv:p@ss:w@h:5432/db?x=a:b@c", "postgresql://u@srv:*@h:5432/db?x=a:b@c"),
        ("http://u:${env:A}tail@h", "http://u:*@h"),
        ("http://u:${env:A}${env:B}@h", "http://u:${env:A}${env:B}@h"),
        ("postgresql://u@[::1]:5432/d@b", "postgresql://u@[::1]:5432/d@b"),
        ("http://h:80?to=a@b", "http://h:80?to=a@b"),
        ("sqlite:///a:b@c/d.db", "sqlite:///a:b@c/d.db"),
    ],
)
def test_no_part_of_a_password_is_written(given: str, written: str) -> None:
    assert without_password(given) == written.replace("*", "${env:WALTAP_SINK_PASSWORD}")
