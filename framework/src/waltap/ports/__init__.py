"""Define the contracts of plugins.

Sources, snapshots, sinks, signals, offsets and their specs. Beside the contracts are waltap's own
small implementations: the sinks `jsonl` and `terminal`, the offset store of files, filters.
"""
