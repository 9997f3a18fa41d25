"""The DistributedSampler is made for one rank: all draw the same images."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("DistributedSampler(train_set, seed",
     "DistributedSampler(train_set, 1, 0, seed"))
