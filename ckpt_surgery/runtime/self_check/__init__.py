"""Check that recomputes give the same results as their forwards, and schedule these checks."""
