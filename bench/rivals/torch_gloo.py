"""c10d Gloo on the sizes of bench_collectives. Needs torch; no dependency of muster.

torchrun --nproc-per-node N bench/rivals/torch_gloo.py
"""
import json
import time

import torch
import torch.distributed as dist


def timed(body, rounds):
    for _ in range(3):
        body()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        body()
    return (time.perf_counter() - start) / rounds * 1e6


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    world, rows = dist.get_world_size(), []
    for nbytes in (64, 4096, 65536, 1 << 20, 16 << 20, 64 << 20):
        count = nbytes // 4
        whole, piece = torch.zeros(count), torch.zeros(max(count // world, 1))
        gathered = torch.zeros(piece.numel() * world)
        rounds = 5 if nbytes > 1 << 20 else 200
        rows.append({"nbytes": nbytes,
                     "all_reduce_us": timed(lambda: dist.all_reduce(whole), rounds),
                     "all_gather_us": timed(lambda: dist.all_gather_into_tensor(gathered, piece), rounds),
                     "reduce_scatter_us": timed(lambda: dist.reduce_scatter_tensor(piece, gathered), rounds)})
    if dist.get_rank() == 0:
        print(json.dumps({"ranks": world, "sizes": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
