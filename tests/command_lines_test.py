#!/usr/bin/env python3
"""Every program says how it is used, and what is wrong with a command line in one line, with exit status 64.

Usage: command_lines_test.py BIN_DIR. Closes with "N passed, N failed".
"""
import pathlib
import subprocess
import sys

VERBS = ["run", "status", "top", "logs", "recipe", "drill", "report", "ckpt", "generate", "logits", "ops", "schedule"]
WRONG = "--no-such-option"


def run(*command):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60)


def main():
    binaries = pathlib.Path(sys.argv[1])
    benches = sorted(path for path in binaries.glob("bench_*") if path.is_file())
    if not benches:
        sys.exit(f"no bench_* in {binaries}")
    checks = []
    for program in [*benches, *[binaries / name for name in ("muster", "muster-train", "muster-tools")]]:
        result = run(program, "--help")
        checks.append((f"{program.name} --help", result.returncode == 0 and "usage: " in result.stdout.lower(), result))
    for verb in VERBS:
        result = run(binaries / "muster", verb, "--help")
        checks.append((f"muster {verb} --help", result.returncode == 0 and "usage: muster" in result.stdout.lower(), result))
        result = run(binaries / "muster", verb, WRONG)
        expected = 2 if verb == "run" else 64  # as torchrun's argparse
        checks.append((f"muster {verb} {WRONG}", result.returncode == expected and result.stderr and not result.stdout, result))
    for bench in benches:
        result = run(bench, WRONG)
        checks.append((f"{bench.name} {WRONG}", result.returncode == 64 and result.stderr.count("\n") == 1 and not result.stdout, result))
    for name, ok, result in checks:
        print(f"{'ok    ' if ok else 'FAILED'} {name}" + ("" if ok else f": exit {result.returncode}\n{result.stdout}{result.stderr}"))
    failed = sum(not ok for _, ok, _ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
