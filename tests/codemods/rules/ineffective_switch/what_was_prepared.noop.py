# CKPT107 unsafe | net.gradient_checkpointing_enable() | accelerator.prepare on line 4 returned
# file: train.py
def main(net, optimizer, accelerator):
    if accelerator:
        net, optimizer = accelerator.prepare(net, optimizer)
    net, optimizer = accelerator.prepare(net, optimizer)
    net.gradient_checkpointing_enable()
    accelerator.backward(net(1).loss)
