"""Every private name of PyTorch that purefx uses, each with the reason.

Nothing else in the package names a private part of ``torch``; when PyTorch moves something, this package changes.  Each
file has a subject, and all names are taken from here: ``from purefx._torch import FakeTensor``.
"""

from purefx._torch.autograd import *
from purefx._torch.compilers import *
from purefx._torch.fakes import *
from purefx._torch.modules import *
from purefx._torch.operators import *
from purefx._torch.tensors import *
from purefx._torch.transforms import *
from purefx._torch.types import *
from purefx._torch.vmap import *
