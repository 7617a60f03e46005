"""Random blocks, arguments and training loops, each trained with and without a surgery, and compared.

A case is a seed and a list of features. `feature` and `model` say what a feature can do. Features are in `layers`,
`state`, `rare_state`, `draws`, `experts`, `graph`, `weights`, `numerics`, `hooks`, `arguments`, `objects` and
`outputs`, training loops in `steps` and `interruptions`. `case` composes, `run` trains, `judge` compares, `minimise`
drops what a failure does not need, `pool` runs many cases, `report` counts them.
"""
