"""Graphs, recommenders, reinforcement learning, small layers, and steps with derivatives."""

import common
import numpy as np
import second_order
from common import adam, fill, tensors, training_ours, training_pytorch


def _random(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype("f")


def _indices(n, *shape, seed=0):
    return np.random.RandomState(seed).randint(0, n, shape).astype("i")


def graph_network_ours(lib):
    """Returns a step of a graph network, which computes messages along edges and adds them at the
    edges' targets."""
    F, L = lib.functions, lib.links
    messages = lib.ChainList(*(L.Linear(64, 32) for _ in range(3)))
    updates = lib.ChainList(*(L.Linear(64, 32) for _ in range(3)))
    model = lib.ChainList(messages, updates, L.Linear(32, 5))
    zeros = np.zeros((1000, 32), "f")

    def loss_of(x, edges, t):
        sources, targets = edges
        for message, update in zip(messages, updates):
            pairs = F.concat((x[sources], x[targets]), axis=1)
            sums = F.scatter_add(zeros, targets, F.relu(message(pairs)))
            x = F.relu(update(F.concat((x, sums), axis=1)))
        return F.softmax_cross_entropy(model[2](x), t)

    data = lib.Variable(_random(1000, 32), requires_grad=False), _indices(1000, 2, 5000)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data, _indices(5, 1000))


def graph_network_pytorch(torch):
    """Uses indices and index_add."""
    nn = torch.nn
    messages = nn.ModuleList(nn.Linear(64, 32) for _ in range(3))
    updates = nn.ModuleList(nn.Linear(64, 32) for _ in range(3))
    model = nn.ModuleList([messages, updates, nn.Linear(32, 5)])

    def loss_of(x, edges, t):
        sources, targets = edges
        for message, update in zip(messages, updates):
            y = torch.relu(message(torch.cat((x[sources], x[targets]), 1)))
            sums = x.new_zeros(1000, 32).index_add(0, targets, y)
            x = torch.relu(update(torch.cat((x, sums), 1)))
        return nn.functional.cross_entropy(model[2](x), t)

    data = _random(1000, 32), _indices(1000, 2, 5000), _indices(5, 1000)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def recommender_ours(lib):
    """Returns a step of a DLRM with eight tables of 50,000 rows, and dense layers."""
    F, L = lib.functions, lib.links
    tables = lib.ChainList(*(L.EmbedID(50000, 16) for _ in range(8)))
    dense = lib.Sequential(L.Linear(141, 64), F.relu, L.Linear(64, 1))
    model = lib.ChainList(tables, dense)

    def loss_of(x, ids, t):
        rows = [table(column) for table, column in zip(tables, ids)]
        y = dense(F.concat([x, *rows], axis=1))
        return F.sigmoid_cross_entropy(y, t)

    data = _random(512, 13), _indices(50000, 8, 512), _indices(2, 512, 1)
    return training_ours(lib, model, lib.optimizers.SGD(0.01), loss_of, *data)


def recommender_pytorch(torch):
    """Uses nn.Embedding(sparse=True), and SGD that is not fused, because fused SGD refuses sparse
    gradients."""
    nn = torch.nn
    tables = nn.ModuleList(nn.Embedding(50000, 16, sparse=True) for _ in range(8))
    dense = nn.Sequential(nn.Linear(141, 64), nn.ReLU(), nn.Linear(64, 1))
    model = nn.ModuleList([tables, dense])
    bce = nn.functional.binary_cross_entropy_with_logits

    def loss_of(x, ids, t):
        rows = [table(column) for table, column in zip(tables, ids)]
        return bce(dense(torch.cat([x, *rows], 1)), t.float())

    data = _random(512, 13), _indices(50000, 8, 512), _indices(2, 512, 1)
    make = lambda torch, params: torch.optim.SGD(params, 0.01)
    return training_pytorch(torch, model.parameters(), make, loss_of, *data)


def factorization_ours(lib):
    """Returns a step of Adam on ratings, which are products of rows of two tables."""
    F, L = lib.functions, lib.links
    model = lib.ChainList(L.EmbedID(20000, 32), L.EmbedID(10000, 32))

    def loss_of(users, items, t):
        return F.mean_squared_error(F.sum(model[0](users) * model[1](items), axis=1), t)

    data = _indices(20000, 2048), _indices(10000, 2048, seed=1), _random(2048)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def factorization_pytorch(torch):
    """Uses dense gradients, because SparseAdam computes other numbers than Adam."""
    nn = torch.nn
    model = nn.ModuleList([nn.Embedding(20000, 32), nn.Embedding(10000, 32)])

    def loss_of(users, items, t):
        return nn.functional.mse_loss((model[0](users) * model[1](items)).sum(1), t)

    data = _indices(20000, 2048), _indices(10000, 2048, seed=1), _random(2048)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def dqn_ours(lib):
    """Returns a step of Q-learning with 32 transitions and a target network."""
    F, L = lib.functions, lib.links
    make = lambda: lib.Sequential(
        L.Linear(8, 64), F.relu, L.Linear(64, 64), F.relu, L.Linear(64, 4)
    )
    model, target = make(), make()
    fill(p.array for p in target.params())

    def loss_of(x, action, reward, x_next, done):
        with lib.no_backprop_mode():
            q_next = F.max(target(x_next), axis=1).array
        wanted = reward + 0.99 * (1 - done) * q_next
        q = F.select_item(model(x), action)
        return F.mean(F.huber_loss(q, wanted, 1.0, reduce="no"))

    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *_transitions())


def _transitions():
    x, x_next, rest = _random(32, 8), _random(32, 8, seed=1), _random(2, 32, seed=2)
    return x, _indices(4, 32), rest[0], x_next, (rest[1] > 1).astype("f")


def dqn_pytorch(torch):
    """Uses gather, smooth_l1_loss and no_grad, like PyTorch's tutorial."""
    nn = torch.nn
    make = lambda: nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    model, target = make(), make()
    fill(p.detach().numpy() for p in target.parameters())

    def loss_of(x, action, reward, x_next, done):
        with torch.no_grad():
            wanted = reward + 0.99 * (1 - done) * target(x_next).max(1).values
        q = model(x).gather(1, action[:, None]).squeeze(1)
        return nn.functional.smooth_l1_loss(q, wanted)

    return training_pytorch(torch, model.parameters(), adam, loss_of, *_transitions())


def policy_ours(lib):
    """Returns a step of proximal policy optimization on 64 samples, with entropy, and with a
    clipped norm of the gradients."""
    F, L = lib.functions, lib.links
    body = lib.Sequential(L.Linear(8, 64), F.tanh, L.Linear(64, 64), F.tanh)
    model = lib.ChainList(body, L.Linear(64, 4), L.Linear(64, 1))

    def loss_of(x, action, old, advantage, returns):
        h = body(x)
        log_p = F.log_softmax(model[1](h))
        ratio = F.exp(F.select_item(log_p, action) - old)
        gain = F.minimum(ratio * advantage, F.clip(ratio, 0.8, 1.2) * advantage)
        entropy = -F.sum(F.exp(log_p) * log_p, axis=1)
        error = F.mean_squared_error(model[2](h)[:, 0], returns)
        return -F.mean(gain) + 0.5 * error - 0.01 * F.mean(entropy)

    step = training_ours(lib, model, optimizer := lib.optimizers.Adam(3e-4), loss_of, *_samples())
    optimizer.add_hook(lib.optimizer_hooks.GradientClipping(0.5))
    return step


def _samples():
    rest = _random(3, 64, seed=2)
    return _random(64, 8), _indices(4, 64), rest[0] * 0.1 - 1.4, rest[1], rest[2]


def policy_pytorch(torch):
    """Follows cleanrl: Categorical's formulas by log_softmax, and clip_grad_norm_."""
    nn = torch.nn
    body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = nn.ModuleList([body, nn.Linear(64, 4), nn.Linear(64, 1)])
    params = list(model.parameters())
    fill(p.detach().numpy() for p in params)
    optimizer = adam(torch, params, lr=3e-4)
    x, action, old, advantage, returns = tensors(torch, _samples())

    def step():
        h = body(x)
        log_p = torch.log_softmax(model[1](h), 1)
        ratio = torch.exp(log_p.gather(1, action[:, None]).squeeze(1) - old)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = -(log_p.exp() * log_p).sum(1)
        error = nn.functional.mse_loss(model[2](h)[:, 0], returns)
        loss = -gain.mean() + 0.5 * error - 0.01 * entropy.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 0.5)
        optimizer.step()
        return loss.item()

    return step


def acting_ours(lib):
    """Returns a step of a policy for one observation, as an actor calls it."""
    F, L = lib.functions, lib.links
    model = lib.Sequential(L.Linear(8, 64), F.tanh, L.Linear(64, 64), F.tanh, L.Linear(64, 4))
    fill(p.array for p in model.params())
    x = _random(1, 8)
    predict = common.captured(lambda x: model(x).array)

    def step():
        with lib.using_config("train", False), lib.no_backprop_mode():
            return float(predict(x).argmax())

    return step


def acting_pytorch(torch):
    """Uses inference mode."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )
    fill(p.detach().numpy() for p in model.parameters())
    x = torch.from_numpy(_random(1, 8))

    def step():
        with torch.inference_mode():
            return float(model(x).argmax().item())

    return step


def accumulation_ours(lib):
    """Returns a step that adds up the gradients of four small batches."""
    F, L = lib.functions, lib.links
    model = lib.Sequential(
        L.Linear(256, 512), F.relu, L.Linear(512, 512), F.relu, L.Linear(512, 10)
    )
    fill(p.array for p in model.params())
    optimizer = lib.optimizers.Adam().setup(model)
    x, t = _random(4, 32, 256), _indices(10, 4, 32)

    def train(x, t):
        model.cleargrads()
        total = 0
        for i in range(4):
            loss = F.softmax_cross_entropy(model(x[i]), t[i]) / 4
            loss.backward()
            total += loss.array
        optimizer.update()
        return total

    train = common.captured(train)
    return lambda: float(train(x, t))


def accumulation_pytorch(torch):
    """Follows what users write."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    fill(p.detach().numpy() for p in model.parameters())
    optimizer = adam(torch, model.parameters())
    x, t = tensors(torch, (_random(4, 32, 256), _indices(10, 4, 32)))

    def step():
        optimizer.zero_grad(set_to_none=True)
        total = 0
        for i in range(4):
            loss = nn.functional.cross_entropy(model(x[i]), t[i]) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step


def fifty_layers_ours(lib):
    """Returns a step of fifty small layers, each with layer normalization."""
    F, L = lib.functions, lib.links
    layers = []
    for _ in range(50):
        layers += [L.Linear(32, 32), L.LayerNormalization(32), F.tanh]
    model = lib.Sequential(*layers)
    loss_of = lambda x, t: F.mean_squared_error(model(x), t)
    data = _random(16, 32), _random(16, 32, seed=1)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def fifty_layers_pytorch(torch):
    """Uses nn.Sequential."""
    nn = torch.nn
    layers = []
    for _ in range(50):
        layers += [nn.Linear(32, 32), nn.LayerNorm(32, 1e-6), nn.Tanh()]
    model = nn.Sequential(*layers)
    loss_of = lambda x, t: nn.functional.mse_loss(model(x), t)
    data = _random(16, 32), _random(16, 32, seed=1)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def tabular_ours(lib):
    """Returns a step of a model of table rows with batch normalization, dropout and weight
    decay."""
    F, L = lib.functions, lib.links
    layers, n = [], 30
    for m in (128, 128, 64):
        layers += [L.Linear(n, m), L.BatchNormalization(m), F.relu, lambda x: F.dropout(x, 0.2)]
        n = m
    model = lib.Sequential(*layers, L.Linear(64, 1))
    loss_of = lambda x, t: F.sigmoid_cross_entropy(model(x), t)
    optimizer = lib.optimizers.AdamW(weight_decay_rate=0.01, decay_times_alpha=True)
    step = training_ours(lib, model, optimizer, loss_of, _random(256, 30), _indices(2, 256, 1))
    return lambda: step() and None  # the masks differ


def tabular_pytorch(torch):
    """Uses AdamW(fused=True)."""
    nn = torch.nn
    layers, n = [], 30
    for m in (128, 128, 64):
        layers += [nn.Linear(n, m), nn.BatchNorm1d(m), nn.ReLU(), nn.Dropout(0.2)]
        n = m
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    bce = nn.functional.binary_cross_entropy_with_logits
    loss_of = lambda x, t: bce(model(x), t.float())
    make = lambda torch, params: torch.optim.AdamW(params, fused=True)
    data = _random(256, 30), _indices(2, 256, 1)
    step = training_pytorch(torch, model.parameters(), make, loss_of, *data)
    return lambda: step() and None


def flow_ours(lib):
    """Returns a step of a normalizing flow with six coupling layers over 16 features."""
    F, L = lib.functions, lib.links
    make = lambda: lib.Sequential(L.Linear(8, 64), F.relu, L.Linear(64, 16))
    model = lib.ChainList(*(make() for _ in range(6)))

    def loss_of(x):
        a, b = F.split_axis(x, 2, 1)
        log_det = 0
        for layer in model:
            s, m = F.split_axis(layer(a), 2, 1)
            s = F.tanh(s)
            a, b = b * F.exp(s) + m, a
            log_det = log_det + F.sum(s, axis=1)
        return F.mean(0.5 * F.sum(a**2 + b**2, axis=1) - log_det)

    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, _random(256, 16))


def flow_pytorch(torch):
    """Uses chunk."""
    nn = torch.nn
    make = lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
    model = nn.ModuleList(make() for _ in range(6))

    def loss_of(x):
        a, b = x.chunk(2, 1)
        log_det = 0
        for layer in model:
            s, m = layer(a).chunk(2, 1)
            s = torch.tanh(s)
            a, b = b * torch.exp(s) + m, a
            log_det = log_det + s.sum(1)
        return (0.5 * (a**2 + b**2).sum(1) - log_det).mean()

    return training_pytorch(torch, model.parameters(), adam, loss_of, _random(256, 16))


def differential_equation_ours(lib):
    """Returns a step of a neural differential equation with ten Runge-Kutta steps."""
    F, L = lib.functions, lib.links
    model = lib.Sequential(L.Linear(4, 50), F.tanh, L.Linear(50, 4))

    def loss_of(x, t):
        h = np.float32(0.1)
        for _ in range(10):
            a = model(x)
            b = model(x + h / 2 * a)
            c = model(x + h / 2 * b)
            d = model(x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return F.mean_squared_error(x, t)

    data = _random(64, 4), _random(64, 4, seed=1)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def differential_equation_pytorch(torch):
    """Follows torchdiffeq's fixed steps."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 4))

    def loss_of(x, t):
        h = 0.1
        for _ in range(10):
            a = model(x)
            b = model(x + h / 2 * a)
            c = model(x + h / 2 * b)
            d = model(x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return nn.functional.mse_loss(x, t)

    data = _random(64, 4), _random(64, 4, seed=1)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def molecule_ours(lib):
    """Returns a step on the forces of 64 atoms, the negative derivative of an energy."""
    F, L = lib.functions, lib.links
    pair = lib.Sequential(L.Linear(16, 32), F.silu, L.Linear(32, 32))
    atom = lib.Sequential(L.Linear(32, 32), F.silu, L.Linear(32, 1))
    model = lib.ChainList(pair, atom)
    zeros, centers = np.zeros((64, 32), "f"), np.linspace(0, 3, 16).astype("f")

    def loss_of(place, pairs, forces):
        i, j = pairs
        place = lib.Variable(place)
        d = F.sqrt(F.sum((place[i] - place[j]) ** 2, axis=1, keepdims=True) + 1e-4)
        sums = F.scatter_add(zeros, i, pair(F.exp(-((d - centers) ** 2))))
        energy = F.sum(atom(sums))
        (slope,) = lib.grad([energy], [place], enable_double_backprop=True)
        return F.mean((slope + forces) ** 2)

    data = _random(64, 3), _indices(64, 2, 1000), _random(64, 3, seed=1)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def molecule_pytorch(torch):
    """Uses index_add and autograd.grad(create_graph=True), like SchNetPack."""
    nn = torch.nn
    pair = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
    atom = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
    model = nn.ModuleList([pair, atom])
    centers = torch.linspace(0, 3, 16)

    def loss_of(place, pairs, forces):
        i, j = pairs
        place = place.detach().requires_grad_()
        d = torch.sqrt(((place[i] - place[j]) ** 2).sum(1, keepdim=True) + 1e-4)
        y = pair(torch.exp(-((d - centers) ** 2)))
        energy = atom(y.new_zeros(64, 32).index_add(0, i, y)).sum()
        (slope,) = torch.autograd.grad(energy, place, create_graph=True)
        return ((slope + forces) ** 2).mean()

    data = _random(64, 3), _indices(64, 2, 1000), _random(64, 3, seed=1)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def force_ours(lib):
    return second_order.Ours(lib).step("force")


def force_pytorch(torch):
    """Uses autograd.grad(create_graph=True)."""
    return second_order.PyTorch(torch).step("force")


def pinn_ours(lib):
    return second_order.Ours(lib).step("pinn")


def pinn_pytorch(torch):
    """Uses autograd.grad(create_graph=True) twice."""
    return second_order.PyTorch(torch).step("pinn")


def maml_ours(lib):
    return second_order.Ours(lib).step("maml")


def maml_pytorch(torch):
    """Uses autograd.grad(create_graph=True) for each task."""
    return second_order.PyTorch(torch).step("maml")


def hessian_product_ours(lib):
    return second_order.Ours(lib).step("hvp")


def hessian_product_pytorch(torch):
    """Uses torch.func.jvp of torch.func.grad."""
    return second_order.PyTorch(torch).step("hvp")
