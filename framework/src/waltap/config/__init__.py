"""Configuration: properties declared once; files, environment and arguments that set them."""
