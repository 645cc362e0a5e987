#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"

// Pipelines of numbers, made of stages at random.
namespace lockstep::data {

/// Files with the given numbers of rows; the rows of all of them are 0, 1, 2, ...
class RowFiles {
 public:
  explicit RowFiles(const std::vector<int>& sizes)
      : folder_(std::filesystem::temp_directory_path() / str("lockstep_rows_", ::getpid(), '_', sets_++)) {
    std::filesystem::create_directories(folder_);
    std::int64_t row = 0;
    for (const int size : sizes) {
      names_.push_back((folder_ / str("part-", names_.size(), ".csv")).string());
      Rows& mine = rows_.emplace_back();
      std::ofstream file(names_.back());
      for (int i = 0; i < size; ++i) {
        mine.push_back(row);
        file << row++ << '\n';
      }
    }
  }
  RowFiles(const RowFiles&) = delete;
  RowFiles& operator=(const RowFiles&) = delete;
  ~RowFiles() { std::filesystem::remove_all(folder_); }

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Rows>& rows() const { return rows_; }

  /// The numbers in files named by `names`.
  static StagePtr reader(StagePtr names) {
    return make_csv_stage(std::move(names),
                          CsvOptions{.columns = {{CsvType::Int64}}, .header = false, .buffer_bytes = 256},
                          ElementSpec::unknown(1));
  }

 private:
  static inline int sets_ = 0;
  std::filesystem::path folder_;
  std::vector<std::string> names_;
  std::vector<Rows> rows_;
};

struct RandomPipeline {
  StagePtr dataset;
  AutoShardPolicy policy;
  std::string text;
};

struct PipelineKinds {
  const RowFiles* files = nullptr;  ///< also reads these, and chooses FILE
  bool hints = false;               ///< also chooses HINT
  bool failures = false;            ///< some rows and batches fail
};

/// Not after every stage: several workers reject FILE there.
inline bool can_share_files(const StagePtr& dataset) {
  try {
    plan_shards(dataset, AutoShardPolicy::File, {2, 1, 0}, TooFew::FailsWhereSeen);
    return true;
  } catch (const NotFound&) {
    return false;
  }
}

class PipelineMaker {
 public:
  explicit PipelineMaker(unsigned seed, PipelineKinds kinds = {}) : random_(seed), kinds_(kinds) {}

  RandomPipeline make() {
    const bool reads_files = kinds_.files && chance(2);
    StagePtr stage = reads_files ? files() : source(chance(8) ? 0 : below(60));
    AutoShardPolicy policy = std::array{AutoShardPolicy::Auto, AutoShardPolicy::Data,
                                        AutoShardPolicy::Off}[static_cast<std::size_t>(below(3))];
    if (reads_files && chance(3)) policy = AutoShardPolicy::File;
    if (kinds_.hints && chance(5)) policy = AutoShardPolicy::Hint;
    const auto hint = [&] {
      if (policy == AutoShardPolicy::Hint && chance(2)) stage = make_shard(stage, kShardHint, kShardHint);
    };
    hint();
    for (int stages = below(4); stages > 0; --stages) stage = row_stage(stage);
    if (kinds_.failures) stage = failing(stage);
    stage = batched(stage, 1 + below(12), chance(4));
    for (int stages = below(3); stages > 0; --stages) stage = batch_stage(stage);
    hint();
    if (policy == AutoShardPolicy::File && !can_share_files(stage)) policy = AutoShardPolicy::Off;
    stage = make_with_options(stage, DatasetOptions{policy});
    return {stage, policy, str(lockstep::to_string(policy), "\n", print_tree(*stage))};
  }
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  bool chance(int of) { return below(of) == 0; }

 private:
  StagePtr source(std::int64_t rows) {
    if (!chance(4)) return make_range(0, rows);
    return make_generator(
        [rows]() -> Generator {
          return [rows, next = std::int64_t{0}](Element& element) mutable {
            if (next == rows) return false;
            element = Element::of(at::scalar_tensor(next++, at::kLong));
            return true;
          };
        },
        make_range(0, 1)->element_spec(), GeneratorOptions{.replayable = true});
  }
  StagePtr files() {
    StagePtr names = make_slices(Element({Strings(kinds_.files->names())}));
    if (chance(3)) names = make_shuffle(names, 10);
    if (chance(2)) return RowFiles::reader(names);
    return make_interleave(
        names, [](Element&& name) { return RowFiles::reader(make_slices(Element({Strings({name.bytes(0)})}))); },
        make_range(0, 1)->element_spec(), interleaving());
  }
  std::optional<InterleaveOptions> interleaving() {
    if (chance(2)) return std::nullopt;
    return InterleaveOptions{.cycle_length = 3, .block_length = 1 + below(2), .parallel_calls = below(3)};
  }
  static StagePtr batched(const StagePtr& input, std::int64_t size, bool drop_remainder) {
    if (size % 5 == 0) return make_padded_batch(input, size, PaddedBatchOptions{.drop_remainder = drop_remainder});
    return make_batch(input, size, BatchOptions{.drop_remainder = drop_remainder});
  }
  static StagePtr failing(const StagePtr& input) {
    return mapped(input, 0, [](Element& element) {
      if (element.tensor(0).item().toLong() % 11 == 5) throw std::runtime_error("bad row");
    });
  }
  static StagePtr mapped(const StagePtr& input, int parallel_calls, MapFunction function, bool says_spec = true) {
    MapOptions options{.parallel_calls = parallel_calls};
    if (says_spec) options.spec = [](const ElementSpec& spec) { return spec; };
    return make_map(input, std::move(function), ElementSpec::unknown(1), options);
  }
  StagePtr row_stage(const StagePtr& input) {
    const auto add = [](Element& element) { element = Element::of(element.tensor(0).add(1000)); };
    switch (below(21)) {
      case 0: return make_shuffle(input, 1 + below(20), ShuffleOptions{.seed = random_()});
      case 1: return make_shuffle(input, 1 + below(20));
      case 2:
      case 3: return mapped(input, below(3), add);
      case 4:
        return make_map(  // with random numbers
            input,
            [](Element& element, std::uint64_t key) {
              element = Element::of(element.tensor(0).add(static_cast<std::int64_t>(key % 1000) * 10'000));
            },
            ElementSpec::unknown(1),
            MapOptions{.parallel_calls = below(3), .spec = [](const ElementSpec& spec) { return spec; }});
      case 5:
        return make_filter(input, [](const Element& element) { return element.tensor(0).item().toLong() % 3 != 0; });
      case 6: return make_repeat(input, 1 + below(3));
      case 7: return make_take(input, below(40));
      case 8: return make_shard(input, 2, below(2));
      case 9: return make_prefetch(input, 1 + below(3));
      case 10: return make_cache(input);
      case 11: return make_concatenate(input, make_range(500, 500 + below(9)));
      case 12:
        return make_interleave(
            input,
            [](Element&& element) {
              const std::int64_t row = element.tensor(0).item().toLong();
              return make_range(row * 10, row * 10 + row % 3);
            },
            make_range(0, 1)->element_spec(), interleaving());
      case 13: return mapped(input, below(2), add, /*says_spec=*/false);
      case 14:
        return make_take_while(input,
                               [](const Element& element) { return element.tensor(0).item().toLong() % 50 != 49; });
      case 15: return make_sample(std::vector{input, make_range(700, 700 + below(20))}, SampleOptions{});
      case 16: return make_unbatch(batched(input, 1 + below(4), chance(3)));
      case 17: return make_distinct(input);
      case 18:
        return make_scan(
            input, Element::of(at::scalar_tensor(0, at::kLong)),
            [](Element& state, Element& element) {
              state = Element::of(state.tensor(0).add(element.tensor(0)));
              element = state;
            },
            ElementSpec::unknown(1), nullptr);
      case 19: return kinds_.failures ? StagePtr(make_ignore_errors(failing(input), IgnoreErrorsOptions{})) : input;
      default: return make_skip(input, below(7));
    }
  }
  StagePtr batch_stage(const StagePtr& input) {
    switch (below(12)) {
      case 0: return make_repeat(input, 1 + below(3));
      case 1: return make_shuffle(input, 1 + below(4));
      case 2: return make_take(input, below(9));
      case 3: return make_skip(input, below(3));
      case 4: return make_prefetch(input, 2);
      case 5: return make_cache(input);
      case 6: return make_concatenate(input, batched(make_range(800, 800 + below(20)), 1 + below(6), false));
      case 7: return make_shard(input, 2, below(2));
      case 8:
        return make_filter(input, [](const Element& batch) { return batch.tensor(0).sum().item().toLong() % 5 != 4; });
      case 9: return make_rebatch(input, {1 + below(5), below(4)}, chance(3));
      case 10: return batched(make_unbatch(input), 1 + below(7), false);
      default:
        return mapped(
            input, below(3), [](Element&) {}, chance(2));  // hides the size of the batches
    }
  }

  std::mt19937 random_;
  PipelineKinds kinds_;
};

}  // namespace lockstep::data
