"""Functions that the ranks compute together, differentiable to every order.

**Gradients.** The loss of a program on several ranks is the sum of the losses of all ranks, and a
rank's gradient is the gradient of this sum by the rank's own variables. The gradient of
:func:`allreduce`, whose result every rank's loss may use, is therefore the sum of the ranks'
gradients. Two things follow:

* A mean over the samples of all ranks is the sum of the ranks' own means, each times the rank's
  share of the samples. ``MultiNodeOptimizer.update(lossfun)`` begins backward with that share, and
  sums the gradients of the parameters over the ranks. If each rank computes a loss from its own
  samples, the ranks therefore train exactly as one process trains on all samples, whichever
  collectives the loss contains. (Without a loss function, or within ``no_sync``, the optimizer can
  only weight gradients: losses with collectives then need the same number of samples on all ranks.)
* A rank's gradient by its copy of a parameter is only a part of the gradient, until the parts are
  summed. A penalty on the gradient of the whole loss must use the sum over the ranks::

      g = mpchain.grad([loss * share], [W], enable_double_backprop=True)[0]
      penalty = F.sum(functions.allreduce(comm, g) ** 2)  # the same on all ranks

  and every rank adds it to its own (mean) loss.

:func:`distribute`, :func:`sum_up`, :func:`split` and :func:`join` follow another convention, for
models whose layers are divided among the ranks: see :func:`distribute`.

**Rules for programs.** All ranks must call these functions in the same order, in backward too. The
graph alone determines backward's order: if the graphs of all ranks are the same, there is nothing
to do (a rank's own functions in between do no harm unless they change the dependencies). In detail:

* Backward does not reach results that the loss does not depend on. Tie an unused result to a used
  result by :func:`pseudo_connect`. Unused results include *delegate variables*, which stand for
  results that a rank does not have; ``delegate.backward()`` works as well.
* :func:`mpchain.grad` visits the functions between its arguments. A rank that takes part in a
  function without an input must pass a Variable to the function, and ask for the gradient by that
  Variable.
* :func:`sendrecv`, :func:`permute` and :func:`shift` exchange values between neighbors. They wait
  for no receiver, and need no delegate variables.
* If ranks call different sequences of :func:`send` and :func:`recv`, each call should depend on the
  call before it, by ``delegate_variable`` and :func:`pseudo_connect`. Backward then sends messages
  in exactly the opposite order on all ranks, and cannot hang unless forward does.

In a single process the collectives leave values unchanged (except :func:`batch_normalization`).
:func:`sendrecv`, :func:`permute` and :func:`shift` return ``fill`` if the rank has no source.
"""

from mpchain.distributed.functions.communication import allgather as allgather
from mpchain.distributed.functions.communication import allreduce as allreduce
from mpchain.distributed.functions.communication import alltoall as alltoall
from mpchain.distributed.functions.communication import bcast as bcast
from mpchain.distributed.functions.communication import distribute as distribute
from mpchain.distributed.functions.communication import gather as gather
from mpchain.distributed.functions.communication import join as join
from mpchain.distributed.functions.communication import pseudo_connect as pseudo_connect
from mpchain.distributed.functions.communication import reduce as reduce
from mpchain.distributed.functions.communication import reduce_scatter as reduce_scatter
from mpchain.distributed.functions.communication import scatter as scatter
from mpchain.distributed.functions.communication import split as split
from mpchain.distributed.functions.communication import sum_up as sum_up
from mpchain.distributed.functions.messages import permute as permute
from mpchain.distributed.functions.messages import recv as recv
from mpchain.distributed.functions.messages import send as send
from mpchain.distributed.functions.messages import sendrecv as sendrecv
from mpchain.distributed.functions.messages import shift as shift
from mpchain.distributed.functions.normalization import batch_normalization as batch_normalization
