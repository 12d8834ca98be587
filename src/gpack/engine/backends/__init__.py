"""Where models compute: each backend lowers graphs to programs of its own."""
