# CKPT107 unsafe | net.gradient_checkpointing_enable() | accelerator.prepare on line 4 returned
# file: train.py
def main(net, optimizer, accelerator):
    if accelerator:
        net, optimizer = accelerator.prepare(net, optimizer)
    net, optimizer = accelerator.prepare(net, optimizer)
    net.gradient_checkpointing_enable()
    accelerator.backward(net(1).loss)
# file: sharded.py
from accelerate import Accelerator, FullyShardedDataParallelPlugin


def main(net):
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
    net = accelerator.prepare(net)
    net.gradient_checkpointing_enable()
    accelerator.backward(net(1).loss)
# file: before.py
def main(net, accelerator):
    net.gradient_checkpointing_enable()
    net = accelerator.prepare(net)
    accelerator.backward(net(1).loss)
