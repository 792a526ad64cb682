"""Write files by table and day, locally or remotely."""
