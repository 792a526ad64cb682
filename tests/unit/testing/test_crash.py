"""Kills of the kit: where they may come."""

from waltap.ports.specs import lazy
from waltap_kafka.sink import KafkaSink
from waltap_testing.crash import own_files


def test_a_plugin_has_its_own_native_calls_however_its_spec_names_it():
    assert own_files(lazy("waltap_kafka.sink:KafkaSink")) == own_files(KafkaSink)
