"""A DistributedSampler for the validation set, whose padding counts, too."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "script"))
from mistake import run  # noqa: E402

run(("DataLoader(Subset(val_set, own), args.batch_size)",
     "DataLoader(val_set, args.batch_size,\n                            sampler=DistributedSampler(val_set, shuffle=False))"))
