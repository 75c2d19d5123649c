"""Uses differentiable communication, imported from the modules that define it."""

import chainer
import chainer.functions as F
import chainermn
import chainermn.functions
import numpy as np
from chainermn.functions.collective_communication import AllGather, allgather
from chainermn.functions.point_to_point_communication import recv, send

comm = chainermn.create_communicator("flat")
x = chainer.Variable(np.full((2,), comm.rank + 1, "f"))
gathered = allgather(comm, x)
assert [int(y.data[0]) for y in gathered] == list(range(1, comm.size + 1))
assert len(AllGather(comm).apply((x,))) == comm.size
if comm.size > 1 and comm.rank == 0:
    token = send(x * 2, comm, rank=1)
    (tied,) = chainermn.functions.pseudo_connect(token, x)
    assert tied.array.tolist() == x.array.tolist()
    token.backward()
    assert x.grad.tolist() == [6.0, 6.0]
elif comm.rank == 1:
    y = recv(comm, rank=0)
    F.sum(y * 3).backward()
total = comm.allreduce(np.ones(3, "f"))
assert total.tolist() == [comm.size] * 3
if comm.rank == 0:
    print("communicated")
