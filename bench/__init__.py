"""Measurements against peers in the same run: `make bench`. Nothing here is an assertion; speeds are reported."""
