"""A mixer, models of text and of speech, and training in 16 bits."""

import common
import numpy as np
from common import adam, fill, fill_gates, training_ours, training_pytorch


def _random(*shape):
    return np.random.RandomState(0).randn(*shape).astype("f")


def _words(n, *shape):
    return np.random.RandomState(0).randint(0, n, shape).astype("i")


def mixer_ours(lib):
    """Returns a step of an MLP-Mixer, with dense layers over patches and over channels, and exact
    GELU."""
    F, L = lib.functions, lib.links

    class Block(lib.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.norm1, self.norm2 = L.LayerNormalization(128), L.LayerNormalization(128)
                self.a, self.b = L.Linear(64, 128), L.Linear(128, 64)
                self.c, self.d = L.Linear(128, 256), L.Linear(256, 128)

        def forward(self, x):
            y = F.transpose(self.norm1(x), (0, 2, 1))
            y = self.b(F.gelu(self.a(y, n_batch_axes=2)), n_batch_axes=2)
            x = x + F.transpose(y, (0, 2, 1))
            y = F.gelu(self.c(self.norm2(x), n_batch_axes=2))
            return x + self.d(y, n_batch_axes=2)

    body = lib.Sequential(*(Block() for _ in range(4)))
    model = lib.ChainList(body, L.Linear(128, 10))
    loss_of = lambda x, t: F.softmax_cross_entropy(model[1](F.mean(body(x), axis=1)), t)
    data = _random(16, 64, 128), _words(10, 16)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def mixer_pytorch(torch):
    """Follows the published model."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(128, 1e-6), nn.LayerNorm(128, 1e-6)
            self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 64)
            self.c, self.d = nn.Linear(128, 256), nn.Linear(256, 128)
            self.gelu = nn.GELU()

        def forward(self, x):
            y = self.norm1(x).transpose(1, 2)
            x = x + self.b(self.gelu(self.a(y))).transpose(1, 2)
            return x + self.d(self.gelu(self.c(self.norm2(x))))

    body = nn.Sequential(*(Block() for _ in range(4)))
    model = nn.ModuleList([body, nn.Linear(128, 10)])
    loss_of = lambda x, t: nn.functional.cross_entropy(model[1](body(x).mean(1)), t)
    data = _random(16, 64, 128), _words(10, 16)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def gpt_ours(lib):
    """Returns a step of a small GPT: causal attention, exact GELU, 4 blocks."""
    F, L = lib.functions, lib.links

    class Block(lib.Chain):
        def __init__(self, n=128):
            super().__init__()
            with self.init_scope():
                self.norm1, self.norm2 = L.LayerNormalization(n), L.LayerNormalization(n)
                self.qkv, self.proj = L.Linear(n, 3 * n), L.Linear(n, n)
                self.up, self.down = L.Linear(n, 4 * n), L.Linear(4 * n, n)

        def forward(self, x):
            b, t, n = x.shape
            y = self.qkv(self.norm1(x), n_batch_axes=2)
            heads = F.transpose(F.reshape(y, (b, t, 3, 4, n // 4)), (2, 0, 3, 1, 4))
            y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            y = F.reshape(F.transpose(y, (0, 2, 1, 3)), (b, t, n))
            x = x + self.proj(y, n_batch_axes=2)
            y = F.gelu(self.up(self.norm2(x), n_batch_axes=2))
            return x + self.down(y, n_batch_axes=2)

    model = lib.ChainList(
        L.EmbedID(512, 128),
        L.EmbedID(64, 128),
        lib.Sequential(*(Block() for _ in range(4))),
        L.LayerNormalization(128),
        L.Linear(128, 512),
    )

    def loss_of(text):
        x = model[0](text[:, :-1]) + model[1](np.arange(64))
        y = model[3](model[2](x))
        y = model[4](F.reshape(y, (-1, 128)))
        return F.softmax_cross_entropy(y, text[:, 1:].reshape(-1))

    optimizer = lib.optimizers.AdamW(1e-4, weight_decay_rate=0.01, decay_times_alpha=True)
    return training_ours(lib, model, optimizer, loss_of, _words(512, 8, 65))


def gpt_pytorch(torch):
    """Follows nanoGPT: F.scaled_dot_product_attention, and AdamW(fused=True)."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, n=128):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(n, 1e-6), nn.LayerNorm(n, 1e-6)
            self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
            self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)
            self.gelu = nn.GELU()

        def forward(self, x):
            b, t, n = x.shape
            heads = self.qkv(self.norm1(x)).split(n, 2)
            q, k, v = (y.view(b, t, 4, n // 4).transpose(1, 2) for y in heads)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, n))
            return x + self.down(self.gelu(self.up(self.norm2(x))))

    model = nn.ModuleList(
        [
            nn.Embedding(512, 128),
            nn.Embedding(64, 128),
            nn.Sequential(*(Block() for _ in range(4))),
            nn.LayerNorm(128, 1e-6),
            nn.Linear(128, 512),
        ]
    )

    def loss_of(text):
        x = model[0](text[:, :-1]) + model[1](torch.arange(64))
        y = model[4](model[3](model[2](x)))
        return nn.functional.cross_entropy(y.view(-1, 512), text[:, 1:].reshape(-1))

    make = lambda torch, params: torch.optim.AdamW(params, 1e-4, fused=True)
    return training_pytorch(torch, model.parameters(), make, loss_of, _words(512, 8, 65))


def gru_attention_ours(lib):
    """Returns a step of a translation model: a GRU as encoder, and cells with attention as
    decoder."""
    F, L = lib.functions, lib.links

    class Cell(lib.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.x, self.h = L.Linear(256, 384), L.Linear(128, 384)

        def forward(self, h, x):
            a, b = F.split_axis(self.x(x), 3, 1), F.split_axis(self.h(h), 3, 1)
            r, z = F.sigmoid(a[0] + b[0]), F.sigmoid(a[1] + b[1])
            n = F.tanh(a[2] + r * b[2])
            return n + z * (h - n)

    model = lib.ChainList(
        L.EmbedID(1000, 128),
        L.NStepGRU(1, 128, 128, 0.0),
        L.EmbedID(1000, 128),
        Cell(),
        L.Linear(256, 1000),
    )
    source, target = _words(1000, 2, 32, 20)

    def loss_of(source, target):
        embed, encoder, embed_target, cell, out = model
        h, states = encoder(None, F.separate(embed(source), axis=0))
        h, states = h[0], F.stack(states)
        outputs = []
        for x in F.separate(embed_target(target[:, :-1]), axis=1):
            weights = F.softmax(F.matmul(states, F.expand_dims(h, 2)), axis=1)
            context = F.sum(states * F.broadcast_to(weights, states.shape), axis=1)
            h = cell(h, F.concat((x, context), axis=1))
            outputs.append(F.concat((h, context), axis=1))
        t = target[:, 1:].transpose(1, 0).reshape(-1)
        return F.softmax_cross_entropy(out(F.concat(outputs, axis=0)), t)

    step = training_ours(lib, model, lib.optimizers.Adam(), loss_of, source, target)
    for p in model[3].params():  # fill_gates gives the three gates the same values
        fill(np.split(p.array, 3))
    return step


def gru_attention_pytorch(torch):
    """Uses nn.GRU and nn.GRUCell, batched products, and one call of the output layer."""
    nn = torch.nn
    model = nn.ModuleList(
        [
            nn.Embedding(1000, 128),
            nn.GRU(128, 128, batch_first=True),
            nn.Embedding(1000, 128),
            nn.GRUCell(256, 128),
            nn.Linear(256, 1000),
        ]
    )
    source, target = _words(1000, 2, 32, 20)

    def loss_of(source, target):
        embed, encoder, embed_target, cell, out = model
        states, h = encoder(embed(source))
        h, outputs = h[0], []
        for x in embed_target(target[:, :-1]).unbind(1):
            weights = torch.softmax(torch.bmm(states, h.unsqueeze(2)), 1)
            context = torch.bmm(weights.transpose(1, 2), states).squeeze(1)
            h = cell(torch.cat((x, context), 1), h)
            outputs.append(torch.cat((h, context), 1))
        y = out(torch.stack(outputs, 1))
        return nn.functional.cross_entropy(y.view(-1, 1000), target[:, 1:].reshape(-1))

    step = training_pytorch(torch, model.parameters(), adam, loss_of, source, target)
    fill_gates([model[1], model[3]])
    return step


def text_classifier_ours(lib):
    """Returns a step of a classifier of texts with convolutions of three widths and the maximum
    over time."""
    F, L = lib.functions, lib.links
    convolutions = lib.ChainList(*(L.Convolution1D(64, 64, k) for k in (3, 4, 5)))
    model = lib.ChainList(L.EmbedID(5000, 64), convolutions, L.Linear(192, 4))

    def loss_of(x, t):
        h = F.transpose(model[0](x), (0, 2, 1))
        pooled = [F.max(F.relu(f(h)), axis=2) for f in convolutions]
        return F.softmax_cross_entropy(model[2](F.concat(pooled, axis=1)), t)

    data = _words(5000, 32, 60), _words(4, 32)
    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, *data)


def text_classifier_pytorch(torch):
    """Follows the published model, with amax; the embedding's gradient is dense, for Adam."""
    nn = torch.nn
    convolutions = nn.ModuleList(nn.Conv1d(64, 64, k) for k in (3, 4, 5))
    model = nn.ModuleList([nn.Embedding(5000, 64), convolutions, nn.Linear(192, 4)])

    def loss_of(x, t):
        h = model[0](x).transpose(1, 2)
        pooled = [torch.relu(f(h)).amax(2) for f in convolutions]
        return nn.functional.cross_entropy(model[2](torch.cat(pooled, 1)), t)

    data = _words(5000, 32, 60), _words(4, 32)
    return training_pytorch(torch, model.parameters(), adam, loss_of, *data)


def speech_ours(lib):
    """Returns a step of a speech model: a bidirectional LSTM and connectionist temporal
    classification."""
    F, L = lib.functions, lib.links
    model = lib.ChainList(L.NStepBiLSTM(1, 40, 128, 0.0), L.Linear(256, 30))
    x, t = _random(16, 80, 40), _words(29, 16, 15) + 1

    def loss_of(x, t):
        _, _, ys = model[0](None, None, F.separate(x, axis=0))
        y = model[1](F.transpose(F.stack(ys), (1, 0, 2)), n_batch_axes=2)
        return F.connectionist_temporal_classification(F.separate(y, axis=0), t, 0)

    return training_ours(lib, model, lib.optimizers.Adam(), loss_of, x, t.astype("i"))


def speech_pytorch(torch):
    """Uses nn.LSTM and ctc_loss, with the mean over samples, as in mpchain."""
    nn = torch.nn
    model = nn.ModuleList(
        [nn.LSTM(40, 128, batch_first=True, bidirectional=True), nn.Linear(256, 30)]
    )
    x, t = _random(16, 80, 40), _words(29, 16, 15) + 1
    lengths = torch.full((16,), 80), torch.full((16,), 15)

    def loss_of(x, t):
        y = torch.log_softmax(model[1](model[0](x)[0]), 2).transpose(0, 1)
        return nn.functional.ctc_loss(y, t, *lengths, reduction="none").mean()

    step = training_pytorch(torch, model.parameters(), adam, loss_of, x, t.astype("i"))
    fill_gates([model[0]])
    return step


def _without_losses(step):
    return lambda: step() and None  # losses of 16 bits differ


def _bfloat16_ours(lib, model, loss_of, *data):
    optimizer = lib.optimizers.Adam()
    step = training_ours(lib, model, optimizer, loss_of, *data)
    optimizer.use_fp32_update()
    return _without_losses(step)


def transformer_bfloat16_ours(lib):
    """Returns a step of two layers of a transformer under mixed_bf16."""
    F, L = lib.functions, lib.links
    with lib.using_config("dtype", lib.mixed_bf16):
        model = lib.Sequential(*(L.TransformerEncoderLayer(256, 8, 1024, 0.0) for _ in range(2)))
    loss_of = lambda x: F.mean(F.cast(model(x), "f") ** 2)
    x = _random(8, 128, 256).astype(lib.get_dtype(lib.mixed_bf16))
    return _bfloat16_ours(lib, model, loss_of, x)


def transformer_bfloat16_pytorch(torch):
    """Uses autocast to bfloat16."""
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, 0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def loss_of(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return (y.float() ** 2).mean()

    step = training_pytorch(torch, model.parameters(), adam, loss_of, _random(8, 128, 256))
    return _without_losses(step)


def mlp_bfloat16_ours(lib):
    """Returns a step of the network of the workload mlp under mixed_bf16."""
    F, L = lib.functions, lib.links
    with lib.using_config("dtype", lib.mixed_bf16):
        model = lib.Sequential(
            L.Linear(784, 1000), F.relu, L.Linear(1000, 1000), F.relu, L.Linear(1000, 10)
        )
    loss_of = lambda x, t: F.softmax_cross_entropy(F.cast(model(x), "f"), t)
    x = common.digits(100, 784)[0].astype(lib.get_dtype(lib.mixed_bf16))
    data = x, _words(10, 100)
    return _bfloat16_ours(lib, model, loss_of, *data)


def mlp_bfloat16_pytorch(torch):
    """Uses autocast to bfloat16."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)
    )

    def loss_of(x, t):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return nn.functional.cross_entropy(y.float(), t)

    data = common.digits(100, 784)[0], _words(10, 100)
    step = training_pytorch(torch, model.parameters(), adam, loss_of, *data)
    return _without_losses(step)
