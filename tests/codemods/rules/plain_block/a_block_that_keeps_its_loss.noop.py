# CKPT001 unsafe | class FooLayer | FooRouter.forward keeps a tensor in `self.loss`
# prelude: plain

class FooRouter(nn.Module):
    def forward(self, hidden_states):
        self.loss = hidden_states.softmax(-1).mean()
        return hidden_states

class FooLayer:
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()
        self.router = FooRouter()

    def forward(self, hidden_states, attention_mask=None):
        return self.router(self.self_attn(hidden_states))
