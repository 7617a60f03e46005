# CKPT107 unsafe | --gradient_checkpointing | nothing reads the option
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
# file: logged.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--gradient_checkpointing", action="store_true")
options = parser.parse_args()
accelerator.init_trackers("run", config=vars(options))
print(f"{options} begins")


class Loop:
    def __init__(self, *options):
        super().__init__(*options)


loss(options.rate).backward()
# file: by_dict.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--gradient_checkpointing", action="store_true")
options = parser.parse_args()
start(**options.__dict__)
loss(options.rate).backward()
