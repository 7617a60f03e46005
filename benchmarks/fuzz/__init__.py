"""Random models and training loops, each trained with and without a surgery, and compared.

A case is a seed, features, a training loop and options. `model` says what a feature can do; `features` and `loops`
have them. `case` draws a case, and `judge` trains and compares.
"""
