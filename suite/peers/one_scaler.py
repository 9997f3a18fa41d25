#!/usr/bin/env python3
"""pytorch_train.py with one GradScaler for both losses of --example two-losses."""
from pytorch_examples import OneScaler
from pytorch_train import main

main(OneScaler)
