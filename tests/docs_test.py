#!/usr/bin/env python3
"""Runs the commands of README and docs: every line of a ```sh block, in order, in a fresh folder.

Blocks marked "```sh slow: reason" are listed, not run. `build/release/bin` stands for the build under test.
Usage: docs_test.py SOURCE_DIR BIN_DIR. Closes with "N passed, N failed".
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def blocks(text):
    for match in re.finditer(r"^```sh( slow: [^\n]*)?\n(.*?)^```$", text, re.M | re.S):
        yield match.group(1), [line for line in match.group(2).splitlines() if line.strip() and not line.startswith("#")]


def main():
    source, binaries = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    passed = failed = 0
    documents = [source / "README.md", source / "CONTRIBUTING.md", *sorted((source / "docs").glob("*.md"))]
    for document in documents:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("configs", "scripts", "docs", "cmake", "core", "tests"):
                os.symlink(source / name, pathlib.Path(folder, name))
            os.makedirs(pathlib.Path(folder, "build/release"))
            os.symlink(binaries, pathlib.Path(folder, "build/release/bin"))
            for slow, commands in blocks(document.read_text()):
                for command in commands:
                    if slow:
                        print(f"slow   {document.name}: {command}")
                        continue
                    result = subprocess.run(command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, timeout=180,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
                    ok = result.returncode == 0
                    passed, failed = passed + ok, failed + (not ok)
                    print(f"{'ok    ' if ok else 'FAILED'} {document.name}: {command}")
                    if not ok:
                        print(f"exit {result.returncode}\n{result.stdout[-3000:]}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
