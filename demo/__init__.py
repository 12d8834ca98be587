"""`make demo`: a real model through convert, verify and inspect."""
