"""TensorFlow's MultiWorkerMirroredStrategy, one process per worker, on the networks of bench/train/models.h.

    TF_CONFIG=... tensorflow_multi_worker.py mlp --batch 256

Worker 0 uses the protocol of lockstep_bench_train --serve, and tells the others how many steps to take. Needs tensorflow.
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf  # noqa: E402

from tensorflow_mirrored import make_model  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "wide"])
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    workers, rank = len(config["cluster"]["worker"]), config["task"]["index"]
    threads = max(1, os.cpu_count() // workers)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads + 1)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, shape = make_model(args.model)
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    rows = args.batch // workers
    x, y = tf.random.normal((rows,) + shape), tf.random.uniform((rows,), 0, 10, tf.int32)

    def replica_step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / args.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def step():
        return strategy.run(replica_step)

    @tf.function
    def shared(number):
        return strategy.reduce("SUM", strategy.run(lambda: number), axis=None)

    def measure(count):
        start = time.perf_counter()
        for _ in range(count):
            loss = step()
        loss.numpy()
        seconds = time.perf_counter() - start
        if rank == 0:
            print(json.dumps({"steps": count, "seconds": seconds, "samples_per_s": args.batch * count / seconds}), flush=True)

    for _ in range(3):
        step().numpy()
    if rank == 0:
        print("ready", flush=True)
    while True:
        line = sys.stdin.readline() if rank == 0 else ""
        count = int(shared(tf.constant(float(line) if line.strip() else 0.0)).numpy())
        if count == 0:
            return
        measure(count)


if __name__ == "__main__":
    main()
