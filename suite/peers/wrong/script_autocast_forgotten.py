"""autocast is around the validation alone."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("""            with torch.autocast(args.device, torch.float16, enabled=args.amp):
                loss""",
     """            with torch.autocast(args.device, torch.float16, enabled=False):
                loss"""))
