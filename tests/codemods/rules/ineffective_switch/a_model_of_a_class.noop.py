# CKPT107 unsafe | self.net.gradient_checkpointing_enable() | AutoModel.from_pretrained(...) on line 6
# CKPT107 unsafe | self.net.gradient_checkpointing_enable() | a wrapper (DistributedDataParallel on line 7)
# file: a.py
from transformers import AutoModel


class Loop:
    def __init__(self):
        self.net = AutoModel.from_pretrained("m")

    def run(self, batches):
        self.net.gradient_checkpointing_enable()
        for batch in batches:
            self.net(batch).loss.backward()
# file: b.py
from torch.nn.parallel import DistributedDataParallel


class Loop:
    def __init__(self, net):
        self.net = net
        self.net = DistributedDataParallel(self.net)

    def run(self, batches):
        self.net.gradient_checkpointing_enable()
        self.net(batches).loss.backward()
# file: c.py
from frame import Module
from transformers import AutoModel


class Loop(Module):
    def __init__(self):
        self.net = AutoModel.from_pretrained("m")

    def run(self, batches):
        self.net.gradient_checkpointing_enable()
        self.net(batches).loss.backward()
# file: d.py
from transformers import AutoModel
from .loops import begin


class Loop:
    def __init__(self):
        self.net = AutoModel.from_pretrained("m")
        begin(self.net)

    def run(self, batches):
        self.net.gradient_checkpointing_enable()
        self.net(batches).loss.backward()
# file: e.py
from transformers import AutoModel


class Loop:
    def __init__(self):
        self.net = AutoModel.from_pretrained("m")

    def begin(self):
        self.net.train()

    def run(self, batches):
        self.net.gradient_checkpointing_enable()
        self.net(batches).loss.backward()
