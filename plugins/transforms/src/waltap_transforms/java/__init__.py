"""Java's numbers, dates, literals, hashes and patterns.

Transforms of Kafka Connect and Debezium depend on their exact results.
"""
