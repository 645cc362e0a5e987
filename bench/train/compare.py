#!/usr/bin/env python3
"""Trains the same networks with Lockstep, plain LibTorch, PyTorch DDP and TensorFlow in turn. Prints a table of ratios.

    bench/train/compare.py build/release/bench/lockstep_bench_train --batch 256

All programs of a network start once and then take turns: in each round every program does a few steps, in an order that is
reversed every round. A figure is the median over rounds, with the range of the middle half. A ratio is the median of the
per-round ratios, so that a machine that is slow for a while is slow for both.

With --workers it compares programs of several processes instead: Lockstep's workers, DDP, MultiWorkerMirroredStrategy.

DDP and TensorFlow are skipped, and the output says so, unless --torch-python and --tensorflow-python name interpreters that
can import them.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"


class Contestant:
    """A program that reads a number of steps and reports how fast it did them."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.rates = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        while (line := self.process.stdout.readline()).strip() != "ready":
            if not line:
                raise SystemExit(f"error: {name} did not start: {' '.join(command)}")

    def measure(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"error: {self.name} stopped before it reported a figure")
            if line.startswith("{"):
                return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Cluster(Contestant):
    """Workers that find each other by TF_CONFIG. The first one reads and reports."""

    def __init__(self, name, command, workers):
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
        addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
        for probe in probes:
            probe.close()

        def environment(index):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            # While the others are measured, Lockstep's workers would say that they wait for their turn.
            return {"LOCKSTEP_LOG": "error", **os.environ, "TF_CONFIG": json.dumps(config)}

        self.others = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment(index))
            for index in range(1, workers)
        ]
        super().__init__(name, command, environment(0))

    def stop(self):
        super().stop()
        for process in self.others:
            process.wait(timeout=60)


def quantiles(values):
    values = sorted(values)

    def at(q):
        place = q * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (values[high] - values[low]) * (place - low)

    return at(0.25), at(0.5), at(0.75)


def clusters(args, model):
    bench = [args.program, model, "--batch", str(args.batch), "--serve"]
    found = [Cluster(f"Lockstep {w} workers", bench + ["--replicas", "1", "--cluster"], w) for w in args.workers]
    if model == "cnn":
        channels_last = bench + ["--replicas", "1", "--cluster", "--channels-last"]
        found += [Cluster(f"Lockstep {w} workers, channels-last", channels_last, w) for w in args.workers]
    for w in args.workers:
        if args.torch_python:
            ddp = [args.torch_python, str(PEERS / "torch_ddp.py"), model, "--batch", str(args.batch), "--serve"]
            found.append(Contestant(f"DDP {w}", ddp + ["--processes", str(w)]))
        if args.tensorflow_python:
            peer = [args.tensorflow_python, str(PEERS / "tensorflow_multi_worker.py"), model, "--batch", str(args.batch)]
            found.append(Cluster(f"TensorFlow {w} workers", peer, w))
    return found


def contestants(args, model):
    bench = [args.program, model, "--batch", str(args.batch), "--serve"]
    found = [
        ("plain", bench + ["--plain"]),
        ("plain, memory kept", bench + ["--plain", "--keep-memory"]),
    ]
    for replicas in args.replicas:
        found.append((f"Lockstep {replicas}", bench + ["--replicas", str(replicas)]))
    if model == "cnn":
        found.append(("plain, memory kept, channels-last", bench + ["--plain", "--keep-memory", "--channels-last"]))
        for replicas in args.replicas:
            found.append((f"Lockstep {replicas}, channels-last", bench + ["--replicas", str(replicas), "--channels-last"]))
        found.append((f"Lockstep {args.replicas[-1]}, LibTorch's kernels", bench + ["--replicas", str(args.replicas[-1]), "--libtorch-kernels"]))
    if args.torch_python:
        for processes in args.processes:
            ddp = [args.torch_python, str(PEERS / "torch_ddp.py"), model, "--batch", str(args.batch), "--serve"]
            found.append((f"DDP {processes}", ddp + ["--processes", str(processes)]))
    if args.tensorflow_python:
        for replicas in args.tensorflow_replicas:
            peer = [args.tensorflow_python, str(PEERS / "tensorflow_mirrored.py"), model, "--batch", str(args.batch), "--serve"]
            found.append((f"TensorFlow mirrored {replicas}", peer + ["--replicas", str(replicas)]))
    return found


def print_table(model, args, entrants):
    def median_rate(entrant):
        return quantiles(entrant.rates)[1]

    def best(prefix):
        found = [e for e in entrants if e.name.startswith(prefix)]
        return max(found, key=median_rate) if found else None

    peers = [e for e in (best("plain"), best("DDP"), best("TensorFlow")) if e]
    print(f"\n{model}, global batch {args.batch}, {os.cpu_count()} cores, {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'':34} {'samples/s':>10} {'25 .. 75 %':>18}  " + "  ".join(f"over best {p.name.split(',')[0]:>22}" for p in peers))
    for entrant in entrants:
        low, middle, high = quantiles(entrant.rates)
        cells = []
        for peer in peers:
            a, b, c = quantiles([x / y for x, y in zip(entrant.rates, peer.rates)])
            cells.append(f"{b:>12.2f} ({a:.2f} .. {c:.2f})    ")
        print(f"{entrant.name:34} {middle:>10,.0f} {f'{low:,.0f} .. {high:,.0f}':>18}  " + "  ".join(cells))
    sys.stdout.flush()


def compare(model, args):
    entrants = clusters(args, model) if args.workers else [Contestant(*each) for each in contestants(args, model)]
    steps = [max(1, round(args.seconds * e.measure(2)["steps"] / e.measure(2)["seconds"])) for e in entrants]
    for round_number in range(args.rounds):
        order = list(zip(entrants, steps))
        for entrant, count in order if round_number % 2 == 0 else reversed(order):
            entrant.rates.append(entrant.measure(count)["samples_per_s"])
    print_table(model, args, entrants)
    for entrant in entrants:
        entrant.stop()
    return {e.name: e.rates for e in entrants}


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="lockstep_bench_train")
    parser.add_argument("--models", default="mlp,cnn,wide", type=lambda text: text.split(","))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="approximate length of one program's turn")
    parser.add_argument("--replicas", type=numbers, default=[1, 2])
    parser.add_argument("--workers", type=numbers, default=[], help="compare programs of this many processes")
    parser.add_argument("--processes", type=numbers, default=[2], help="processes of DDP")
    parser.add_argument("--tensorflow-replicas", type=numbers, default=[2])
    parser.add_argument("--torch-python", default="")
    parser.add_argument("--tensorflow-python", default="")
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    for peer, python in (("DDP", args.torch_python), ("TensorFlow", args.tensorflow_python)):
        if not python:
            print(f"skipping {peer}: no interpreter given")
    figures = {model: compare(model, args) for model in args.models}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
