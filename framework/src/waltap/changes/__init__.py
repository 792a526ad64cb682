"""Hold the algebra of changes: decoded messages, capture, types, events, transactions. Sans-IO."""
