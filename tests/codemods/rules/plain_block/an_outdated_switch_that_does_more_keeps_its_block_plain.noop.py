# CKPT001 unsafe | class FooLayer | FooModel._set_gradient_checkpointing reaches no layer, and does more
# prelude: plain

class FooModel:
    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value
            module.tower.set_grad_checkpointing(value)
