"""The Spark session and its JVM: settings, failures, exit codes."""
