"""Fewer key heads than query heads, as torch 2.11 and older count no FLOPs of: everything works on each torch."""

from benchmarks.cases.toys import llama, tokens
from ckpt_surgery import verify, wrap_blocks

DOORS = {"plain": {"says": ["ok: True"]}}

for save in (None, ["attention"]):
    model = llama(num_key_value_heads=2, attn_implementation="sdpa")
    if save:
        wrap_blocks(model, save=save)
    report = verify(model, tokens())
    print(report)
    print("ok:", report.ok)
    assert report.ok
