#!/usr/bin/env python3
"""Writes schedules.json: learning rates of PyTorch's and Keras's schedules. Needs torch and keras (made with 2.15.0 and 3.15.1).

    KERAS_BACKEND=torch python3 make_schedules.py > schedules.json
"""
import json
import warnings

import torch
from keras.optimizers import schedules as keras
from torch.optim import lr_scheduler as pt

warnings.simplefilter("ignore")  # schedulers that step without their optimizer
STEPS = 60
rows = []


def of_torch(name, make, start, **options):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=start)
    scheduler = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    rows.append({"schedule": name, "of": type(scheduler).__name__, "options": options, "rates": rates})


def of_keras(name, schedule, **options):
    rates = [float(schedule(step)) for step in range(STEPS)]
    rows.append({"schedule": name, "of": type(schedule).__name__, "options": options, "rates": rates})


of_torch("step", lambda o: pt.StepLR(o, 7, 0.3), 0.5, base=0.5, every=7, factor=0.3)
of_torch("exponential", lambda o: pt.ExponentialLR(o, 0.9), 0.5, base=0.5, every=1, factor=0.9)
of_keras("exponential", keras.ExponentialDecay(0.5, 20, 0.25), base=0.5, every=20, factor=0.25)
of_torch("polynomial", lambda o: pt.PolynomialLR(o, 40, 2.0), 0.5, base=0.5, total_steps=40, power=2.0, end=0.0)
of_keras("polynomial", keras.PolynomialDecay(0.5, 40, 0.1, 0.5), base=0.5, total_steps=40, power=0.5, end=0.1)
of_torch("piecewise", lambda o: pt.MultiStepLR(o, [10, 35], 0.1), 0.5, boundaries=[10, 35], rates=[0.5, 0.05, 0.005])
of_torch("one_cycle", lambda o: pt.OneCycleLR(o, 0.8, total_steps=STEPS + 1), 0.1, peak=0.8, total_steps=STEPS + 1,
         rise=0.3, start_divisor=25.0, end_divisor=1e4)
of_torch("one_cycle", lambda o: pt.OneCycleLR(o, 0.8, total_steps=STEPS + 1, pct_start=0.55, div_factor=3.0,
                                              final_div_factor=10.0), 0.1, peak=0.8, total_steps=STEPS + 1, rise=0.55,
         start_divisor=3.0, end_divisor=10.0)
for factor in (1, 2, 3):
    of_torch("cosine_restarts", lambda o: pt.CosineAnnealingWarmRestarts(o, 7, factor, 0.01), 0.5, base=0.5, first_steps=7,
             length_factor=factor, rate_factor=1.0, end=0.01)
of_keras("cosine_restarts", keras.CosineDecayRestarts(0.5, 9, t_mul=1.5, m_mul=0.8, alpha=0.1), base=0.5, first_steps=9,
         length_factor=1.5, rate_factor=0.8, end=0.05)
of_keras("cosine_restarts", keras.CosineDecayRestarts(0.5, 9, t_mul=1.0, m_mul=0.5), base=0.5, first_steps=9,
         length_factor=1.0, rate_factor=0.5, end=0.0)
of_torch("warmup_exponential", lambda o: pt.SequentialLR(
    o, [pt.LinearLR(o, 0.25, 1.0, 3), pt.ExponentialLR(o, 0.9)], [4]), 0.5, steps=4, base=0.5, every=1, factor=0.9)
print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
