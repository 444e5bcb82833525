"""PyTorch FSDP2 over Gloo on the step of bench_gpt2_step, per rank a share of the batch. Needs torch; no dependency of muster.

torchrun --nproc-per-node N bench/rivals/torch_fsdp2.py [--batch B] [--seq T] [--steps S]     (B over all ranks)
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_gpt2_step import Gpt  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.manual_seed(0)
    model = Gpt(12, 768, 12, 50257, 1024)
    for block in model.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(0, 256, (args.batch // ranks, args.seq + 1), generator=generator)
    times = []
    for _ in range(args.steps):
        dist.barrier()
        start = time.perf_counter()
        model(tokens[:, :-1], tokens[:, 1:].contiguous()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        median = statistics.median(times[1:])
        print(json.dumps({"bench": "torch_fsdp2", "ranks": ranks, "batch": args.batch, "seq": args.seq, "median_ms": median * 1e3,
                          "tokens_per_s": args.batch * args.seq / median,
                          "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
