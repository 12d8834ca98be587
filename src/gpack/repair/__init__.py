"""Finding what is damaged in a pack, to the chunk, and mending it from another copy, the source, or parity.

This module is light: commands look for journals with it.
"""

JOURNAL_SUFFIX = ".repair"  # of the journal beside a pack that is mended in place
