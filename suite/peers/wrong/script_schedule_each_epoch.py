"""schedule.step() is called once an epoch, the schedule counts steps."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("            schedule.step()\n",
     ""),
    ("        images, correct",
     "        schedule.step()\n        images, correct"))
