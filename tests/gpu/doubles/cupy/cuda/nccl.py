"""CuPy's own binding of NCCL, if CuPy is installed, too; it uses the double of NCCL."""

import nccl_double

try:
    nccl_double.load()
    from cupy_backends.cuda.libs import nccl as _binding

    globals().update({k: v for k, v in vars(_binding).items() if not k.startswith("__")})
    available = True
except (ImportError, RuntimeError):
    available = False
