# file: train.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--gradient-checkpointing", action="store_true")
args = parser.parse_args()
print(args.gradient_checkpointing)
loss(args.rate).backward()
