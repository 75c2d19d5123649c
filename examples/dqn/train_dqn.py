"""Learns to balance a pole on a cart by deep Q-learning, with several carts at the same time.

    python train_dqn.py                         one process
    mpchain-launch -n 2 train_dqn.py            two ranks, each with half of the carts

The simulation of the cart is a part of this script. Each rank has its own carts and its own memory
of their steps; the gradients are averaged over the ranks, so that all ranks use the same network.

See V. Mnih et al., Human-level control through deep reinforcement learning, Nature 2015; H. van
Hasselt et al., Deep reinforcement learning with double Q-learning, AAAI 2016.
"""

import argparse
import collections
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, optimizer_hooks, optimizers, serializers
from mpchain.typing import Array

N_STEPS = 500  # an episode with this many steps has succeeded


class Carts:
    """Carts with poles, simulated side by side.

    A state is the position and speed of a cart, and the angle and angular speed of its pole. The
    actions 0 and 1 push the cart to the left and to the right. The reward is 1 for each step
    before the pole falls or the cart leaves the track.
    """

    def __init__(self, n: int, random: np.random.RandomState):
        self.random = random
        self.states = random.uniform(-0.05, 0.05, (n, 4))
        self.ages = np.zeros(n, int)

    def step(self, actions: Array) -> tuple[Array, Array]:
        """Applies actions; returns the next states (n, 4) and, as bools (n,), which carts failed.

        Failed carts start again, and so do carts whose episode has ``N_STEPS`` steps.
        """
        x, v, angle, spin = self.states.T
        force = np.where(actions == 1, 10.0, -10.0)
        sin, cos = np.sin(angle), np.cos(angle)
        # The cart has 1 kg, the pole has 0.1 kg and a half length of 0.5 m, and a step is 0.02 s.
        push = (force + 0.05 * spin**2 * sin) / 1.1
        spin_up = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed_up = push - 0.05 * spin_up * cos / 1.1
        new = np.stack(
            [x + 0.02 * v, v + 0.02 * speed_up, angle + 0.02 * spin, spin + 0.02 * spin_up], axis=1
        )
        failed = (abs(new[:, 0]) > 2.4) | (abs(new[:, 2]) > 0.2095)
        self.ages += 1
        is_over = failed | (self.ages >= N_STEPS)
        restarted = self.random.uniform(-0.05, 0.05, new.shape)
        self.states = np.where(is_over[:, None], restarted, new)
        self.ages[is_over] = 0
        return new, failed


class Network(mpchain.Chain):
    """Computes the expected sum of discounted rewards of each action in a state."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(4, n_units)
            self.l2 = L.Linear(n_units, n_units)
            self.l3 = L.Linear(n_units, 2)

    def forward(self, states: Array) -> Variable:
        h = F.relu(self.l1(states.astype(np.float32)))
        return self.l3(F.relu(self.l2(h)))

    def act(self, states: Array) -> Array:
        """Returns the best action in each state."""
        with mpchain.no_backprop_mode():
            return self(states).array.argmax(axis=1)


def loss_of(
    network: Network, target: Network, states, actions, new_states, failed, discount: float
) -> Variable:
    """Returns the Huber loss of the Bellman equation, with double Q-learning."""
    with mpchain.no_backprop_mode():
        value = F.select_item(target(new_states), network.act(new_states).astype(np.int32)).array
    # Rewards are scaled so that values are between 0 and 1.
    t = (1 - discount + discount * value * ~failed).astype(np.float32)
    return F.mean(F.huber_loss(F.select_item(network(states), actions), t, 1.0, reduce="no"))


def play(network: Network, n: int) -> float:
    """Returns the mean number of steps, at most ``N_STEPS`` for each pole, for which the network
    balances ``n`` new poles."""
    carts, lengths = Carts(n, np.random.RandomState(0)), np.full(n, N_STEPS)
    for step in range(N_STEPS):
        _, failed = carts.step(network.act(carts.states))
        lengths[failed & (lengths == N_STEPS)] = step + 1
        if (lengths < N_STEPS).all():
            break
    return lengths.mean()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iteration", type=int, default=3000, help="number of updates")
    parser.add_argument("--carts", type=int, default=16, help="number of carts on all ranks")
    parser.add_argument("--batchsize", type=int, default=128, help="steps in a global batch")
    parser.add_argument("--units", type=int, default=64, help="units of the hidden layers")
    parser.add_argument("--discount", type=float, default=0.99, help="factor of the next reward")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="file to resume from: parameters and optimizer")
    parser.add_argument("--test", action="store_true", help="run for only a few seconds")
    args = parser.parse_args()
    if args.test:
        args.iteration, args.units = 120, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)
    network = Network(args.units)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(network)
    optimizer.add_hook(optimizer_hooks.GradientClipping(10.0))
    if args.resume:
        serializers.load_npz(args.resume, network, path="network/")
        serializers.load_npz(args.resume, optimizer, path="optimizer/")
    target = network.copy(mode="copy")
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)

    random = np.random.RandomState([comm.rank, optimizer.t])  # each rank simulates different carts
    first, last = comm.share_of(args.carts)
    carts = Carts(max(1, last - first), random)
    memory = collections.deque(maxlen=50000)
    n_samples = args.batchsize // comm.size
    for iteration in range(optimizer.t, args.iteration):
        optimizer.alpha = 1e-3 * (1 - iteration / args.iteration)
        # The network chooses most actions; random actions become less and less frequent.
        states = carts.states
        chance = max(0.05, 1 - 4 * iteration / args.iteration)
        is_random = random.uniform(size=len(states)) < chance
        actions = np.where(is_random, random.randint(2, size=len(states)), network.act(states))
        memory.extend(zip(states, actions.astype(np.int32), *carts.step(actions)))

        # The network learns from steps that are sampled from the memory.
        drawn = random.randint(len(memory), size=n_samples)
        batch = mpchain.dataset.concat_examples([memory[i] for i in drawn])
        optimizer.update(loss_of, network, target, *batch, args.discount)
        if optimizer.t % 200 == 0:
            target.copyparams(network)
        if optimizer.t % (args.iteration // 10) == 0 and comm.rank == 0:
            print(
                f"update {optimizer.t:6}: balanced for {play(network, 20):5.1f} steps", flush=True
            )
            state = mpchain.serializers.DictionarySerializer()
            state["network"].save(network)
            state["optimizer"].save(optimizer)
            np.savez(f"{args.out}/state.npz", **state.target)


if __name__ == "__main__":
    main()
