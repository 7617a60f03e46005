"""What a training step will keep, before it is run: on shapes, without weights."""
