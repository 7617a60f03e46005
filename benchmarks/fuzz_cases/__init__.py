"""Random blocks, arguments and training loops, each trained with and without a surgery, and compared.

A case is a seed, features, a training loop and options. `model` says what a feature can do; `blocks` and `arguments`
have the features, `loops` the training loops. `case` composes, `run` trains, `judge` compares.
"""
