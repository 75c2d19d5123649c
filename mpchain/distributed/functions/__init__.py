"""Functions that the ranks compute together, differentiable to every order.

**What a gradient is.** The loss of a program on several ranks is the sum of the losses of all
ranks, and a rank's gradient is that of this sum by the rank's own variables. So the gradient of
:func:`allreduce`, of whose result every rank's loss may make use, is the sum of the ranks'
gradients. Two things follow:

* A mean over the samples of all ranks is the sum of the ranks' own means, each times the rank's
  share of the samples. ``MultiNodeOptimizer.update(lossfun)`` begins backward with that share, and
  sums the gradients of the parameters over the ranks: a loss that each rank takes over its own
  samples is trained exactly as one process trains it on all of them, whatever the ranks do together
  within it. (Without a loss function, or within ``no_sync``, it can weigh gradients only: then
  losses in which ranks do something together need the same number of samples on all of them.)
* A rank's gradient by its copy of a parameter is only its part of the gradient, until the parts are
  summed. A penalty on the gradient of the whole loss is thus one on the sum over the ranks::

      g = mpchain.grad([loss * share], [W], enable_double_backprop=True)[0]
      penalty = F.sum(functions.allreduce(comm, g) ** 2)  # the same on all ranks

  and every rank adds it to its own (mean) loss.

:func:`distribute`, :func:`sum_up`, :func:`split` and :func:`join` keep to another convention, for
models whose layers are divided among the ranks: see there.

**What a program must respect.** All ranks must call these functions in the same order, in backward
too. Backward's order is determined by the graph alone: where the graphs of all ranks are the same,
there is nothing to do (a rank's own functions in between do no harm as long as they do not change
what depends on what). In detail:

* What is not used on some rank must be tied to what is, by :func:`pseudo_connect`, since backward
  does not come to what the loss does not depend on. That holds for the *delegate variables*, too,
  that stand for the results which a rank does not have; ``delegate.backward()`` serves as well.
* :func:`mpchain.grad` visits what lies between its arguments. Ranks that take part in a function
  without an input must give it a Variable instead, and ask for the gradient by that.
* Where ranks do different things with :func:`send` and :func:`recv`, each rank's calls should
  depend on each other in the order in which they are made: by ``delegate_variable`` and
  :func:`pseudo_connect`. Backward then exchanges messages in exactly the opposite order on all
  ranks, and so comes through if forward did.

In one process all of them are identities.
"""

from mpchain.distributed.functions.communication import allgather as allgather
from mpchain.distributed.functions.communication import allreduce as allreduce
from mpchain.distributed.functions.communication import alltoall as alltoall
from mpchain.distributed.functions.communication import bcast as bcast
from mpchain.distributed.functions.communication import distribute as distribute
from mpchain.distributed.functions.communication import gather as gather
from mpchain.distributed.functions.communication import join as join
from mpchain.distributed.functions.communication import pseudo_connect as pseudo_connect
from mpchain.distributed.functions.communication import recv as recv
from mpchain.distributed.functions.communication import reduce as reduce
from mpchain.distributed.functions.communication import reduce_scatter as reduce_scatter
from mpchain.distributed.functions.communication import scatter as scatter
from mpchain.distributed.functions.communication import send as send
from mpchain.distributed.functions.communication import split as split
from mpchain.distributed.functions.communication import sum_up as sum_up
from mpchain.distributed.functions.normalization import batch_normalization as batch_normalization
