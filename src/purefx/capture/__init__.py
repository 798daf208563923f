"""Capture: run the program once on fake tensors and write down every operator below autograd."""
