"""Fuzzing: readers of files that strangers made, under inputs that nobody thought of. `make fuzz TARGET=name`.

`targets` says what is run and what it may answer, `seeds` where inputs come from (the published vectors), `mutate` how
they are changed (at the fields that the schema names, sealed again), `running` how a target runs under atheris and what
is counted, `c_reader` the same for the embeddable reader in C under libFuzzer.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Small files of other people's formats are made by what makes them for the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
