"""Training steps and other work, as users of each library write them, for :mod:`..compare`.

``NAME_ours(lib)`` is for mpchain and Chainer, ``NAME_pytorch(torch)`` for PyTorch. Each returns a
function ``step``, which returns a number, such as the loss, if the libraries must agree on it.
Besides each other and the standard library, the modules import nothing but NumPy, so that any
interpreter can execute their text.
"""
