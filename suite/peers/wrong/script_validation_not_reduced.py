"""Each rank prints the top-1 of its own part."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("    dist.all_reduce(sums)  # each",
     "    # each"))
