"""What a cache keeps."""

from hypothesis import given
from hypothesis import strategies as st

from waltap.base.cache import BoundedDict


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_a_cache_never_exceeds_its_bound_and_has_the_newest(keys, most):
    cache = BoundedDict[int, int](most)
    for number, key in enumerate(keys):
        cache[key] = number
        assert len(cache) <= most
        assert cache[key] == number


def test_a_known_key_is_replaced_and_a_new_one_clears_a_full_cache():
    cache = BoundedDict[str, int](2)
    cache["a"], cache["b"] = 1, 2
    cache["b"] = 3
    assert cache == {"a": 1, "b": 3}
    cache["c"] = 4
    assert cache == {"c": 4}
