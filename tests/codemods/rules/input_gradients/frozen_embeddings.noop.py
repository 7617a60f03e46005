# CKPT108 unsafe | net.gradient_checkpointing_enable( | behind net.get_input_embeddings() (line 2)
# CKPT108 unsafe | net.gradient_checkpointing_enable( | behind net.model.embed_tokens (line 2)
# CKPT108 unsafe | tower.gradient_checkpointing_enable( | behind tower.add_adapter (line 3)
# file: a.py
net = load()
net.get_input_embeddings().requires_grad_(False)
net.gradient_checkpointing_enable({"use_reentrant": True})
# file: b.py
net = load()
for parameter in net.model.embed_tokens.parameters():
    parameter.requires_grad = False
net.gradient_checkpointing_enable({"use_reentrant": True})
# file: c.py
tower = load()
tower.gradient_checkpointing_enable({"use_reentrant": True})
tower.add_adapter(config)
# file: d.py
tower = load()
tower.add_adapter(config)
tower.gradient_checkpointing_enable({"use_reentrant": True})
# file: e.py
net = load()
net.lm_head.requires_grad_(False)
net.gradient_checkpointing_enable({"use_reentrant": True})
