"""Time series transformers: their feature size follows from lags and covariates (transformers 4.52 to 5.24.0)."""

_SERIES = {"num_time_features": 1, "context_length": 8}
TINY = {("autoformer", "informer", "time_series_transformer"): _SERIES}
KEPT = {("autoformer", "informer", "time_series_transformer"): ("feature_size", "input_size")}
