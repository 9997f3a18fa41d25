"""no_sync() around every micro-step, the last one's, too."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("contextlib.nullcontext() if last else model.no_sync()",
     "model.no_sync()"))
