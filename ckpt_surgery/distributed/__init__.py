"""Training on several devices without its silent faults. The engine is torch.distributed; this watches and mends."""
