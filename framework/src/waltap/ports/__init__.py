"""Define the contracts of plugins: sources, snapshots, sinks, signals, offsets and their specs."""
