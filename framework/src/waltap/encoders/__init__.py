"""Turn events and rows into bytes. Sans-IO."""
