"""What both command lines share at a terminal: tables, sizes and durations as text, and Ctrl-C that waits its turn."""
