"""Words that a program's table and its synchronisation block are made of: what the executor and Python both know."""

from __future__ import annotations

# A step: address of the kernel (0: the host does this step), of its arguments, of a counter to reset after it or 0;
# not 0 where a thread that has done its share may go on with the next step before the others have done theirs.
STEP_WORDS = 4
# Words of the synchronisation block; those that different threads write are a cache line pair apart.
ARRIVED, GENERATION, ABORT, STOPPED_AT, SYNC_WORDS = 0, 16, 32, 48, 64
