"""The loss is that of model.module(images), around DistributedDataParallel."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("criterion(model(images), target)",
     "criterion(model.module(images), target)"))
