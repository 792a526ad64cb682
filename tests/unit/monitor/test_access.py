"""Who may ask the status page what."""

import pytest

from waltap.errors import ConfigurationError
from waltap.services.monitor.server import (
    RequestAccess,
    address_of,
    is_loopback,
    load_or_make_token,
)

HERE = {"host": "127.0.0.1:8083"}
JSON = {"content-type": "application/json"}


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "db.example.com", "")))


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", HERE, None),
        ("GET", {"host": "[::1]:8083"}, None),
        ("GET", {"host": "evil.example.com"}, 421),
        ("GET", {"host": "["}, 421),
        ("GET", HERE | {"origin": "http://127.0.0.1:8083"}, None),
        ("GET", HERE | {"origin": "http://evil.example.com"}, 403),
        ("GET", HERE | {"origin": "http://["}, 403),
        ("POST", HERE | JSON, 401),
        ("POST", HERE | JSON | {"authorization": "Bearer hidden-77"}, None),
        ("POST", HERE | JSON | {"authorization": "Bearer "}, 401),
        ("POST", HERE | JSON | {"authorization": "Bearer hidden-7"}, 401),
        ("DELETE", HERE, 401),
        ("HEAD", HERE, None),
        ("POST", HERE | {"content-type": "text/plain"}, 415),
    ],
)
def test_a_page_elsewhere_reaches_nothing(method, headers, status):
    """Nor does another user of this machine change anything."""
    access = RequestAccess("127.0.0.1", lambda: "hidden-77", open_reads=True)
    refusal = access.refusal(method, headers, None, open_to_all=False)
    assert (refusal and refusal[0]) == status


@pytest.mark.parametrize(
    ("bearer", "token", "status"),
    [
        ("", None, 401), ("", "wrong-one", 401), ("", "hidden-77", None), ("hidden-77", None, None),
        ("hidden-7", None, 401),
    ],
)  # fmt: skip
def test_beyond_this_machine_a_token_is_needed(bearer, token, status):
    access = RequestAccess("0.0.0.0", lambda: "hidden-77", open_reads=False)
    asked = {"host": "db.example.com:8083"}
    asked |= {"authorization": f"Bearer {bearer}"} if bearer else {}
    refusal = access.refusal("GET", asked, token, open_to_all=False)
    assert (refusal and refusal[0]) == status
    assert access.refusal("GET", asked, token, open_to_all=True) is None


def test_the_token_of_the_state_folder_is_its_owners_and_stays(tmp_path):
    path = tmp_path / "state/http-token"
    token = load_or_make_token(path)
    assert len(token) >= 32
    assert load_or_make_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("\n")  # a full disk
    assert len(load_or_make_token(path)) >= 32
    access = RequestAccess("127.0.0.1", lambda: "", open_reads=True)
    for headers in (HERE | JSON, HERE | JSON | {"authorization": "Bearer "}):
        refusal = access.refusal("POST", headers, "", open_to_all=True)
        assert (refusal and refusal[0]) == 401


def test_addresses():
    assert address_of("127.0.0.1:8083") == ("127.0.0.1", 8083)
    assert address_of(":9") == ("127.0.0.1", 9)
    assert address_of("[::1]:9") == ("::1", 9)
    for text in ("8083", "host", "h:x", "h:99999", ""):
        with pytest.raises(ConfigurationError):
            address_of(text)
