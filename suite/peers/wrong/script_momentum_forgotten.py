"""SGD is made without momentum."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("args.lr, args.momentum,",
     "args.lr,"))
