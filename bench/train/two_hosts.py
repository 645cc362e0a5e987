#!/usr/bin/env python3
"""Trains on two hosts, one core and one worker each: network namespaces joined by a link of a given rate. Needs root.

    bench/train/two_hosts.py build/release/bench/lockstep_bench_train 1gbit --torch-python python3

For each network, Lockstep and (with --torch-python) PyTorch DDP take turns. A step cannot be shorter than the computing of the
worker, nor than `first`, when the first megabyte of gradients is computed, and sending all gradients once (`wire`). The core
that computes also moves the bytes: `socket` is its time for a bare transfer of them in both directions. `bound` is the larger
of the first two with that time added, and `over` is the step divided by it.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys

PEER = pathlib.Path(__file__).resolve().parent.parent / "peers" / "torch_ddp.py"
MEGABYTES = {"mlp": 7.5, "cnn": 4.8, "wide": 134.4}
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@contextlib.contextmanager
def two_hosts(rate):
    spaces = [f"lockstep-{os.getpid()}-{k}" for k in range(2)]
    run = lambda *command: subprocess.run(command, check=True)  # noqa: E731
    try:
        for space in spaces:
            run("ip", "netns", "add", space)
        run("ip", "link", "add", "lsveth0", "netns", spaces[0], "type", "veth", "peer", "name", "lsveth1", "netns", spaces[1])
        for k, space in enumerate(spaces):
            run("ip", "-n", space, "addr", "add", f"{ADDRESSES[k]}/24", "dev", f"lsveth{k}")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", f"lsveth{k}", "up")
            limit = ("rate", rate, "burst", "512kb", "latency", "20ms")
            run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", f"lsveth{k}", "root", "tbf", *limit)
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(("ip", "netns", "del", space), check=False)


def run_pair(spaces, commands, environments):
    started = []
    for k, (space, command, environment) in enumerate(zip(spaces, commands, environments)):
        pinned = ["ip", "netns", "exec", space, "taskset", "-c", str(k % os.cpu_count()), *command]
        started.append(subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=dict(os.environ, **environment)))
    output = started[0].communicate(timeout=600)[0]
    started[1].communicate(timeout=60)
    if any(process.returncode for process in started):
        raise SystemExit(f"error: {' '.join(commands[0])} failed")
    return json.loads(output.strip().splitlines()[-1])


def lockstep(spaces, args, model):
    command = [args.program, model, "--batch", str(args.batch), "--replicas", "1", "--cluster", "--alone-first", "--steps", "9"]
    entries = [f"{address}:29700" for address in ADDRESSES]
    key = "00" * 32  # the hosts are ours alone
    environments = [
        {
            "LOCKSTEP_JOB_KEY": key,
            "OMP_NUM_THREADS": "1",
            "TF_CONFIG": json.dumps({"cluster": {"worker": entries}, "task": {"type": "worker", "index": k}}),
        }
        for k in range(2)
    ]
    return run_pair(spaces, [command, command], environments)


def ddp(spaces, args, model):
    commands = [
        [args.torch_python, str(PEER), model, "--batch", str(args.batch), "--processes", "2", "--rank", str(k), "--master", ADDRESSES[0]]
        for k in range(2)
    ]
    return run_pair(spaces, commands, [{"GLOO_SOCKET_IFNAME": f"lsveth{k}"} for k in range(2)])


TRANSFER = """
import socket, sys, threading, time
size, rank = int(sys.argv[1]), int(sys.argv[2])
address = ("10.77.0.1", 29701)
if rank == 0:
    link = socket.create_server(address).accept()[0]
else:
    deadline = time.monotonic() + 20
    while True:
        try:
            link = socket.create_connection(address)
            break
        except OSError:
            if time.monotonic() > deadline: raise
            time.sleep(0.05)
data, into = bytes(size), bytearray(1 << 20)
used = time.process_time()
sender = threading.Thread(target=link.sendall, args=(data,))
sender.start()
got = 0
while got < size: got += link.recv_into(into)
sender.join()
print('{"cpu_ms": %f}' % (1e3 * (time.process_time() - used)))
"""


def socket_ms(spaces, model):
    size = str(int(MEGABYTES[model] * 1e6))
    commands = [[sys.executable, "-c", TRANSFER, size, str(k)] for k in range(2)]
    return sorted(run_pair(spaces, commands, [{}, {}])["cpu_ms"] for _ in range(3))[1]


def gigabits(rate):
    number = float("".join(c for c in rate if c.isdigit() or c == "."))
    return number if "gbit" in rate else number / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="lockstep_bench_train")
    parser.add_argument("rates", nargs="*", default=["1gbit", "10gbit"])
    parser.add_argument("--models", default="mlp,cnn,wide", type=lambda text: text.split(","))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-python", default="")
    args = parser.parse_intermixed_args()
    contestants = {"Lockstep": lockstep} | ({"DDP": ddp} if args.torch_python else {})
    columns = ("compute", "first", "wire", "socket", "bound", "step")
    print(f"{'':6} {'link':>7} {'':9}" + "".join(f"{column:>11}" for column in columns) + "  over")
    for rate in args.rates:
        with two_hosts(rate) as spaces:
            for model in args.models:
                wire = MEGABYTES[model] * 8 / gigabits(rate)
                bare = socket_ms(spaces, model)
                found = {name: [] for name in contestants}
                for _ in range(args.rounds):
                    for name, contestant in contestants.items():
                        found[name].append(contestant(spaces, args, model))
                for name, figures in found.items():
                    figures.sort(key=lambda figure: figure["step_ms"])
                    middle = figures[len(figures) // 2]
                    first = found["Lockstep"][0]["first_ms"]  # DDP computes the same
                    bound = max(first + wire, middle["compute_ms"]) + bare
                    times = (middle["compute_ms"], first, wire, bare, bound, middle["step_ms"])
                    text = "".join(f"{time:>8.1f} ms" for time in times)
                    print(f"{model:6} {rate:>7} {name:9}{text}  {middle['step_ms'] / bound:.2f}")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
