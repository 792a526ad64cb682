"""Write whole files in folders by table and day, on disks and in object stores."""
