"""Prints records of event files in hexadecimal digits, made by the messages of PyPI's tensorboard: the golden values of
lockstep/train/logs/event_file_test.cpp.
"""
import sys

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

ONE = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
MOST = sys.float_info.max


def value(wall_time, step, **fields):
    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(**fields)]))


def text(content):
    tensor = TensorProto(dtype=7, tensor_shape=ONE, string_val=[content])
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    return value(2, 7, tag="t", tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin, data_class=2))


def histogram():
    above = []
    limit = 1e-12
    while limit < 1e20:
        above.append(limit)
        limit *= 1.1
    limits = [-MOST] + [-x for x in reversed(above)] + [0.0] + above + [MOST]
    counts = [0.0] * len(limits)
    for number in (-1.0, 0.0, 0.5, 0.5):
        counts[next(i for i, limit in enumerate(limits) if limit > number)] += 1
    kept = [i for i in range(len(limits)) if counts[i] or i + 1 == len(limits) or counts[i + 1]]
    return HistogramProto(min=-1, max=0.5, num=4, sum=0, sum_squares=1.5, bucket_limit=[limits[i] for i in kept],
                          bucket=[counts[i] for i in kept])


def hparams(name, **content):
    tensor = TensorProto(dtype=1, tensor_shape=ONE, float_val=[0])
    data = plugin_data_pb2.HParamsPluginData(**content).SerializeToString(deterministic=True)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=data), data_class=2)
    return value(1.5, 0, tag="_hparams_/" + name, tensor=tensor, metadata=metadata)


def scalar_of_tensorflow_2(**content):
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"), data_class=1)
    tensor = TensorProto(dtype=1, tensor_shape=TensorShapeProto(), **content)
    return value(2, 3, tag="x", tensor=tensor, metadata=metadata)


experiment = api_pb2.Experiment(time_created_secs=1.5)
for name, kind in (("adam", api_pb2.DATA_TYPE_BOOL), ("lr", api_pb2.DATA_TYPE_FLOAT64), ("net", api_pb2.DATA_TYPE_STRING),
                   ("zero", api_pb2.DATA_TYPE_FLOAT64)):
    experiment.hparam_infos.add(name=name, type=kind)
experiment.metric_infos.add(name=api_pb2.MetricName(tag="epoch_loss"))
session = plugin_data_pb2.SessionStartInfo(start_time_secs=1.5)
session.hparams["adam"].bool_value = True
session.hparams["lr"].number_value = 0.125
session.hparams["net"].string_value = "conv"
session.hparams["zero"].number_value = 0.0

records = {
    "SESSION": Event(wall_time=2, step=7, session_log=SessionLog(status=SessionLog.START)),
    "ZERO": value(2, 7, tag="zero", simple_value=0),
    "FIRST": value(2, 0, tag="first", simple_value=-1.5),
    "HISTOGRAM": value(2, 7, tag="h", histo=histogram()),
    "TEXT": text(b"*hi*"),
    "EMPTY_TEXT": text(b""),
    "EXPERIMENT": hparams("experiment", experiment=experiment),
    "TENSOR_OF_FLOATS": scalar_of_tensorflow_2(float_val=[0.5]),
    "TENSOR_OF_BYTES": scalar_of_tensorflow_2(tensor_content=b"\0\0\0\x3f"),
    "SESSION_INFO": hparams("session_start_info", session_start_info=session),
}
for name, record in records.items():
    print(name, record.SerializeToString(deterministic=True).hex())
