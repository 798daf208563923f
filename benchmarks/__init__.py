"""Benchmarks: plain scripts that print ratios. Each tells its command in its docstring."""
