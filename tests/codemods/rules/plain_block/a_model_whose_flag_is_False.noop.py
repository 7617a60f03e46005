# prelude: plain

class FooModel:
    supports_gradient_checkpointing = False
