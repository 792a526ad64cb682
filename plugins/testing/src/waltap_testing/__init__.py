"""The kit for plugin authors: conformance suites, a scripted walsender, recordings and faults.

Nothing heavy is imported here: pytest loads `waltap_testing.pytest_plugin` in every run where
waltap is installed. Import what you need from its module:

    *_suite       a class of tests per kind of plugin, and the rig that an author gives it
    recording     frames of output plugins with the messages they mean, as JSON lines
    walsender     a scripted server that speaks the replication protocol
    workload      transactions made by hand, and the batches an engine makes of them
    crash         processes that die at a chosen step
    damage        bad bytes, the same in every run
    limits        what a call costs
"""
