"""PyTorch's DistributedDataParallel over Gloo, one process per replica, on the networks of bench/train/models.h.

    torch_ddp.py mlp --batch 256 --processes 2 [--serve]

Uses the protocol of lockstep_bench_train: `ready`, then a JSON line for every number of steps it reads. One process is
plain PyTorch with all cores. Needs torch and numpy.
"""
import argparse
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def make_model(name):
    if name == "mlp":
        layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
        return nn.Sequential(*layers), (784,)
    if name == "cnn":
        layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)), (1, 28, 28)
    layers = [layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 10)), (2048,)


def train(rank, args, port):
    torch.set_num_threads(1 if args.rank is not None else max(1, os.cpu_count() // args.processes))
    together = args.processes > 1
    if together:
        os.environ.update(MASTER_ADDR=args.master, MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.manual_seed(0)
    model, shape = make_model(args.model)
    if together:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    rows = args.batch // args.processes
    x, y = torch.randn(rows, *shape), torch.randint(0, 10, (rows,))

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

    def measure(count):
        start = time.perf_counter()
        steps(count)
        if together:
            dist.barrier()
        seconds = time.perf_counter() - start
        if rank == 0:
            line = {"model": args.model, "processes": args.processes, "steps": count, "seconds": seconds}
            print(json.dumps(dict(line, samples_per_s=args.batch * count / seconds)), flush=True)

    def shared(count):  # rank 0 reads the number and broadcasts it
        number = torch.tensor([count])
        if together:
            dist.broadcast(number, 0)
        return int(number)

    if args.rank is not None:  # one of two hosts: the middle one of some steps, with and without the other
        def median(train_once):
            times = []
            for k in range(12):
                start = time.perf_counter()
                train_once()
                times.append(time.perf_counter() - start)
            return sorted(times[3:])[4]

        alone_model, _ = make_model(args.model)
        alone_optimizer = torch.optim.SGD(alone_model.parameters(), lr=0.01, momentum=0.9)

        def alone_step():
            alone_optimizer.zero_grad()
            loss_of(alone_model(x), y).backward()
            alone_optimizer.step()

        dist.barrier()
        alone = median(alone_step)
        dist.barrier()
        line = {"model": args.model, "compute_ms": 1e3 * alone, "step_ms": 1e3 * median(lambda: steps(1))}
        if rank == 0:
            print(json.dumps(line), flush=True)
        dist.destroy_process_group()
        return
    steps(3)
    if not args.serve:
        measure(args.steps)
        return
    if rank == 0:
        print("ready", flush=True)
        with os.fdopen(args.input) as lines:
            for line in lines:
                measure(shared(int(line)))
        shared(0)
    else:
        while count := shared(0):
            measure(count)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "wide"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--rank", type=int, help="of this host; --master is the address of the first (bench/train/two_hosts.py)")
    parser.add_argument("--master", default="127.0.0.1")
    args = parser.parse_args()
    if args.rank is not None:
        return train(args.rank, args, 29611)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args.input = os.dup(sys.stdin.fileno())
    # Fork before LibTorch starts any thread; rank 0 keeps the input.
    children = [mp.get_context("fork").Process(target=train, args=(rank, args, port)) for rank in range(1, args.processes)]
    for child in children:
        child.start()
    train(0, args, port)
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
