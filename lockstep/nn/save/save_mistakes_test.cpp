#include "lockstep/nn/save/save.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/named_tensors.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/zoo.h"

// Rejected calls and files.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

struct OddNames : torch::nn::Module {
  explicit OddNames(const std::string& name, at::ScalarType dtype = at::kFloat) {
    register_buffer(name, torch::ones({2}, dtype));
  }
};

TEST(SaveAndLoad, MistakesAreNamed) {
  const TemporaryFolder folder;
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto other = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.01));
  save(folder / "good", model, optimizer);
  const std::string content = file_content(folder / "good");
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  const auto complex = torch::ones({1}, at::kComplexFloat);
  struct Row {
    const char* name;
    std::function<void()> call;
    Code code;
    int number;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows{
      {"SaveInsideRun",
       [&] { strategy.run([&] { save(folder / "x", model); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"save", "outside"}},
      {"LoadInsideRun",
       [&] { strategy.run([&] { load(folder / "good", model); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"load", "outside"}},
      {"SaveTensorsInsideRun",
       [&] { strategy.run([&] { save(folder / "x", Tensors{}); }); },
       Code::FailedPrecondition,
       errors::kWrongContext,
       {"save", "outside"}},
      {"SaveWithAnothersOptimizer",
       [&] { save(folder / "x", other, optimizer); },
       Code::InvalidArgument,
       errors::kSavedState,
       {"another model"}},
      {"LoadWithAnothersOptimizer",
       [&] { load(folder / "good", other, optimizer); },
       Code::InvalidArgument,
       errors::kSavedState,
       {"another model"}},
      {"NoFile", [&] { load(folder / "none", model); }, Code::NotFound, errors::kFile, {"none"}},
      {"NoFolder", [&] { save(folder / "none/file", model); }, Code::NotFound, errors::kFile, {"no folder"}},
      {"AFolder", [&] { save(folder.path().string(), model); }, Code::FailedPrecondition, errors::kFile, {"a folder"}},
      {"CutOff",
       [&] { load(folder.file("cut", content.substr(0, content.size() - 1)), model); },
       Code::DataLoss,
       errors::kSafetensors,
       {"cut off"}},
      {"OneBitFlipped",
       [&] { load(folder.file("flipped", flipped), model); },
       Code::DataLoss,
       errors::kSafetensors,
       {"'flags'", "CRC32C"}},
      {"NotAFileOfTensors",
       [&] { load_tensors(folder.file("text", "hello, world")); },
       Code::DataLoss,
       errors::kSafetensors,
       {"longer than it can be"}},
      {"NewerFormat",
       [&] {
         std::string newer = content;
         newer[newer.find(R"("lockstep.format":"1")") + 19] = '2';
         newer.replace(newer.find("lockstep.crc32c"), 8, "somebody");
         load(folder.file("newer", newer), model);
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"format 2", "newer"}},
      {"Complex",
       [&] {
         save(folder / "x", Tensors{{"c", complex}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'c'", "view_as_real"}},
      {"ComplexBuffer",
       [&] { save(folder / "x", strategy.make<OddNames>("c", at::kComplexFloat)); },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'c'", "register torch::view_as_real(tensor)", "view_as_complex of it in forward"}},
      {"Undefined",
       [&] {
         save(folder / "x", Tensors{{"u", at::Tensor()}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'u'", "undefined"}},
      {"Sparse",
       [&] {
         save(folder / "x", Tensors{{"s", torch::ones({2, 2}).to_sparse()}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'s'", "to_dense"}},
      {"Meta",
       [&] {
         save(folder / "x", Tensors{{"m", torch::ones({2}, at::Device(at::kMeta))}});
       },
       Code::Unimplemented,
       errors::kSafetensors,
       {"'m'", "meta"}},
      {"ReservedName",
       [&] { save(folder / "x", strategy.make<OddNames>("optimizer/a")); },
       Code::InvalidArgument,
       errors::kWrongModule,
       {"'optimizer/a'"}},
      {"MetadataName",
       [&] { save(folder / "x", strategy.make<OddNames>("__metadata__")); },
       Code::InvalidArgument,
       errors::kSafetensors,
       {"__metadata__"}},
      {"OpenWindow",
       [&] {
         optimizer.set_accumulate(2);
         train_steps(strategy, model, optimizer, 0, 1);
         save(folder / "x", model, optimizer);
       },
       Code::FailedPrecondition,
       errors::kOptimizer,
       {"window"}},
  };
  const LogSilence silence;
  for (const Row& row : rows) expect_error(row.call, row.code, row.number, row.says, row.name);
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  EXPECT_EQ(file_content(folder / "good"), content);
  load(folder / "good", model, optimizer);  // also ends an open window
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(SaveAndLoad, AreRefusedWhileAnotherThreadTrains) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.01));
  save(path, model, optimizer);
  const std::string good = file_content(path);
  std::promise<void> started, finished;
  const auto until = finished.get_future().share();
  std::thread training([&] {
    strategy.run([&] {
      if (my_id() != 0) return;
      started.set_value();
      until.wait_for(std::chrono::seconds(60));
    });
  });
  ASSERT_EQ(started.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"save", [&] { save(path, model); }},
      {"save with an optimizer", [&] { save(path, model, optimizer); }},
      {"load", [&] { load(path, model, optimizer); }},
      {"state", [&] { optimizer.state(); }},
      {"load_state", [&] { optimizer.load_state({}); }},
      {"named_buffers", [&] { model.named_buffers(); }},
      {"update", [&] { model.update([](Zoo&) {}); }}};
  for (const auto& [name, call] : calls)
    expect_error(call, Code::FailedPrecondition, errors::kWrongContext, {"another thread", "between two runs"}, name);
  finished.set_value();
  training.join();
  EXPECT_EQ(file_content(path), good);
  load(path, model, optimizer);
  EXPECT_ANY_THROW(strategy.run([] { throw std::runtime_error("a run that fails ends too"); }));
  std::thread([&] { save(path, model, optimizer); }).join();
  strategy.run([&] { get_replica_context().merge_call([&](Strategy&) { save(path, model); }); });
}

}  // namespace
}  // namespace lockstep
