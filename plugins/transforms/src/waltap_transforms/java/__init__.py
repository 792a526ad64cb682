"""Java's numbers, dates, literals and hashes.

Transforms of Kafka Connect and Debezium depend on their exact results.
"""
