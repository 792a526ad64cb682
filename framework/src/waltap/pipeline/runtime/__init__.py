"""Keep the state, limits, locks and channels of a run."""
