#!/usr/bin/env python3
"""Runs lockstep_data_bench and, if TensorFlow is installed, tf.data in turn. Prints a table of rows per second.

usage: compare.py PROGRAM [rounds] [rows]
The interpreter for tf.data is $TF_PYTHON or, by default, this one. A figure is the median over rounds of the best of three
passes; a ratio is the median of the ratios within rounds, with its range.
"""
import json
import os
import statistics
import subprocess
import sys

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers", "tf_data.py")
# (peer, pipeline): how many times as fast Lockstep should be.
GOALS = {
    ("tf.data", "memory"): 5,
    ("tf.data", "mapped"): 8,
    ("tf.data", "records"): 3,
    ("torch::data", "memory"): 5,
}


def figures(command):
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {(f["peer"], f["pipeline"]): f["rows_per_s"] for f in map(json.loads, output.splitlines())}


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rows = sys.argv[3] if len(sys.argv) > 3 else "60000"
    python = os.environ.get("TF_PYTHON", sys.executable)
    has_tensorflow = subprocess.run([python, "-c", "import tensorflow"], stderr=subprocess.DEVNULL).returncode == 0
    commands = [[program, rows]] + ([[python, PEER, rows]] if has_tensorflow else [])
    if not has_tensorflow:
        print("skipping tf.data: no tensorflow in", python)
    seen = []
    for r in range(rounds):
        both = {}
        for command in commands if r % 2 == 0 else reversed(commands):
            both.update(figures(command))
        seen.append(both)
    print(f"{'pipeline':10} {'who':12} {'rows/s':>12}   Lockstep is faster by (range)        goal")
    for peer, pipeline in sorted(seen[0], key=lambda key: (key[1], key[0])):
        line = f"{pipeline:10} {peer:12} {statistics.median(s[peer, pipeline] for s in seen):12,.0f}"
        if peer != "lockstep":
            ratios = sorted(s["lockstep", pipeline] / s[peer, pipeline] for s in seen)
            median = statistics.median(ratios)
            line += f"   {median:6.1f} x ({ratios[0]:.1f} .. {ratios[-1]:.1f})"
            goal = GOALS.get((peer, pipeline))
            if goal:
                line = f"{line:62} {goal} x {'reached' if median >= goal else 'MISSED'}"
        print(line)


if __name__ == "__main__":
    main()
