# prelude: plain

# ckpt: ignore[CKPT001] kept plain on purpose
class FooLayer(nn.Module): ...
