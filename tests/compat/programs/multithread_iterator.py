"""Uses other iterators, and order samplers."""

import numpy as np
from chainer import iterators

order = iterators.ShuffleOrderSampler(np.random.RandomState(0))
threads = iterators.MultithreadIterator(list(range(8)), 4, order_sampler=order, n_threads=2)
first = threads.next() + threads.next()
threads.finalize()
own = iterators.SerialIterator(
    list(range(6)), 2, order_sampler=lambda o, position: np.arange(6)[::-1]
)
reversed_ = own.next() + own.next()
plain = iterators.SerialIterator(list(range(5)), 2, repeat=False, shuffle=False)
assert [len(b) for b in plain] == [2, 2, 1]
plain.reset()
print(*first, *reversed_, sum(map(sum, plain)))
