"""accelerate with two ranks on the CPU."""

from typing import Any

import accelerate  # type: ignore[import-untyped]
import torch
from torch.utils.data import DataLoader

from tests.planning.fit_scripts.common import limited, llama, rows, told

data = rows(32)
memory = limited()
accelerator = accelerate.Accelerator(cpu=True)
model = llama()
batches: Any = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), batches)
losses = []
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
told(losses, memory)
accelerator.end_training()
