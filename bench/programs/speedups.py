#!/usr/bin/env python3
"""Trains whole programs, plain and with Lockstep, in turn, and prints how much faster Lockstep is than the plain program.

    bench/programs/speedups.py build/release/bench/lockstep_bench_programs

With K replicas the bound is K plain programs at once that never meet, each with 1/K of the cores: with 1/K of the rows each
("strong": the global batch stays as it is), or with as many rows as the plain program ("weak": the global batch grows). They
keep freed memory, as Lockstep does. All programs start once and then take turns, in an order that is reversed every round. A
ratio is the median of the per-round ratios, with the range of the middle half.
"""
import argparse
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))
from compare import Contestant, quantiles  # noqa: E402

BATCHES = {"mnist": 64, "vae": 128, "lstm": 32, "resnet": 128, "resnet_augmented": 64, "dcgan": 64, "gpt": 32}


class Group:
    """Plain programs that run at the same time and never meet."""

    def __init__(self, name, command, count):
        self.name = name
        self.rates = []
        self.members = [Contestant(f"{name} {k}", command) for k in range(count)]

    def measure(self, steps):
        for member in self.members:
            member.process.stdin.write(f"{steps}\n")
            member.process.stdin.flush()
        answers = [json.loads(member.process.stdout.readline()) for member in self.members]
        slowest = max(answers, key=lambda answer: answer["seconds"])
        return {**slowest, "samples_per_s": sum(answer["samples_per_s"] for answer in answers)}

    def stop(self):
        for member in self.members:
            member.stop()


def entrants_of(args, program):
    """By (kind, replicas): plain, ours and bound, weak or strong."""
    batch = BATCHES[program]
    base = [args.program, program, "--serve"]

    def plain(rows, cores, *more):
        return base + ["--plain", "--batch", str(rows), "--threads", str(cores), *more]

    found = {("plain", 1): Contestant("plain", plain(batch, args.cores))}
    found["kept", 1] = Contestant("plain, memory kept", plain(batch, args.cores, "--keep-memory"))
    for k in args.replicas:
        ours = base + ["--replicas", str(k)] + (["--from-tensors"] if args.from_tensors else [])
        found["strong", k] = Contestant(f"strong {k}", ours + ["--batch", str(batch)])
        if k == 1:
            continue
        share = plain(max(1, batch // k), max(1, args.cores // k), "--keep-memory")
        found["strong bound", k] = Group(f"strong bound {k}", share, k)
        if args.weak:
            found["weak", k] = Contestant(f"weak {k}", ours + ["--batch", str(batch * k)])
            whole = plain(batch, max(1, args.cores // k), "--keep-memory")
            found["weak bound", k] = Group(f"weak bound {k}", whole, k)
    return found


def ratio(above, below):
    low, middle, high = quantiles([x / y for x, y in zip(above.rates, below.rates)])
    return f"{middle:.2f} ({low:.2f} .. {high:.2f})"


def measure(args, program):
    entrants = entrants_of(args, program)
    steps = {}
    for key, entrant in entrants.items():
        entrant.measure(1)
        told = entrant.measure(2)
        steps[key] = max(1, round(args.seconds * told["steps"] / told["seconds"]))
    for round_number in range(args.rounds):
        order = list(entrants.items())
        for key, entrant in order if round_number % 2 == 0 else reversed(order):
            entrant.rates.append(entrant.measure(steps[key])["samples_per_s"])
    plain = entrants["plain", 1]
    rate = quantiles(plain.rates)[1]
    print(f"\n{program}, {BATCHES[program]} rows: plain {rate:,.0f} rows/s, with memory kept {ratio(entrants['kept', 1], plain)}")
    for k in args.replicas:
        for kind in ("strong", "weak"):
            if (kind, k) not in entrants:
                continue
            line = f"  {k:2} replicas, {kind:6}  {ratio(entrants[kind, k], plain)} of plain"
            if (f"{kind} bound", k) in entrants:
                bound = entrants[f"{kind} bound", k]
                line += f"   bound {ratio(bound, plain)}   {ratio(entrants[kind, k], bound)} of the bound"
            print(line)
    sys.stdout.flush()
    for entrant in entrants.values():
        entrant.stop()
    return {" ".join(map(str, key)): entrant.rates for key, entrant in entrants.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("program", help="lockstep_bench_programs")
    parser.add_argument("--programs", default=list(BATCHES), type=lambda text: text.split(","))
    parser.add_argument("--replicas", type=numbers, default=sorted({1, 2, cores}))
    parser.add_argument("--cores", type=int, default=cores)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate length of one program's turn")
    parser.add_argument("--no-weak", dest="weak", action="store_false")
    parser.add_argument("--from-tensors", action="store_true", help="Lockstep reads tensors, not a dataset of torch::data")
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    print(f"{args.cores} cores, {args.rounds} rounds of {args.seconds:g} s")
    figures = {program: measure(args, program) for program in args.programs}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
