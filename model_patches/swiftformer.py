"""SwiftFormer: its blocks are called stages, and their forward takes `input`.

`SwiftFormerStage` ends in neither Layer nor Block and is in a ModuleList together with embeddings.
transformers 4.57.6 sets the model's flag and never checkpoints anything; upstream made the stage a layer for
5.0 (transformers #41818).
"""

GRADIENT = {"SwiftFormerStage.input"}
BLOCKS = {"SwiftFormerStage"}
