#!/usr/bin/env python3
"""Rows per second of tf.data through the pipelines of lockstep_data_bench: one JSON line each, best of three passes.

usage: tf_data.py [rows] [pipeline ...]
"""
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

BATCH = 256
SHUFFLE = 10_000
PIXELS = 784
FILES = 4


def in_memory(images, labels):
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(SHUFFLE)


def memory(images, labels):
    return in_memory(images, labels).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def mapped(images, labels):
    scaled = in_memory(images, labels).map(lambda x, y: (x / 255.0 - 0.5, y), num_parallel_calls=2)
    return scaled.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def write_records(folder, images, labels):
    files = [os.path.join(folder, f"part-{f}.tfrecord") for f in range(FILES)]
    for f, file in enumerate(files):
        with tf.io.TFRecordWriter(file) as writer:
            for i in range(f, len(images), FILES):
                feature = {
                    "image": tf.train.Feature(float_list=tf.train.FloatList(value=images[i])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[i]])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return files


def records(files):
    spec = {
        "image": tf.io.FixedLenFeature([PIXELS], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(batch):
        parsed = tf.io.parse_example(batch, spec)
        return parsed["image"], parsed["label"]

    rows = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=FILES, num_parallel_calls=2
    )
    return rows.shuffle(SHUFFLE).batch(BATCH).map(parse, num_parallel_calls=2).prefetch(tf.data.AUTOTUNE)


def best_rate(dataset, rows):
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        seen = sum(int(images.shape[0]) for images, _ in dataset)
        if seen != rows:
            sys.exit(f"lost rows: {seen} of {rows}")
        best = max(best, rows / (time.perf_counter() - start))
    return round(best)


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    wanted = sys.argv[2:] or ["memory", "mapped", "records"]
    images = np.random.rand(rows, PIXELS).astype("f4")
    labels = np.random.randint(0, 10, rows).astype("i8")
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if name == "records":
                dataset = records(write_records(folder, images, labels))
            else:
                dataset = {"memory": memory, "mapped": mapped}[name](images, labels)
            print(json.dumps({"peer": "tf.data", "pipeline": name, "rows_per_s": best_rate(dataset, rows)}), flush=True)


if __name__ == "__main__":
    main()
