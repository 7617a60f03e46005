# prelude: gcl

class FooModel:
    def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None):
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)
