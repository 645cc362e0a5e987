#include "tests/golden_input/cases.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

bool mentions(const json& value, const std::string& word) { return value.dump().find(word) != std::string::npos; }

json without(json expect, std::initializer_list<const char*> keys) {
  for (const char* key : keys) expect.erase(key);
  return expect;
}

/// A similar case with another policy, run by this program.
json as_policy(const Case& given, const char* policy) {
  Case other = given;
  other.data["policy"] = policy;
  return outcome_of([&] { return run_area(other); });
}

/// The expected result if the user's last rebatch stays: its batches, of which each worker has every W-th.
json kept_batches(const Case& given) {
  json all = as_policy(given, "OFF");
  if (given.area() != "shard") return {{"workers", all["workers"]}, {"cardinality", given.expect()["cardinality"]}};
  json own = json::array();
  for (std::size_t i = given["index"]; i < all["elements"].size(); i += given["num_workers"].get<std::size_t>()) {
    own.push_back(all["elements"][i]);
  }
  return {{"elements", own}};
}

/// zip or concatenate of files with something that has none: TensorFlow shards the files, finds that it cannot
/// continue, shards rows on top of that, and rows are lost.
bool shards_half(const Case& given) {
  if (given.area() != "shard" || given.data.value("policy", "AUTO") != "AUTO" || given["num_workers"] < 2) return false;
  const json& source = given["dataset"]["source"];
  for (const char* kind : {"zip", "concatenate"}) {
    if (!source.contains(kind)) continue;
    bool files = false;
    for (const json& input : source[kind]) {
      const bool has_files = input["source"].contains("files") && input["source"]["form"] != "raw_constant";
      if (files && !has_files) return true;
      files = files || has_files;
    }
  }
  return false;
}

}  // namespace

std::optional<Exception> exception_for(const Case& given) {
  const std::string quirk = given.quirk();
  if (quirk == "shard_hint_cardinality") {
    json expect = without(given.expect(), {"cardinality", "partial_batch_handling"});
    // If TensorFlow takes the dataset for endless, its workers end one by one and lose their last steps.
    if (given.expect().value("partial_batch_handling", true) == false) expect.erase("workers");
    expect["cardinality"] = "unknown";
    expect["partial_batch_handling"] = true;
    return Exception{false, "shard_hint_cardinality: before its numbers are known a shard has no cardinality", expect};
  }
  if (quirk == "user_rebatch_rewritten") {
    return Exception{false, "user_rebatch_rewritten: a rebatch of the user's is never undone", kept_batches(given)};
  }
  if (quirk == "per_replica_mode_sticks") {
    json expect = given.expect();
    expect["after"] = expect["before"];
    return Exception{false, "per_replica_mode_sticks: options hold for the dataset they were given for", expect};
  }
  if (given.area() == "shard" && shards_half(given)) {
    return Exception{false, "AUTO that finds no files in one input of a zip shards rows only, so that none are lost",
                     as_policy(given, "DATA")};
  }
  if (mentions(given.data, "\"ragged\"") || mentions(given.data, "\"ragged_batch\"")) {
    return Exception{true, "LibTorch has no ragged tensors", nullptr};
  }
  if (given.area() == "iterator" && given.expects_error() && given.expect()["error"] == "NotImplementedError") {
    const std::string what = given["what"];
    if (what == "enumerate_in_function" || what == "loop_with_break_in_function") {
      return Exception{true, "there is no tf.function in which a loop could not be left or counted", nullptr};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::golden_input
