"""PyTorch DCP on the state of bench_checkpoint: 36 f32 tensors sharded by rows. Needs torch; no dependency of muster.

torchrun --nproc-per-node N bench/rivals/torch_dcp.py [--mb 1500] [--repeat 3] [--dir PATH]
DCP's FileSystemWriter syncs each file by default (sync_files=True); it keeps no checksum.
"""
import argparse
import json
import shutil
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def make_state(mb, mesh):
    tensors, rows = 36, 0
    rows = mb * (1 << 20) // tensors // 4 // 1024
    return {f"t{i}": distribute_tensor(torch.full((rows, 1024), float(i)), mesh, [Shard(0)]) for i in range(tensors)}


def timed(body):
    dist.barrier()
    start = time.perf_counter()
    body()
    dist.barrier()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = make_state(args.mb, mesh)
    folder = [tempfile.mkdtemp(dir=args.dir) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    nbytes = sum(t.numel() * 4 for t in state.values())
    rates = {"save_sync": [], "save_no_sync": [], "load": []}
    for round_index in range(args.repeat):
        for sync in (True, False):
            path = f"{folder[0]}/{round_index}_{int(sync)}"
            writer = dcp.FileSystemWriter(path, sync_files=sync)
            rates["save_sync" if sync else "save_no_sync"].append(nbytes / timed(lambda: dcp.save(state, storage_writer=writer)) / 1e6)
        rates["load"].append(nbytes / timed(lambda: dcp.load(state, checkpoint_id=path)) / 1e6)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder[0] + f"/{round_index}_0")
            shutil.rmtree(folder[0] + f"/{round_index}_1")
        dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0], ignore_errors=True)
        medians = {name + "_mb_s": round(statistics.median(values)) for name, values in rates.items()}
        print(json.dumps({"bench": "dcp", "mb": nbytes // 10**6, "ranks": dist.get_world_size(), **medians}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
