"""Small models in PyTorch, and their graphs as PyTorch exports them."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

HIDDEN, HEADS, SIZE = 64, 4, 16


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turned(x, angles):
    left, right = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-right, left], dim=-1) * angles.sin()


class DecoderLayer(nn.Module):
    def __init__(self, shared, *, fused):
        super().__init__()
        self.shared, self.fused = shared, fused
        wide = shared * SIZE
        if fused:
            self.qkv = nn.Linear(HIDDEN, HIDDEN + 2 * wide, bias=False)
        else:
            self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.k, self.v = (nn.Linear(HIDDEN, wide, bias=False) for _ in range(2))
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, 176, bias=False) for _ in range(2))
        self.down = nn.Linear(176, HIDDEN, bias=False)
        self.norms = nn.ModuleList([Norm(HIDDEN), Norm(HIDDEN)])

    def forward(self, x, angles, mask):
        batch, rows, _ = x.shape
        h, wide = self.norms[0](x), self.shared * SIZE
        if self.fused:
            q, k, v = self.qkv(h).split([HIDDEN, wide, wide], dim=-1)
        else:
            q, k, v = self.q(h), self.k(h), self.v(h)
        q, k, v = (y.view(batch, rows, -1, SIZE).transpose(1, 2) for y in (q, k, v))
        q, k = turned(q, angles), turned(k, angles)
        k, v = (y.repeat_interleave(HEADS // self.shared, dim=1) for y in (k, v))
        out = torch.softmax(q @ k.transpose(2, 3) / SIZE**0.5 + mask, dim=-1) @ v
        x = x + self.o(out.transpose(1, 2).reshape(batch, rows, HIDDEN))
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, *, fused=False):
        super().__init__()
        self.embed = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList([DecoderLayer(2, fused=fused) for _ in range(3)])
        self.norm, self.head = Norm(HIDDEN), nn.Linear(HIDDEN, 256, bias=False)

    def forward(self, tokens):
        rows = tokens.shape[1]
        places = torch.arange(rows).float()[:, None]
        angles = places * torch.cat([torch.linspace(0.1, 1, SIZE // 2)] * 2)[None]
        mask = torch.full((rows, rows), -1e9).triu(1)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, angles, mask)
        return self.head(self.norm(x))


DECODER = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": SIZE, "intermediate_size": 176, "vocab_size": 256,
    "tie_word_embeddings": False,
}  # fmt: skip


def heads_of(x):
    return x.view(x.shape[0], x.shape[1], HEADS, SIZE).transpose(1, 2)


def looked(q, k, v):
    out = functional.scaled_dot_product_attention(heads_of(q), heads_of(k), heads_of(v))
    return out.transpose(1, 2).reshape(q.shape)


class VideoLayer(nn.Module):
    """Self attention, cross attention to a prompt and a FFN, as Wan has them."""

    def __init__(self):
        super().__init__()
        self.own, self.other = (
            nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(4)]) for _ in range(2)
        )
        self.norms = nn.ModuleList([Norm(HIDDEN) for _ in range(4)])
        self.table = nn.Parameter(torch.randn(1, 6, HIDDEN))
        self.feed = nn.Sequential(
            nn.Linear(HIDDEN, 160), nn.GELU(approximate="tanh"), nn.Linear(160, HIDDEN)
        )

    def forward(self, x, text, time):
        parts = (self.table + time.view(1, 6, HIDDEN)).chunk(6, dim=1)
        h = functional.layer_norm(x, (HIDDEN,)) * (1 + parts[0]) + parts[1]
        q, k, v, out = self.own
        x = x + out(looked(self.norms[0](q(h)), self.norms[1](k(h)), v(h))) * parts[2]
        q, k, v, out = self.other
        h = functional.layer_norm(x, (HIDDEN,))
        x = x + out(looked(self.norms[2](q(h)), self.norms[3](k(text)), v(text)))
        h = functional.layer_norm(x, (HIDDEN,)) * (1 + parts[3]) + parts[4]
        return x + self.feed(h) * parts[5]


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv3d(16, HIDDEN, (1, 2, 2), (1, 2, 2))
        self.time = nn.Sequential(nn.Linear(32, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
        self.six = nn.Linear(HIDDEN, 6 * HIDDEN)
        self.text = nn.Sequential(nn.Linear(48, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
        self.layers = nn.ModuleList([VideoLayer() for _ in range(2)])
        self.last = nn.Linear(HIDDEN, 16 * 4)

    def forward(self, latents, prompt, step):
        x = self.patch(latents).flatten(2).transpose(1, 2)
        angles = step[:, None] * torch.linspace(0.1, 1, 16)[None]
        time = self.six(functional.silu(self.time(torch.cat([angles.cos(), angles.sin()], -1))))
        text = self.text(prompt)
        for layer in self.layers:
            x = layer(x, text, time)
        return self.last(x)


VIDEO = {
    "_class_name": "WanTransformer3DModel", "num_attention_heads": HEADS, "num_layers": 2,
    "attention_head_dim": SIZE, "ffn_dim": 160, "in_channels": 16, "out_channels": 16,
    "patch_size": [1, 2, 2], "text_dim": 48, "freq_dim": 32,
}  # fmt: skip


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.six = nn.Linear(HIDDEN, 6 * HIDDEN)
        self.norms = nn.ModuleList([Norm(HIDDEN), Norm(HIDDEN)])
        self.qkvo = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(4)])
        self.feed = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
        )

    def opened(self, x, time):
        self.parts = self.six(functional.silu(time))[:, None].chunk(6, dim=-1)
        h = functional.layer_norm(x, (HIDDEN,)) * (1 + self.parts[0]) + self.parts[1]
        q, k, v, _ = self.qkvo
        return self.norms[0](q(h)), self.norms[1](k(h)), v(h)

    def closed(self, x, out):
        x = x + self.qkvo[3](out) * self.parts[2]
        h = functional.layer_norm(x, (HIDDEN,)) * (1 + self.parts[3]) + self.parts[4]
        return x + self.feed(h) * self.parts[5]


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.three, self.up = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN)
        self.norms = nn.ModuleList([Norm(HIDDEN), Norm(HIDDEN)])
        self.qkv = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(3)])
        self.out = nn.Linear(5 * HIDDEN, HIDDEN)

    def forward(self, x, time):
        scale, shift, gate = self.three(functional.silu(time))[:, None].chunk(3, dim=-1)
        h = functional.layer_norm(x, (HIDDEN,)) * (1 + scale) + shift
        q, k, v = (one(h) for one in self.qkv)
        out = looked(self.norms[0](q), self.norms[1](k), v)
        out = torch.cat([out, functional.gelu(self.up(h))], dim=-1)
        return x + self.out(out) * gate


class Image(nn.Module):
    """Layers of two streams, then of one whose FFN stands beside its attention, as FLUX.1 has."""

    def __init__(self):
        super().__init__()
        self.tokens, self.text = nn.Linear(64, HIDDEN), nn.Linear(48, HIDDEN)
        self.time, self.guidance, self.pooled = (
            nn.Sequential(nn.Linear(size, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
            for size in (256, 256, 40)
        )
        self.pairs = nn.ModuleList([nn.ModuleList([Stream(), Stream()]) for _ in range(2)])
        self.single = nn.ModuleList([Single() for _ in range(3)])
        self.two, self.last = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(HIDDEN, 64)

    def forward(self, latents, prompt, pooled, step, guidance):
        x, text = self.tokens(latents), self.text(prompt)
        waves = torch.linspace(0.1, 1, 128)[None]
        both = [torch.cat([(at[:, None] * waves).cos(), (at[:, None] * waves).sin()], -1)
                for at in (step, guidance)]  # fmt: skip
        time = self.time(both[0]) + self.guidance(both[1]) + self.pooled(pooled)
        rows = text.shape[1]
        for words, pixels in self.pairs:
            both = zip(words.opened(text, time), pixels.opened(x, time), strict=True)
            sides = [torch.cat(pair, 1) for pair in both]
            out = looked(*sides)
            text, x = words.closed(text, out[:, :rows]), pixels.closed(x, out[:, rows:])
        joined = torch.cat([text, x], dim=1)
        for layer in self.single:
            joined = layer(joined, time)
        scale, shift = self.two(functional.silu(time))[:, None].chunk(2, dim=-1)
        x = functional.layer_norm(joined[:, rows:], (HIDDEN,)) * (1 + scale) + shift
        return self.last(x)


IMAGE = {
    "_class_name": "FluxTransformer2DModel", "num_attention_heads": HEADS, "num_layers": 2,
    "num_single_layers": 3, "attention_head_dim": SIZE, "in_channels": 64, "guidance_embeds": True,
    "joint_attention_dim": 48, "pooled_projection_dim": 40,
}  # fmt: skip

TOKENS = {"tokens": torch.zeros(1, 12, dtype=torch.long)}
MADE = {
    "decoder": (Decoder, TOKENS, DECODER),
    "fused": (lambda: Decoder(fused=True), TOKENS, DECODER),
    "video": (
        Video,
        {"latents": torch.randn(1, 16, 3, 8, 8), "prompt": torch.randn(1, 10, 48),
         "step": torch.ones(1)},
        VIDEO,
    ),
    "image": (
        Image,
        {"latents": torch.randn(1, 24, 64), "prompt": torch.randn(1, 10, 48),
         "pooled": torch.randn(1, 40), "step": torch.ones(1), "guidance": torch.ones(1)},
        IMAGE,
    ),
}  # fmt: skip


def exported(name, way, path, **more):
    make, inputs, _ = MADE[name]
    kind, _, opset = way.partition("-")
    how = {"opset_version": int(opset or 17)} if kind == "script" or opset else {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make().eval(), tuple(inputs.values()), str(path), input_names=[*inputs],
            dynamo=kind == "dynamo", **how, **more,
        )  # fmt: skip
    return path
