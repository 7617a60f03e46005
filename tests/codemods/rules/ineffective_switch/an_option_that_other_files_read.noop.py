# file: train.py
import argparse


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_checkpointing", action="store_true")
    args = parser.parse_args()
    return args
