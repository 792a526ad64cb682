"""The schema registry: a client of Confluent's REST interface."""
