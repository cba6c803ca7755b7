#!/usr/bin/env python3
"""usage: decoder.py MODEL.gguf ID...

The logits of every position of a sequence, little-endian doubles on stdout: [positions, vocabulary]. A decoder as the
papers have it, in double precision, whole sequence at once, for the small F32 models of the tests. It shares nothing with
the engine, neither code nor the reader of the file.

Llama: Touvron et al. 2023; rotary embedding: Su et al. 2021; gated feed-forward: Shazeer 2020. Qwen2: Yang et al. 2024.
Qwen3: Yang et al. 2025. Gemma 2 and 3: Gemma Team 2024, 2025. Experts: Jiang et al. 2024 (Mixtral), Muennighoff et al. 2024
(OLMoE), Qwen Team 2024 (the shared expert)."""
import sys

import numpy as np

from gguf_floats import load

# What a family does otherwise than Llama.
FAMILIES = {
    'llama': {'normalised': True},
    'qwen2': {'neox': True, 'qkv_bias': True},
    'qwen3': {'neox': True, 'head_norm': True},
    'qwen2moe': {'neox': True, 'qkv_bias': True, 'shared': True},
    'qwen3moe': {'neox': True, 'head_norm': True, 'normalised': True},
    'olmoe': {'neox': True, 'row_norm': True},
    'gemma2': {'neox': True, 'gemma': True, 'global_every': 2},
    'gemma3': {'neox': True, 'gemma': True, 'head_norm': True, 'global_every': 6, 'local_base': 10000.0},
}


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cap(x, limit):
    return limit * np.tanh(x / limit) if limit else x


def rotate(heads, angles, neox):
    """heads [tokens, heads, head_dim]; angles [tokens, pairs]. As a multiplication of complex numbers."""
    pairs = angles.shape[1]
    turned = heads.copy()
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if neox else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    z = (heads[..., first] + 1j * heads[..., second]) * np.exp(1j * angles)[:, None, :]
    turned[..., first], turned[..., second] = z.real, z.imag
    return turned


class Decoder:
    def __init__(self, path):
        keys, self.t = load(path)
        self.arch = keys['general.architecture']
        self.family = FAMILIES[self.arch]
        self.keys = {k[len(self.arch) + 1:]: v for k, v in keys.items() if k.startswith(self.arch + '.')}
        self.layers = self.keys['block_count']
        self.heads = self.keys['attention.head_count']
        self.kv_heads = self.keys['attention.head_count_kv']
        self.dim = self.keys['embedding_length']
        self.head_dim = self.keys.get('attention.key_length', self.dim // self.heads)
        self.eps = self.keys['attention.layer_norm_rms_epsilon']

    def norm(self, x, name):
        return rms_norm(x, self.t[name], self.eps)

    def is_local(self, layer):
        every = self.keys.get('attention.sliding_window_pattern', self.family.get('global_every'))
        return every is not None and layer % every != every - 1

    def angles(self, layer, positions):
        dims = self.keys.get('rope.dimension_count', self.head_dim)
        base, scale = self.keys.get('rope.freq_base', 10000.0), 1.0
        if self.keys.get('rope.scaling.type') == 'linear':
            scale = 1 / self.keys['rope.scaling.factor']
        if self.is_local(layer) and 'local_base' in self.family:
            base, scale = self.family['local_base'], 1.0
        return np.outer(positions * scale, base ** (-np.arange(0, dims, 2) / dims))

    def attention(self, layer, x):
        blk = f'blk.{layer}.'
        n = len(x)

        def heads_of(name, count):
            y = x @ self.t[f'{blk}attn_{name}.weight'].T
            if self.family.get('qkv_bias'):
                y = y + self.t[f'{blk}attn_{name}.bias']
            if self.family.get('row_norm') and name != 'v':
                y = self.norm(y, f'{blk}attn_{name}_norm.weight')
            return y.reshape(n, count, self.head_dim)

        q, k, v = heads_of('q', self.heads), heads_of('k', self.kv_heads), heads_of('v', self.kv_heads)
        if self.family.get('head_norm'):
            q, k = self.norm(q, blk + 'attn_q_norm.weight'), self.norm(k, blk + 'attn_k_norm.weight')
        angles = self.angles(layer, np.arange(n))
        neox = self.family.get('neox', False)
        q, k = rotate(q, angles, neox), rotate(k, angles, neox)
        k, v = (np.repeat(m, self.heads // self.kv_heads, axis=1) for m in (k, v))
        scores = np.einsum('qhd,khd->hqk', q, k) / np.sqrt(self.head_dim)
        scores = cap(scores, self.keys.get('attn_logit_softcapping'))
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = distance >= 0
        if self.is_local(layer):
            seen &= distance < self.keys['attention.sliding_window']
        weights = softmax(np.where(seen, scores, -np.inf))
        mixed = np.einsum('hqk,khd->qhd', weights, v).reshape(n, -1)
        return mixed @ self.t[blk + 'attn_output.weight'].T

    def feed_forward(self, layer, x):
        blk = f'blk.{layer}.'
        activation = gelu if self.family.get('gemma') else silu
        gate, up = x @ self.t[blk + 'ffn_gate.weight'].T, x @ self.t[blk + 'ffn_up.weight'].T
        return (activation(gate) * up) @ self.t[blk + 'ffn_down.weight'].T

    def experts(self, layer, x):
        """One token after the other, one expert after the other."""
        t = {name: self.t[f'blk.{layer}.ffn_{name}.weight'] for name in ('gate_inp', 'gate_exps', 'up_exps', 'down_exps')}
        out = np.zeros_like(x)
        for i, token in enumerate(x):
            worth = t['gate_inp'] @ token
            of_chosen = self.keys.get('expert_gating_func', 1) == 3
            if not of_chosen:
                worth = softmax(worth)
            chosen = np.argsort(-worth)[:self.keys['expert_used_count']]
            weights = softmax(worth[chosen]) if of_chosen else worth[chosen]
            if self.keys.get('expert_weights_norm', self.family.get('normalised', False)):
                weights = weights / weights.sum()
            weights = weights * self.keys.get('expert_weights_scale', 1.0)
            for weight, e in zip(weights, chosen):
                hidden = silu(t['gate_exps'][e] @ token) * (t['up_exps'][e] @ token)
                out[i] += weight * (t['down_exps'][e] @ hidden)
        if self.family.get('shared'):
            gate_inp, gate, up, down = (self.t[f'blk.{layer}.ffn_{name}_shexp.weight'] for name in ('gate_inp', 'gate', 'up', 'down'))
            share = 1 / (1 + np.exp(-(x @ gate_inp)))
            out += share[:, None] * ((silu(x @ gate.T) * (x @ up.T)) @ down.T)
        return out

    def logits(self, ids):
        gemma = self.family.get('gemma', False)
        x = self.t['token_embd.weight'][ids]
        if gemma:
            x = x * np.sqrt(self.dim)
        for layer in range(self.layers):
            blk = f'blk.{layer}.'
            y = self.attention(layer, self.norm(x, blk + 'attn_norm.weight'))
            x = x + (self.norm(y, blk + 'post_attention_norm.weight') if gemma else y)
            block = self.experts if self.keys.get('expert_count') else self.feed_forward
            y = block(layer, self.norm(x, blk + 'ffn_norm.weight'))
            x = x + (self.norm(y, blk + 'post_ffw_norm.weight') if gemma else y)
        head = self.t.get('output.weight', self.t['token_embd.weight'])
        return cap(self.norm(x, 'output_norm.weight') @ head.T, self.keys.get('final_logit_softcapping'))


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.stdout.buffer.write(Decoder(sys.argv[1]).logits([int(i) for i in sys.argv[2:]]).astype('<f8').tobytes())
