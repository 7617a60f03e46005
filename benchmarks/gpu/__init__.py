"""`make gpu`: everything that this project measures and tests on one CUDA GPU, and the page that shows it."""

DRY_RUN = "CKPT_SURGERY_GPU_DRY"
"""The environment variable with which tests marked `gpu` run on the processor."""
