"""Compiled functions under the transforms of torch.func and of torch.autograd, in any nesting."""
