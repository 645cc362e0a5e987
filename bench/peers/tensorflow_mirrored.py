"""TensorFlow's MirroredStrategy over logical CPUs, on the networks of bench/train/models.h.

    tensorflow_mirrored.py mlp --batch 256 --replicas 2 [--serve]

Uses the protocol of lockstep_bench_train: `ready`, then a JSON line for every number of steps it reads. One replica is
plain TensorFlow with all cores. Needs tensorflow.
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf  # noqa: E402


def make_model(name):
    layers = tf.keras.layers
    if name == "mlp":
        return tf.keras.Sequential([tf.keras.Input((784,)), layers.Dense(1024, "relu"), layers.Dense(1024, "relu"), layers.Dense(10)]), (784,)
    if name == "cnn":
        body = [layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu"), layers.MaxPool2D(), layers.Flatten()]
        return tf.keras.Sequential([tf.keras.Input((28, 28, 1)), *body, layers.Dense(128, "relu"), layers.Dense(10)]), (28, 28, 1)
    return tf.keras.Sequential([tf.keras.Input((2048,)), *[layers.Dense(2048, "relu") for _ in range(8)], layers.Dense(10)]), (2048,)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "wide"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()

    strategy = tf.distribute.get_strategy()
    if args.replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * args.replicas)
        strategy = tf.distribute.MirroredStrategy([f"/cpu:{k}" for k in range(args.replicas)])
    with strategy.scope():
        model, shape = make_model(args.model)
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    rows = args.batch // args.replicas
    values = strategy.experimental_distribute_values_from_function
    x = values(lambda _: tf.random.normal((rows,) + shape))
    y = values(lambda _: tf.random.uniform((rows,), 0, 10, tf.int32))

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / args.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    def measure(count):
        start = time.perf_counter()
        for _ in range(count):
            loss = step()
        loss.numpy()
        seconds = time.perf_counter() - start
        line = {"model": args.model, "replicas": args.replicas, "steps": count, "seconds": seconds}
        print(json.dumps(dict(line, samples_per_s=args.batch * count / seconds)), flush=True)

    for _ in range(3):
        step().numpy()
    if not args.serve:
        measure(args.steps)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        measure(int(line))


if __name__ == "__main__":
    main()
