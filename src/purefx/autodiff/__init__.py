"""Gradients: the backward of a program, recorded in the same run and made functional as the program was."""
