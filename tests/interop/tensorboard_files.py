"""Event files of Lockstep read by TensorBoard's own readers."""
import io
import os

from common import expect, require, tool

FIRST, RESUMED = range(0, 10), range(7, 12)  # steps of the run, and of its resumed part


def read_run(folder):
    """What the public EventAccumulator keeps of a run. Of texts it also keeps those that a resumed run replaces."""
    from tensorboard.backend.event_processing import event_accumulator

    kinds = (event_accumulator.SCALARS, event_accumulator.HISTOGRAMS, event_accumulator.IMAGES)
    return event_accumulator.EventAccumulator(folder, size_guidance={kind: 0 for kind in kinds}).Reload()


def read_as_shown(folder):
    """What the pages of TensorBoard show of a run: every value is a tensor there."""
    from tensorboard.backend.event_processing import plugin_event_accumulator

    return plugin_event_accumulator.EventAccumulator(folder, size_guidance={plugin_event_accumulator.TENSORS: 0}).Reload()


def events_of_each_file(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [list(EventFileLoader(os.path.join(folder, name)).Load()) for name in sorted(os.listdir(folder))]


def session_starts(events):
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return [event.step for event in events if event.session_log.status == SessionLog.START]


def check_files(folder):
    first, resumed = events_of_each_file(folder)
    for events, steps, starts in ((first, FIRST, []), (resumed, RESUMED, 2 * [RESUMED.start])):
        expect(events[0].file_version == "brain.Event:2", "a file begins with its version")
        expect(session_starts(events) == starts, f"sessions start at {starts}, not at {session_starts(events)}")
        seen = [event.step for event in events for value in event.summary.value if value.tag == "loss"]
        expect(seen == list(steps), f"a file has the steps {list(steps)}, not {seen}")


def check_histogram(np, step, found):
    numbers = np.arange(9) / 4 - 1 + step
    expect((found.num, found.min, found.max) == (9, numbers[0], numbers[-1]), f"size and ends of histogram {step}")
    expect((found.sum, found.sum_squares) == (numbers.sum(), (numbers**2).sum()), f"sums of histogram {step}")
    for limit, below in zip(found.bucket_limit, np.cumsum(found.bucket)):
        expect(below == (numbers < limit).sum(), f"histogram {step} has {(numbers < limit).sum()} below {limit}")
    expect(sum(found.bucket) == 9, f"buckets of histogram {step} hold all values")


def check_image(np, step, event):
    from PIL import Image

    channels = step % 4 + 1
    pixels = (step * 31 + np.arange(6 * channels) * 11) % 256
    found = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    expect((event.height, event.width) == (2, 3), f"size of image {step}")
    expect(np.array_equal(found.reshape(2, 3, -1), pixels.reshape(2, 3, channels)), f"pixels of image {step}")


def check_hparams(run):
    from tensorboard.plugins.hparams import metadata

    contents = run.PluginTagToContent(metadata.PLUGIN_NAME)
    expect(set(contents) == {metadata.EXPERIMENT_TAG, metadata.SESSION_START_INFO_TAG}, "tags of the hyperparameters")
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    expect([info.name for info in experiment.hparam_infos] == ["adam", "lr", "net", "zero"], "names of hyperparameters")
    expect([info.name.tag for info in experiment.metric_infos] == ["loss"], "metrics beside the hyperparameters")
    session = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}
    expect(values == {"adam": True, "lr": 0.125, "net": "conv", "zero": 0.0}, f"hyperparameters, not {values}")


def check_tensorboard(folder):
    tensorboard = require("tensorboard")
    np = require("numpy")
    from tensorboard.util.tensor_util import make_ndarray

    tool("write-tensorboard", folder)
    folder = os.path.join(folder, "run")
    check_files(folder)
    run, shown = read_run(folder), read_as_shown(folder)
    tags = run.Tags()
    for kind, tag in (("scalars", "loss"), ("histograms", "weights"), ("images", "picture")):
        expect(tags[kind] == [tag], f"{kind} are {tag}, not {tags[kind]}")
        expect(set(shown.PluginTagToContent(kind)) == {tag}, f"TensorBoard shows {tag} among {kind}")
    expect(set(shown.PluginTagToContent("text")) == {"note"}, "TensorBoard shows note among texts")

    by_tag = [run.Scalars("loss"), run.Histograms("weights"), run.Images("picture"), shown.Tensors("note")]
    steps = list(range(RESUMED.stop))
    for events in by_tag + [shown.Tensors(tag) for tag in ("loss", "weights", "picture")]:
        expect([event.step for event in events] == steps, f"each step once, not {[event.step for event in events]}")
    for step, (loss, weights, picture, note) in enumerate(zip(*by_tag)):
        part = int(step in RESUMED)
        expect(loss.value == 100 * part + step / 8, f"scalar {step} is of part {part}, not {loss.value}")
        check_histogram(np, step, weights.histogram_value)
        check_image(np, step, picture)
        text = make_ndarray(note.tensor_proto).tolist()
        expect(text == [f"*step* {step}, part {part}, l\u00e4nge".encode()], f"text {step}, not {text}")
    check_hparams(shown)
    print(f"tensorboard {tensorboard.__version__}: {len(steps)} steps of {len(by_tag)} tags and hyperparameters agree")
