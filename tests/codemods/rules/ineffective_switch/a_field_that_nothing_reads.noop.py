# CKPT107 unsafe | gradient_checkpointing: bool | nothing reads the option gradient_checkpointing
# file: a.py
from dataclasses import dataclass, field
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    rate: float = 0.1
    gradient_checkpointing: bool = field(default=True)


options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()
print(options.rate)
Trainer(net, arguments).train()
# file: b.py
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options(TrainingArguments):
    gradient_checkpointing: bool = True


options = HfArgumentParser(Options).parse_args_into_dataclasses()[0]
print(options.rate)
Trainer(net, options).train()
# file: c.py
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer
from .loops import start


@dataclass
class Options:
    gradient_checkpointing: bool = True


parser = HfArgumentParser(Options)
options = parser.parse_args_into_dataclasses()[0]
start(options)
Trainer(net).train()
# file: d.py
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    gradient_checkpointing: bool = True


options = HfArgumentParser(Options).parse_args_into_dataclasses()[0]
Trainer(net, TrainingArguments("out", gradient_checkpointing=options.gradient_checkpointing)).train()
