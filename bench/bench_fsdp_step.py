#!/usr/bin/env python3
"""The GPT-2 124M step of `muster run` on several ranks: median over the steps after the first two.

bench/bench_fsdp_step.py [BIN_DIR] [--ranks N ...] [--batch B] [--seq T] [--steps S] [key=value ...]; last line JSON.
The rival is bench/rivals/torch_fsdp2.py; parameters, gradients and moments are 4 x 4 bytes a parameter over the ranks.
Memory of rank 0: what its allocators held at most, and what fsdp/memory.h predicts, which leaves activations out.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def measure(binaries, ranks, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [binaries / "muster", "run", "--nproc-per-node", str(ranks), SOURCE / "configs/recipes/gpt_text_fsdp.yaml",
                   f"run.dir={folder}/run", "model.layers=12", "model.dim=768", "model.heads=12", "model.vocab=50257",
                   f"model.sequence={options.seq}", f"train.global_batch={options.batch}", f"train.microbatch={max(1, options.batch // ranks)}",
                   f"train.steps={options.steps}", "optimizer.warmup=1", "optimizer.lr=1e-4", "checkpoint.every=0", *options.overrides]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        steps = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        events = [json.loads(line) for line in open(f"{folder}/run/events.jsonl")]
    plan = next(event for event in events if event["event"] == "memory_plan")
    tokens = options.batch * options.seq
    median = statistics.median(step["tokens_per_s"] for step in steps[2:])
    return {"ranks": ranks, "median_ms": round(tokens / median * 1e3, 1), "tokens_per_s": round(median, 1), "rss_mb": steps[-1]["rss_mb"],
            "peak_mb": round(steps[-1]["peak_mb"], 1), "predicted_mb": round(plan["peak_mb"], 1), "state_mb": round(plan["state_mb"], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="?", default="build/release/bin")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="key=value")
    options = parser.parse_args()
    rows = [measure(pathlib.Path(options.binaries).resolve(), ranks, options) for ranks in options.ranks]
    for row in rows:
        print(f"{row['ranks']} ranks  {row['median_ms']:9.1f} ms a step  {row['tokens_per_s']:8.1f} tokens/s  {row['rss_mb']} MB resident, "
              f"{row['peak_mb']} MB allocated, {row['predicted_mb']} MB predicted ({row['state_mb']} of it state)")
    print(json.dumps({"bench": "fsdp_step", "batch": options.batch, "seq": options.seq, "rows": rows}))


if __name__ == "__main__":
    main()
