# CKPT107 unsafe | --gradient_checkpointing | nothing reads the option --gradient_checkpointing
# file: train.py
import argparse


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_checkpointing", action="store_true")
    args = parser.parse_args()
    return args


def main(args):
    print(args, args.rate)
    args.loss.backward()


if __name__ == "__main__":
    args = options()
    main(args)
