"""Models and stand-ins that several folders of tests share. Everything is built here; nothing is downloaded.

- `tests.measure.toys`: healthy and faulty blocks on transformers' own layer class, which most other toys extend
- `surgery_toys`: hard arguments and results of blocks, and one instrumented training step
- `hard_toys`: blocks that keep tensors, draw, count or make tables from step to step
- `state_toys`: blocks that read and write what checkpointing does not see
- `stack_toys`: stacks as other libraries build them, to be discovered
- `mlp_toys`, `tiled_toys`, `offload_toys`, `ready_toys`: small models for memory, tiling, offload and `ddp_ready`
- `tiny_models`, `ddp_models`: tiny models of transformers, in one process and on several ranks
- `families`, `planted`: released models with their known faults, and faults planted into healthy ones
- `own_code_shapes`: model folders with remote code, as on the Hub
- `any_order`, `memory_limit`: modes that act like a GPU: sums in any order, and an allocator limit
"""
