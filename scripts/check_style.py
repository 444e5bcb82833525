#!/usr/bin/env python3
"""Checks sizes, formatting, sleeps in tests, and ASCII: the house rules that a machine can check.

Limits (lines): header 400, source 800, test 800. .ci/size_allow.txt lists exceptions with a reason, each
with the size it may have at most. --format also runs clang-format in check mode where it is installed.
"""
import pathlib
import re
import shutil
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cpp", ".cu", ".inc"}
TOPS = ["core", "dist", "fsdp", "pipeline", "checkpoint", "launcher", "train", "tests", "bench", "examples"]


def allowed_sizes():
    path = root / ".ci/size_allow.txt"
    rows = path.read_text().splitlines() if path.exists() else []
    return {r.split()[1]: int(r.split()[0]) for r in rows if r.strip() and not r.startswith("#")}


def main():
    allow = allowed_sizes()
    faults = []
    files = [f for top in TOPS for f in sorted((root / top).rglob("*")) if f.suffix in CODE]
    for file in files:
        name = file.relative_to(root).as_posix()
        text = file.read_bytes()
        lines = text.count(b"\n")
        limit = allow.get(name, 400 if file.suffix == ".h" else 800)
        if lines > limit:
            faults.append(f"{name}: {lines} lines; at most {limit}")
        if not text.isascii():
            faults.append(f"{name}: not ASCII")
        # Highway compiles files once per target: they guard themselves, by name -inl.h or by its macro.
        per_target = name.endswith("-inl.h") or b"HWY_" in text
        if file.suffix == ".h" and not per_target and b"#pragma once" not in text:
            faults.append(f"{name}: no #pragma once")
        if name.startswith("tests/") and re.search(rb"sleep_for|usleep|[^a-z_]sleep\(", text):
            faults.append(f"{name}: sleeps; use a hold point, a deadline or a manual clock")
    formatter = shutil.which("clang-format")
    if "--format" in sys.argv and formatter:
        for at in range(0, len(files), 50):
            result = subprocess.run([formatter, "--dry-run", "-Werror", *map(str, files[at:at + 50])],
                                    capture_output=True, text=True)
            faults += sorted({line.split(":")[0] + ": not formatted" for line in result.stderr.splitlines()
                              if "code should be clang-formatted" in line})
    print("\n".join(faults) if faults else f"style: {len(files)} files are fine")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
