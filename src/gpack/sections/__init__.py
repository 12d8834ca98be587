"""One module per kind of section: reader, builder and checks side by side."""
