"""A plain loop, whose loss is computed outside of the model."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.planning.fit_scripts.common import limited, llama, rows, told

data = rows(16)
memory = limited()
model = llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for batch in DataLoader(data, batch_size=4):  # type: ignore[arg-type]
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
    del logits
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
told(losses, memory)
