"""The loss is not divided by the number of micro-steps."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("scaler.scale(loss / args.accumulate)",
     "scaler.scale(loss)"))
