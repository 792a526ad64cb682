"""CloudEvents, structured and binary, with data in JSON or Avro."""
