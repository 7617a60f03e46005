"""Random blocks, arguments and training loops, each trained with and without a surgery, and compared.

A case is a seed, features, a training loop and options. `feature` and `model` say what a feature can do; `catalog`
knows every feature and loop by its kind, which is the module that it stands in. `case` composes, `run` trains, `judge`
compares, `minimise` drops what a failure does not need, `pool` runs many cases, `report` counts them.
"""
