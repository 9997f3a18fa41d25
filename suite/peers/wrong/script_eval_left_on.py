"""model.train() is called once, in front of all epochs."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("    model.train()\n",
     ""),
    ("    for epoch in range(first",
     "    model.train()\n    for epoch in range(first"))
