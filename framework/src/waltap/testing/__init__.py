"""The kit for plugin authors: conformance suites, a scripted walsender, recordings and faults.

Nothing heavy is imported here: pytest loads `waltap.testing.pytest_plugin` in every run where
waltap is installed. Import what you need from its module:

    waltap.testing.decoder_suite        DecoderRig, DecoderSuite
    waltap.testing.sink_suite           SinkRig, SinkSuite
    waltap.testing.walsender            Walsender and the steps of its scripts
    waltap.testing.recording            frames with the messages they mean, as JSON lines
"""
