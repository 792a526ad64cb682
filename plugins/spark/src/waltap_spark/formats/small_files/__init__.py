"""Write few rows of a Delta or Iceberg table in the driver."""
