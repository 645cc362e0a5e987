"""Files of Lockstep read by TensorFlow, TensorBoard, numpy, safetensors and Python's csv, and the other way round.

usage: interop.py CHECK TOOL      CHECK: a key of `checks`; TOOL: interop_tool, or interop_checkpoint; both sides know the contents by the same formulas
exit status 77: the module is not installed, nothing was checked
"""
import csv
import os
import sys
import tempfile

from common import expect, require, tool
from tensorboard_files import check_tensorboard

RECORDS = 50


def check_tensorflow(folder):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    tf = require("tensorflow")
    np = require("numpy")

    def values(i):
        return {
            "floats": [i + 0.5 * j for j in range(i % 5)],
            "image": [(i * 784 + j) / 16 for j in range(784)],
            "ints": [i, -i, i << 40],
            "text": [b"record %d" % i, b"", b"\x00\xff"],
        }

    def serialized(i):
        v = values(i)
        feature = {
            "floats": tf.train.Feature(float_list=tf.train.FloatList(value=v["floats"])),
            "image": tf.train.Feature(float_list=tf.train.FloatList(value=v["image"])),
            "ints": tf.train.Feature(int64_list=tf.train.Int64List(value=v["ints"])),
            "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=v["text"])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        return example.SerializeToString(deterministic=True)

    spec = {
        "floats": tf.io.VarLenFeature(tf.float32),
        "image": tf.io.FixedLenFeature([28, 28], tf.float32),
        "ints": tf.io.FixedLenFeature([3], tf.int64),
        "text": tf.io.FixedLenFeature([3], tf.string),
    }
    kinds = {"plain": "", "zlib": "ZLIB", "gzip": "GZIP"}

    tool("write-tensorflow", folder)
    for name, compression in kinds.items():
        records = list(tf.data.TFRecordDataset(os.path.join(folder, name), compression).as_numpy_iterator())
        expect(len(records) == RECORDS, f"TensorFlow reads {RECORDS} records of {name}")
        for i, record in enumerate(records):
            expect(record == serialized(i), f"record {i} of {name} has the bytes of TensorFlow")
            parsed = tf.io.parse_single_example(record, spec)
            v = values(i)
            expect(np.array_equal(tf.sparse.to_dense(parsed["floats"]), np.float32(v["floats"])), f"floats of record {i}")
            expect(np.array_equal(parsed["image"], np.float32(v["image"]).reshape(28, 28)), f"image of record {i}")
            expect(parsed["ints"].numpy().tolist() == v["ints"], f"ints of record {i}")
            expect(parsed["text"].numpy().tolist() == v["text"], f"text of record {i}")

    for name, compression in kinds.items():
        with tf.io.TFRecordWriter(os.path.join(folder, name), compression) as writer:
            for i in range(RECORDS):
                writer.write(serialized(i))
    tool("check-tensorflow", folder)
    check_text(tf, folder)
    print(f"TensorFlow {tf.__version__}: {2 * len(kinds)} files of {RECORDS} records agree")


# Of the rows, only what both sides take for the same: a broken record ends with its line.
LINES = [b"", b"\n", b"a", b"a\nb\n", b"one\r\ntwo\n\r\n\nfive\r\r\nlast\r", b"a\rb\nc\r\nd\r", b"x\r\n\r", b"\r", b"a\rb\rc"]
ROWS = [
    b"a,1\nb,2\n",
    b'a,1\nx"y,2\nb,3\n',
    b'a,1\nx"y\nz",2\nb,3\n',
    b'x"y,2\nb,3\n',
    b"a,1\nb\nc,2,3\nd,4\n",
    b"a,1\nb,x\nc,3\n",
    b'a,1\n"b""\r\n,",2\nc,3',
    b'a,1\n"b,2\nc,3\n',
]


def check_text(tf, folder):
    def with_length(text):
        return b"%d:%s;" % (len(text), text)

    def lines(path):
        return b"".join(with_length(line) for line in tf.data.TextLineDataset(path).as_numpy_iterator())

    def rows(path):
        found = b""
        iterator = iter(tf.data.experimental.CsvDataset(path, [tf.string, tf.int64]))
        while True:
            try:
                text, number = next(iterator)
                found += with_length(text.numpy()) + with_length(b"%d" % number.numpy())
            except StopIteration:
                return found
            except tf.errors.InvalidArgumentError:
                found += b"!"

    files = [(f"lines-{i}", text, lines) for i, text in enumerate(LINES)]
    files += [(f"rows-{i}", text, rows) for i, text in enumerate(ROWS)]
    for name, text, _ in files:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(text)
    tool("read-text", folder)
    for name, text, read in files:
        path = os.path.join(folder, name)
        with open(path + ".read", "rb") as file:
            found = file.read()
        wanted = read(path)
        expect(found == wanted, f"{text} is read as {wanted}, not as {found}")


def check_numpy(folder):
    np = require("numpy")
    kinds = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]

    def array(kind):
        numbers = np.arange(6)
        if kind == "b1":
            numbers = numbers % 2
        if kind[0] == "c":
            numbers = numbers - 1j * numbers
        return numbers.astype(kind).reshape(2, 3)

    fortran = np.asfortranarray(np.arange(6, dtype="f8").reshape(2, 3).T)

    tool("write-numpy", folder)
    for kind in kinds:
        read = np.load(os.path.join(folder, f"{kind}.npy"), allow_pickle=False)
        expect(read.dtype == np.dtype(kind) and np.array_equal(read, array(kind)), f"numpy reads {kind}")
        mapped = np.load(os.path.join(folder, f"{kind}.npy"), mmap_mode="r")
        expect(np.array_equal(mapped, array(kind)), f"numpy maps {kind}")
    read = np.load(os.path.join(folder, "fortran.npy"))
    expect(read.flags.f_contiguous and np.array_equal(read, fortran), "numpy reads Fortran order")

    for kind in kinds:
        for major in (1, 2, 3):
            with open(os.path.join(folder, f"{kind}.{major}.npy"), "wb") as out:
                np.lib.format.write_array(out, array(kind), version=(major, 0))
    np.save(os.path.join(folder, "fortran.npy"), fortran)
    tool("check-numpy", folder)
    print(f"numpy {np.__version__}: {len(kinds)} element types agree, both ways, versions 1 to 3")


def check_safetensors(folder):
    np = require("numpy")
    safetensors = require("safetensors")
    from safetensors.numpy import load_file, save_file

    kinds = ["b1", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "f8", "i8", "u8"]
    metadata = {'key "1"': "l\u00e4nge\n", "steps": "12"}
    path = os.path.join(folder, "tensors.safetensors")
    arrays = {kind: (np.arange(6) % 2 if kind == "b1" else np.arange(6)).astype(kind).reshape(2, 3) for kind in kinds}
    arrays["empty"] = np.zeros((0, 3), "f4")

    tool("write-safetensors", folder)
    read = load_file(path)
    expect(set(read) == set(arrays), "safetensors reads all names")
    for name, array in arrays.items():
        expect(read[name].dtype == array.dtype and np.array_equal(read[name], array), f"safetensors reads {name}")
    with safetensors.safe_open(path, "np") as file:
        expect(file.metadata() == metadata, "safetensors reads the metadata")

    save_file(arrays, path, metadata)
    tool("check-safetensors", folder)
    print(f"safetensors {safetensors.__version__}: {len(arrays)} tensors and metadata agree, both ways")


def check_checkpoint(folder):
    np = require("numpy")
    safetensors = require("safetensors")
    from safetensors.numpy import load_file, save_file

    tool("write", folder)
    checkpoints = os.path.join(folder, "checkpoints")
    newest = os.path.join(checkpoints, max(name for name in os.listdir(checkpoints) if name.startswith("step-")))
    files = sorted(name for name in os.listdir(newest) if name.endswith(".safetensors"))
    read = {name: load_file(os.path.join(newest, name)) for name in files}
    compared = 0
    with open(os.path.join(folder, "values.txt"), encoding="utf-8") as lines:
        for line in lines:
            part, name, *values = line.split()
            tensor = read[part + ".safetensors"][name]
            wanted = np.array([float.fromhex(value) for value in values], "f8")
            expect(np.array_equal(tensor.astype("f8").flatten(), wanted), f"{part} {name} has the values of the training")
            compared += wanted.size
    weights = read["model.safetensors"]
    expect(weights["first.weight"].dtype == np.float32 and weights["first.weight"].shape == (8, 3), "types and shapes")
    expect(all(int(tensor) == 12 for name, tensor in read["optimizer.safetensors"].items() if name.endswith("/step")), "12 steps")
    running = read["model.replicas.safetensors"]
    expect(not np.array_equal(running["0/norm.running_mean"], running["1/norm.running_mean"]), "each replica has its own buffers")

    save_file({name: tensor * 2 for name, tensor in weights.items()}, os.path.join(folder, "doubled.safetensors"), {"by": "Python"})
    tool("load", folder)
    print(f"safetensors {safetensors.__version__}: {len(files)} files of a checkpoint, {compared} values agree, both ways")


def check_csv(folder):
    with open(os.path.join(folder, "rows.csv"), "w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["a", "b", "c", "d", "e"])
        for i in range(RECORDS):
            writer.writerow([i, f'quote " {i}', f"line\r\n{i}\nend", f"comma,{i}", ""])
    tool("check-csv", folder)
    print("csv: rows with quotes, line ends and commas agree")


with tempfile.TemporaryDirectory() as workplace:
    checks = {
        "tensorflow": check_tensorflow,
        "tensorboard": check_tensorboard,
        "numpy": check_numpy,
        "csv": check_csv,
        "safetensors": check_safetensors,
        "checkpoint": check_checkpoint,
    }
    checks[sys.argv[1]](workplace)
