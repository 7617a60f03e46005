"""Inputs and results of blocks kept in host memory or in files between forward and backward."""
