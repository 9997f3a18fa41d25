"""Gradients are clipped without scaler.unscale_() in front of it."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("""            scaler.unscale_(optimizer)
""",
     ""))
