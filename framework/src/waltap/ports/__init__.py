"""Define the contracts of plugins.

Sources, snapshots, sinks, signals, offsets and their specs.
"""
