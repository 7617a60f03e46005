"""EnCodec: the number of filters is that of the first convolution (4.52 to 5.24.0)."""

_CODEC = {"num_filters": 4}
TINY = {"encodec": _CODEC}
