"""PyTorch eager on the same step as bench_gpt2_step: forward, backward, clip, fused AdamW. Needs torch; no dependency of muster.

python bench/rivals/torch_gpt2_step.py [--model gpt2|toy] [--threads N] [--batch B] [--seq T] [--autocast bf16] [--checkpoint]
"""
import argparse
import contextlib
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.c_fc, self.mlp_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, dim, heads, vocab, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(positions, dim)
        self.h = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.checkpoint = False
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if "proj" in name else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--autocast", choices=["bf16"])
    parser.add_argument("--checkpoint", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    toy = o.model == "toy"
    model = Gpt(4, 64, 4, 256, 64) if toy else Gpt(12, 768, 12, 50257, 1024)
    model.checkpoint = o.checkpoint
    vocab = 256 if toy else 50257
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    n = o.batch * o.seq
    i = torch.arange(n)
    tokens = ((i * 7919 + 13) % vocab).view(o.batch, o.seq)
    targets = ((i * 104729 + 7) % vocab).view(o.batch, o.seq)
    times = []
    for step in range((o.steps or (50 if toy else 5)) + 2):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16) if o.autocast else contextlib.nullcontext():
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step >= 2:
            times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    median = times[len(times) // 2]
    print(json.dumps({"model": o.model, "threads": o.threads, "batch": o.batch, "seq": o.seq, "autocast": o.autocast or "none", "checkpoint": o.checkpoint, "median_ms": round(median, 3),
                      "min_ms": round(times[0], 3), "tokens_per_s": round(n / median * 1e3, 1), "loss": round(loss.item(), 4)}))


if __name__ == "__main__":
    main()
