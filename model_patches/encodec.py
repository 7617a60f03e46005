"""EnCodec: the number of filters is that of the first convolution (transformers 4.52 to 5.24.0)."""

TINY = {"encodec": {"num_filters": 4}}
