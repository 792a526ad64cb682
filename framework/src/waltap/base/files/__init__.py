"""Read and write destination files on disks and in object stores."""
