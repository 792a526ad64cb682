"""Kills of the kit: where they may come."""

from waltap.ports.specs import lazy
from waltap_kafka.sink import KafkaSink
from waltap_testing.crash import MOST_KILLS, chosen, own_files


def test_a_plugin_has_its_own_native_calls_however_its_spec_names_it():
    assert own_files(lazy("waltap_kafka.sink:KafkaSink")) == own_files(KafkaSink)


def test_a_loop_of_native_calls_has_few_kills_and_hides_no_change_of_a_file():
    steps = ["native call execute at store.py:7"] * 3_000
    steps[1_234] = "os.rename"
    kills = chosen(steps)
    assert 1_235 in kills
    assert len(kills) <= MOST_KILLS + 1
