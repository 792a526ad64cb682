"""Turn events and rows into bytes: JSON and the contract of formats. Sans-IO."""
