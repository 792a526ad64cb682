"""Files below one folder, as another process has them."""

import pickle

from waltap.base.files.store import FileStore


def test_a_store_goes_to_another_process(tmp_path):
    """Tasks of Spark read by one."""
    store = FileStore(str(tmp_path))
    store.publish("one", b"first")
    found: FileStore = pickle.loads(pickle.dumps(store))
    assert found.read("one") == b"first"
    found.publish("two", b"second")
    assert store.read("two") == b"second"
