"""Another thread writes into a global while blocks are recomputed: nothing of it is lost."""

import threading

import torch

from benchmarks.cases.toys import Block, Stack
from ckpt_surgery import wrap_blocks

DOORS = {"plain": {"says": ["lost 0"]}}
COUNTS = {"forwards": 0, "fetched": 0}


class Counting(Block):
    def forward(self, x):
        COUNTS["forwards"] += 1
        return super().forward(x)


def fetch():
    global fetched
    while not ended.is_set():
        COUNTS["fetched"] += 1
        fetched += 1
        ended.wait(0.0005)


model = Stack(Counting, depth=4)
wrap_blocks(model)
ended, fetched = threading.Event(), 0
thread = threading.Thread(target=fetch)
thread.start()
for _ in range(200):
    model(torch.randn(2, 8, 4)).sum().backward()
ended.set()
thread.join()
print("lost", fetched - COUNTS["fetched"], "of", fetched)
