# file: train.py
import argparse
from .loops import start

parser = argparse.ArgumentParser()
parser.add_argument("--gradient-checkpointing", action="store_true")
args = parser.parse_args()
start(**vars(args))
loss(args.rate).backward()
