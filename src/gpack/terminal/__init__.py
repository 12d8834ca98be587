"""Text for people at a terminal: tables, sizes, durations. Both command lines, and `make bench`, print through it."""
