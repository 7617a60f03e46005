# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | `__call__` of its own
# prelude: trained

class FooLayer:
    def __call__(self, *args):
        return self.forward(*args)
