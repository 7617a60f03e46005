"""Keep block inputs and results in host memory or in files between forward and backward."""
