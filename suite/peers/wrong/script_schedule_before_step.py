"""schedule.step() stands in front of the optimizer's step."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("""            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
""",
     """            schedule.step()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""))
