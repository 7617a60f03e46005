"""Trainings in which checkpointing went wrong for somebody, and what each door must say of them."""
