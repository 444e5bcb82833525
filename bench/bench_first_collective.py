#!/usr/bin/env python3
"""Time to the first collective of muster-train on 4 ranks: after launch, and after SIGKILL of one worker.

Reads the agent's events and the trainer's; last line JSON.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("binaries", nargs="?", type=pathlib.Path, default="build/release/bin")
parser.add_argument("rounds", nargs="?", type=int, default=20)
arguments = parser.parse_args()
binaries, rounds = arguments.binaries.resolve(), arguments.rounds
source = pathlib.Path(__file__).resolve().parent.parent


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def percentile(values, p):
    return round(sorted(values)[min(len(values) - 1, int(len(values) * p))], 2)


launches, restarts = [], []
for _ in range(rounds):
    with tempfile.TemporaryDirectory() as folder:
        events = os.path.join(folder, "agent.jsonl")
        environment = dict(os.environ, MUSTER_EVENTS=events, MUSTER_LOG="error",
                           MUSTER_FAULTS="point=train.step_begin;rank=3;attempt=0;do=kill;step=2")
        start = time.monotonic_ns()
        subprocess.run([binaries / "muster", "run", "--nproc-per-node", "4", "--max-restarts", "1",
                        source / "configs/recipes/gpt_text_fsdp.yaml", "run.dir=" + folder + "/run", "train.steps=2",
                        "optimizer.warmup=1", "model.layers=1", "model.dim=32", "model.heads=2", "train.global_batch=4",
                        "checkpoint.every=0"], env=environment, check=True, stdout=subprocess.DEVNULL)
        ready = {e["attempt"]: e["t_ns"] for e in lines(folder + "/run/events.jsonl") if e["event"] == "group_ready"}
        died = [e["t_ns"] for e in lines(events) if e["event"] == "worker_exit"][0]
        launches.append((ready[0] - start) / 1e6)
        restarts.append((ready[1] - died) / 1e6)

result = {"bench": "first_collective", "ranks": 4, "rounds": rounds}
for name, values in (("launch_ms", launches), ("restart_ms", restarts)):
    result[name] = {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}
print(json.dumps(result))
