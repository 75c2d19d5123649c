"""Tests captured functions in a process that was forked while another thread was inside of one."""

import os
import threading

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_child_records_anew():
    """Otherwise, the child would find a lock that no thread releases, and would never replay."""
    model = L.Linear(3, 2)
    is_inside, may_leave = threading.Event(), threading.Event()

    @mpchain.capture
    def step(x):
        loss = F.sum(model(x) ** 2)
        if threading.current_thread() is thread:
            is_inside.set()
            may_leave.wait(60)
        return loss

    x = np.ones((4, 3), np.float32)
    thread = threading.Thread(target=step, args=[x])
    thread.start()
    is_inside.wait(60)
    child = os.fork()
    if not child:
        status = 1
        try:
            for i in range(5):
                step(x + i)
            status = 0 if step.reason is None else 2
        finally:
            os._exit(status)
    may_leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
