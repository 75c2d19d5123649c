"""Language models, word2vec, a transformer."""

import itertools

import common
import numpy as np
from common import fill


def interleaved(array):
    """Reorders rows that PyTorch groups by gate to the order of L.LSTM, which interleaves gates."""
    i, f, a, o = np.split(array, 4)
    return np.stack([a, i, f, o], axis=1).reshape(array.shape)


def words(n, *shape):
    return np.random.RandomState(0).randint(0, n, shape).astype("i")


def language_model_ours(lib):
    """Uses L.NStepLSTM; the output layer gets all steps at once."""
    F, L = lib.functions, lib.links
    model = lib.ChainList(
        L.EmbedID(10000, 650), L.NStepLSTM(2, 650, 650, 0.0), L.Linear(650, 10000)
    )
    fill(p.array for p in model.params())
    optimizer = lib.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(lib.optimizer_hooks.GradientClipping(5))
    text = words(10000, 36, 20)
    zeros = np.zeros((2, 20, 650), np.float32)

    def train(text, h, c):
        embed, lstm, output = model
        x = embed(text[:-1].transpose(1, 0))  # NStepLSTM takes a sequence for each sample
        h, c, ys = lstm(h, c, F.separate(x))
        t = text[1:].transpose(1, 0).reshape(-1)
        loss = len(text[1:]) * F.softmax_cross_entropy(output(F.concat(ys, axis=0)), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss, h.array, c.array

    train, state = common.captured(train), (zeros, zeros.copy())

    def step():
        nonlocal state
        loss, *state = train(text, *state)
        return float(loss.array)

    return step


def language_model_of_cells_ours(lib):
    """Uses a loop over the steps, as Chainer's programs do."""
    F, L = lib.functions, lib.links
    model = lib.ChainList(
        L.EmbedID(10000, 650), L.LSTM(650, 650), L.LSTM(650, 650), L.Linear(650, 10000)
    )
    fill(p.array for p in model.params())
    for lstm in (model[1], model[2]):
        for p in lstm.params():
            p.array[...] = interleaved(p.array)
        lstm.upward.b.array[...] *= 2  # PyTorch has two biases
    optimizer = lib.optimizers.SGD(1.0).setup(model)
    optimizer.add_hook(lib.optimizer_hooks.GradientClipping(5))
    text = words(10000, 36, 20)

    def train(text):
        embed, first, second, output = model
        loss = 0
        for x, t in itertools.pairwise(text):
            loss += F.softmax_cross_entropy(output(second(first(embed(x)))), t)
        model.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()
        return loss

    train = common.captured(train)
    return lambda: float(train(text).array)


def _language_model_pytorch(torch, forward, params, n_gates=1):
    """Returns the step of a model: an embedding, 35 steps of two LSTM layers by ``forward``, and an
    output layer. The parameters of the LSTM are filled in ``n_gates`` parts."""
    nn = torch.nn
    embed, output = nn.Embedding(10000, 650), nn.Linear(650, 10000)
    fill(part for p in params for part in np.split(p.detach().numpy(), n_gates))
    others = [*embed.parameters(), *output.parameters()]
    fill(p.detach().numpy() for p in others)
    params = [*params, *others]
    optimizer = torch.optim.SGD(params, 1.0, fused=True)
    text = torch.from_numpy(words(10000, 36, 20)).long()
    state = None

    def step():
        nonlocal state
        ys, state = forward(embed(text[:-1]), state)
        scores = output(ys.reshape(-1, 650))  # PyTorch's users write one product
        loss = len(ys) * nn.functional.cross_entropy(scores, text[1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 5)
        optimizer.step()
        state = [tuple(x.detach() for x in pair) for pair in state]
        return loss.item()

    return step


def language_model_pytorch(torch):
    """Uses nn.LSTM, like PyTorch's users."""
    lstm = torch.nn.LSTM(650, 650, 2)

    def forward(xs, state):
        ys, new = lstm(xs, None if state is None else state[0])
        return ys, [new]

    return _language_model_pytorch(torch, forward, list(lstm.parameters()), 4)


def language_model_of_cells_pytorch(torch):
    """Uses a loop over nn.LSTMCell; the output layer gets all steps at once."""
    cells = [torch.nn.LSTMCell(650, 650) for _ in range(2)]

    def forward(xs, state):
        state = state or [None, None]
        ys = []
        for x in xs:
            for i, cell in enumerate(cells):
                state[i] = cell(x, state[i])
                x = state[i][0]
            ys.append(x)
        return torch.stack(ys), state

    params = [p for cell in cells for p in cell.parameters()]
    return _language_model_pytorch(torch, forward, params)


def sentences():
    random = np.random.RandomState(0)
    return [words(5000, n) for n in np.sort(random.randint(10, 51, 32))[::-1]]


def nstep_lstm_ours(lib):
    F, L = lib.functions, lib.links
    model = lib.ChainList(L.EmbedID(5000, 256), L.NStepLSTM(2, 256, 256, 0.0), L.Linear(256, 5000))
    fill(p.array for p in model.params())
    optimizer = lib.optimizers.Adam().setup(model)
    xs = sentences()
    t = np.concatenate(xs)

    def train(t):
        embed, lstm, output = model
        parts = np.cumsum([len(x) for x in xs])[:-1]
        embedded = F.split_axis(embed(t), parts, 0)
        _, _, ys = lstm(None, None, embedded)
        loss = F.softmax_cross_entropy(output(F.concat(ys, axis=0)), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    train = common.captured(train)
    return lambda: float(train(t).array)


def nstep_lstm_pytorch(torch):
    nn = torch.nn
    embed, lstm, output = nn.Embedding(5000, 256), nn.LSTM(256, 256, 2), nn.Linear(256, 5000)
    params = [p for module in (embed, lstm, output) for p in module.parameters()]
    for p in params:
        array = p.detach().numpy()
        fill(np.split(array, 4) if len(array) == 1024 else [array])
    optimizer = torch.optim.Adam(params, fused=True)
    xs = [torch.from_numpy(x).long() for x in sentences()]
    packed = nn.utils.rnn.pack_sequence(xs)

    def step():
        data = embed(packed.data)
        ys, _ = lstm(nn.utils.rnn.PackedSequence(data, packed.batch_sizes))
        loss = nn.functional.cross_entropy(output(ys.data), packed.data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def word2vec_ours(lib):
    L = lib.links
    counts = np.bincount(words(10000, 100000), minlength=10000) + 1
    model = lib.ChainList(L.EmbedID(10000, 100), L.NegativeSampling(100, counts, 5))
    optimizer = lib.optimizers.Adam().setup(model)
    x, t = words(10000, 2, 10000)

    def train(x, t):
        embed, loss_of = model
        loss = loss_of(embed(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()

    train = common.captured(train)
    return lambda: train(x, t)


def word2vec_pytorch(torch):
    counts = np.bincount(words(10000, 100000), minlength=10000) + 1
    weights = torch.from_numpy(counts**0.75)
    embed, out = torch.nn.Embedding(10000, 100), torch.nn.Embedding(10000, 100)
    optimizer = torch.optim.Adam([embed.weight, out.weight], fused=True)
    x, t = torch.from_numpy(words(10000, 2, 10000)).long()
    logsigmoid = torch.nn.functional.logsigmoid

    def step():
        samples = torch.multinomial(weights, 5 * len(x), replacement=True).view(-1, 5)
        h = embed(x)
        positive = logsigmoid((h * out(t)).sum(1)).sum()
        negative = logsigmoid(-(out(samples) @ h[:, :, None])).sum()
        loss = -positive - negative
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def transformer_ours(lib):
    F, L = lib.functions, lib.links

    model = lib.Sequential(*(L.TransformerEncoderLayer(256, 8, 1024, 0.1) for _ in range(4)))
    optimizer = lib.optimizers.Adam().setup(model)
    x = np.random.RandomState(0).randn(8, 128, 256).astype("f")

    def train(x):
        loss = F.mean(model(x) ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()

    train = common.captured(train)
    return lambda: train(x)


def transformer_pytorch(torch):
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, 0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.from_numpy(np.random.RandomState(0).randn(8, 128, 256).astype("f"))
    forward = common.compiled(model)

    def step():
        loss = (forward(x) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step
