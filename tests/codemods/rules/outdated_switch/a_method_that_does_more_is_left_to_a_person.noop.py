# CKPT011 unsafe | def _set_gradient_checkpointing | not repaired: it does more than set gradient_checkpointing
# prelude: gcl

class FooModel:
    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value
            module.tower.set_grad_checkpointing(value)
