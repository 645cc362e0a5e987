#!/usr/bin/env python3
"""Writes metrics.json: values of scikit-learn for random outputs and targets. Needs numpy and scikit-learn (made with 1.9.1).

    python3 make_metrics.py > metrics.json
"""
import json
import warnings

import numpy as np
from sklearn import metrics as sk

warnings.simplefilter("ignore")  # quotients without examples count as 0
random = np.random.default_rng(20)
ROWS, CLASSES = 37, 5


def rounded(values, digits=4):
    """Few digits, so that float32 and this file hold the same numbers."""
    return np.round(np.asarray(values, dtype=np.float64), digits)


def f32(values):
    return np.asarray(values, dtype=np.float32).astype(np.float64)


scores = rounded(random.normal(size=(ROWS, CLASSES)))
labels = random.integers(0, CLASSES - 1, size=ROWS)  # the last class never occurs as a target
chances = rounded(1 / (1 + np.exp(-random.normal(size=ROWS) * 2)))
grid = np.round(chances * 128) / 128
truth = (random.random(ROWS) < chances).astype(int)
wanted = rounded(random.normal(size=(ROWS, 3)) * 3 + 7)
guessed = rounded(wanted + random.normal(size=(ROWS, 3)))
guess = scores.argmax(1)
hit = (chances > 0.5).astype(int)
log_chances = scores - np.log(np.exp(scores).sum(1, keepdims=True))

data = {"scores": scores, "labels": labels, "chances": chances, "grid": grid, "truth": truth, "wanted": wanted,
        "guessed": guessed}
cases = []


def case(metric, output, target, value, **options):
    cases.append({"metric": metric, "output": output, "target": target, "options": options, "value": float(value)})


case("accuracy", "scores", "labels", sk.accuracy_score(labels, guess))
for k in (2, 3, CLASSES):
    case("accuracy", "scores", "labels", sk.top_k_accuracy_score(labels, scores, k=k, labels=range(CLASSES)), top_k=k)
case("binary_accuracy", "chances", "truth", sk.accuracy_score(truth, hit))
case("binary_accuracy", "chances", "truth", sk.accuracy_score(truth, (chances > 0.3).astype(int)), threshold=0.3)
for name in ("macro", "micro", "weighted"):
    options = {"average": name, "classes": CLASSES}
    case("precision", "scores", "labels", sk.precision_score(labels, guess, average=name), **options)
    case("recall", "scores", "labels", sk.recall_score(labels, guess, average=name), **options)
    for beta in (1.0, 2.0, 0.5):
        value = sk.fbeta_score(labels, guess, beta=beta, average=name)
        case("f_beta", "scores", "labels", value, beta=beta, **options)
case("precision", "chances", "truth", sk.precision_score(truth, hit))
case("recall", "chances", "truth", sk.recall_score(truth, hit))
case("f_beta", "chances", "truth", sk.f1_score(truth, hit))
case("f_beta", "chances", "truth", sk.fbeta_score(truth, hit, beta=2.0), beta=2.0)
case("roc_auc", "grid", "truth", sk.roc_auc_score(truth, grid), thresholds=129)
case("pr_auc", "grid", "truth", sk.average_precision_score(truth, grid), thresholds=129)
for of in ("chances", "grid"):  # the second has equal scores
    case("roc_auc_exact", of, "truth", sk.roc_auc_score(truth, data[of]))
    case("pr_auc_exact", of, "truth", sk.average_precision_score(truth, data[of]))
case("roc_auc_near", "chances", "truth", sk.roc_auc_score(truth, chances), thresholds=200)
case("mse", "guessed", "wanted", sk.mean_squared_error(f32(wanted).ravel(), f32(guessed).ravel()))
case("rmse", "guessed", "wanted", sk.root_mean_squared_error(f32(wanted).ravel(), f32(guessed).ravel()))
case("mae", "guessed", "wanted", sk.mean_absolute_error(f32(wanted).ravel(), f32(guessed).ravel()))
case("r2", "guessed", "wanted", sk.r2_score(f32(wanted).ravel(), f32(guessed).ravel()))
case("cosine_similarity", "guessed", "wanted", np.diag(sk.pairwise.cosine_similarity(f32(guessed), f32(wanted))).mean())
probabilities = np.exp(log_chances)
case("perplexity", "scores", "labels", np.exp(sk.log_loss(labels, probabilities, labels=range(CLASSES))))
matrix = sk.confusion_matrix(labels, guess, labels=range(CLASSES))
print(json.dumps({"data": {k: v.tolist() for k, v in data.items()}, "cases": cases,
                  "confusion_matrix": matrix.tolist()}, indent=None, separators=(", ", ": ")).replace("}, {", "},\n{"))
