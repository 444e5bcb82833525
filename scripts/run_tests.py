#!/usr/bin/env python3
"""Runs the test binaries that CTest knows and counts single cases.

Prints one line a binary, the log of each that failed, and last "N passed, N failed[, N skipped]".
Exit status 0 only if nothing failed and something ran.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET


def tests_of(build, label):
    text = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", "-L", label],
                          capture_output=True, text=True, check=True).stdout
    for test in json.loads(text)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        yield test["name"], test["command"], float(properties.get("TIMEOUT", 600))


def count_cases(report, name, status):
    """(passed, failed, skipped) of a GoogleTest report; a test without one counts as one case."""
    if not os.path.exists(report):
        return (1, 0, 0) if status == 0 else (0, 1, 0)
    passed = failed = skipped = 0
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            skipped += 1
        elif case.get("status") == "run":
            passed += 1
    if status != 0 and failed == 0:
        failed += 1  # it crashed after or between cases
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--label", default=".")
    options = parser.parse_args()
    logs = os.path.join(options.build, "test-logs")
    os.makedirs(logs, exist_ok=True)
    totals = [0, 0, 0]
    for name, command, timeout in tests_of(options.build, options.label):
        report, log = os.path.join(logs, name + ".xml"), os.path.join(logs, name + ".log")
        if os.path.exists(report):
            os.remove(report)
        environment = dict(os.environ, GTEST_OUTPUT="xml:" + os.path.abspath(report))
        # The agent forks a guardian before it starts threads in both.
        environment.setdefault("TSAN_OPTIONS", "die_after_fork=0")
        started = time.monotonic()
        with open(log, "wb") as out:
            try:
                status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                        env=environment, timeout=timeout).returncode
            except subprocess.TimeoutExpired:
                status = 124
                out.write(f"\nended after {timeout:.0f} s\n".encode())
        counts = count_cases(report, name, status)
        totals = [a + b for a, b in zip(totals, counts)]
        verdict = "ok  " if status == 0 else "FAIL"
        print(f"{verdict} {name}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped "
              f"({time.monotonic() - started:.1f} s)", flush=True)
        if status != 0:
            with open(log, errors="replace") as text:
                lines = text.read().splitlines()
            bad = [line for line in lines if re.search(r"FAILED|Failure|error:|ended after|ERROR|WARNING: Thread", line)]
            print("\n".join(["  " + line for line in bad[:40] + ["-- end of the log:"] + lines[-30:]]), flush=True)
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 0 if totals[1] == 0 and totals[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
