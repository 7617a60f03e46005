"""`make gpu`: everything that this project measures and tests on one CUDA GPU, and the page that shows it."""
