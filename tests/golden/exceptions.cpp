#include "tests/golden/exceptions.h"

#include <type_traits>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/devices.h"
#include "tests/golden/json_value.h"
#include "tests/golden/reference.h"

namespace lockstep::golden {
namespace {

// The basis of "meaningless": these programs do not compile.
static_assert(!std::is_constructible_v<Destinations, std::vector<std::string>>,
              "a list of devices is not a destination");
static_assert(!std::is_default_constructible_v<Destinations> && !std::is_constructible_v<Destinations, std::nullopt_t>,
              "nothing is not a destination");

struct Rule {
  Exception::Kind kind;
  const char* quirk;  ///< none: cases that are not quirks
  const char* reason;
  bool (*applies)(const Case&);
  std::optional<json> (*ours)(const Case&);
};

bool expects_error(const Case& given) { return given.expect().contains("error"); }

ReduceOp op_of(const Case& given) { return parse_reduce_op(given["reduce_op"].get<std::string>()); }

/// A result in the place the case wants: a Mirrored on several devices, plain on one.
Nest delivered(const Nest& value, const Case& given) {
  const json destinations = given.data.value("destinations", json("first"));
  if (given.replicas() == 1 || destinations == "first" || destinations == "last") return value;
  return Nest::mirrored(std::vector<Nest>(static_cast<std::size_t>(given.replicas()), value));
}

/// The reduction of a distributed value, or of every distributed value in a nest.
Nest reduced_value(const Nest& value, const Case& given, const std::optional<std::vector<std::int64_t>>& axes) {
  if (value.is_container()) {
    Nest::Container mapped = value_as<Nest::Container>(value);
    for (Nest& item : mapped.items) item = reduced_value(item, given, axes);
    return mapped;
  }
  const auto components = value.is_distributed() ? value.items() : std::vector<Nest>{value};
  return axes ? reduced_along(op_of(given), components, *axes) : delivered(reduced(op_of(given), components), given);
}

std::optional<std::vector<std::int64_t>> axes_of(const Case& given) {
  const json axis = given.data.value("axis", json());
  if (axis.is_null()) return std::nullopt;
  if (axis.is_array()) return axis.get<std::vector<std::int64_t>>();
  return std::vector<std::int64_t>{axis.get<std::int64_t>()};
}

std::optional<json> our_reduction(const Case& given) {
  Reader reader;
  if (given.area() == "batch_reduce") {
    json values = json::array();
    for (const json& value : given["values"]) values.push_back(write(reduced_value(reader.nest(value), given, {})));
    return json{{"values", values}};
  }
  if (given.area() == "all_reduce") {
    const Nest result = reduced(op_of(given), reader.for_each_replica(given["value"], given.replicas()));
    return json{{"per_replica", json(static_cast<std::size_t>(given.replicas()), write(result))}};
  }
  return json{{"value", write(reduced_value(reader.nest(given["value"]), given, axes_of(given)))}};
}

std::optional<json> our_gathering(const Case& given) {
  Reader reader;
  if (given.area() == "all_gather") {
    const Nest result = gathered(reader.for_each_replica(given["value"], given.replicas()), given["axis"]);
    return json{{"per_replica", json(static_cast<std::size_t>(given.replicas()), write(result))}};
  }
  const Nest value = reader.nest(given["value"]);
  return json{
      {"value", write(gathered(value.is_distributed() ? value.items() : std::vector<Nest>{value}, given["axis"]))}};
}

bool is_reduction(const Case& given) {
  const std::string area = given.area();
  return area == "reduce" || area == "reduce_axis" || area == "batch_reduce" ||
         (area == "all_reduce" && given["method"] == "all_reduce");
}

bool is_gathering(const Case& given) {
  return (given.area() == "gather" || given.area() == "all_gather") && given["method"] != "gradient";
}

/// A negative axis that every component has.
bool has_usable_negative_axis(const Case& given) {
  if (!is_gathering(given) || given["axis"] >= 0 || !given["value"].contains("per_replica")) return false;
  for (const json& component : given["value"]["per_replica"]) {
    if (!is_tensor(component) || static_cast<int>(component.at("shape").size()) < -given["axis"].get<int>())
      return false;
  }
  return true;
}

bool has_steps(const Case& given) { return given.has("steps"); }

std::optional<json> our_steps(const Case& given) { return expected_of_steps(given); }

/// Up to three replicas the tree is the order of replicas.
bool is_order_sensitive(const Case& given) {
  return given.has("rounding") && given.replicas() > 3 && !expects_error(given);
}

bool holds_integers(const json& value) {
  if (value.is_object() && value.contains("dtype")) {
    const std::string dtype = value["dtype"];
    return dtype.find("int") != std::string::npos;
  }
  bool any = false;
  if (value.is_structured()) {
    for (const json& item : value) any = any || holds_integers(item);
  }
  return any;
}

/// The data marks Q32 for signed integers only; the rule is the same for all.
bool is_integer_mean_of_one_replica(const Case& given) {
  if (!is_reduction(given) || expects_error(given) || given.replicas() != 1 || op_of(given) != ReduceOp::Mean)
    return false;
  if (given.area() == "batch_reduce") return holds_integers(given["values"]);
  return (given.area() == "all_reduce" || given["value"].contains("per_replica")) && holds_integers(given["value"]);
}

bool has_surplus_components(const Case& given) {
  if (given.area() != "regroup" || given["method"] != "run_args" || !given["args"].is_array()) return false;
  bool any = false;
  for (const json& argument : given["args"]) {
    any = any || (argument.is_object() && argument.contains("per_replica") &&
                  argument["per_replica"].size() > static_cast<std::size_t>(given.replicas()));
  }
  return any && !expects_error(given);
}

constexpr const char* kTreeOrder =
    "with four replicas and more the one order of summation is not the order of replicas";

using enum Exception::Kind;

const Rule kRules[] = {
    {Decided, "Q14", "int32 is reduced like every other type, alone or in a batch", is_reduction, our_reduction},
    {Decided, "Q16",
     "what an integer SUM variable cannot share out evenly goes to component 0: reading gives back what was assigned",
     has_steps, our_steps},
    {Decided, "Q17", "hierarchical copy counts every device, an odd last one too", is_reduction, our_reduction},
    {Decided, "Q18", "types may be mixed in a batch", is_reduction, our_reduction},
    {Decided, "Q27", "a list of axes is as good as a tuple", is_reduction, our_reduction},
    {Decided, "Q28", "the number 0 reduces to 0", is_reduction, our_reduction},
    {Decided, "Q28", "the number 0 reduces to 0", has_steps, our_steps},
    {Decided, "Q31", "a tensor that all replicas share counts once per replica", is_reduction, our_reduction},
    {Decided, "Q31", "a tensor that all replicas share counts once per replica", is_gathering, our_gathering},
    {Decided, "Q32", "the MEAN of integers is floating, whatever the number of replicas", is_reduction, our_reduction},
    {Decided, "Q33", "gather refuses sparse rows, plain or per replica", is_gathering,
     [](const Case&) {
       return std::optional(json{{"error", "NotImplementedError"}});
     }},
    {Decided, "Q34", "a nest is reduced leaf by leaf, with an axis too", is_reduction, our_reduction},
    {Decided, "Q35", "a number counts once per replica, and nothing reduces to nothing", is_reduction, our_reduction},
    {Decided, "Q36", "operators on a variable inside the sync-on-read context synchronise as conversion does",
     has_steps, our_steps},
    {Decided, "Q37", "negative axes count from the end", has_usable_negative_axis, our_gathering},
    {Decided, "Q40", "a number is converted to the variable's type", has_steps, our_steps},
    {Decided, nullptr, "Q32: the MEAN of unsigned integers is floating too, whatever the number of replicas",
     is_integer_mean_of_one_replica, our_reduction},
    {Decided, nullptr, "run refuses a value with more components than replicas, which would be lost without a word",
     has_surplus_components,
     [](const Case&) {
       return std::optional(json{{"error", "IndexError"}});
     }},
    {Order, nullptr, kTreeOrder, [](const Case& given) { return is_order_sensitive(given) && is_reduction(given); },
     our_reduction},
    {Order, nullptr, kTreeOrder, [](const Case& given) { return is_order_sensitive(given) && has_steps(given); },
     our_steps},
    {Meaningless, nullptr, "destinations are a type of their own, which no list and no nothing converts to",
     [](const Case& given) {
       const bool delivers = given.area() == "broadcast" || given.area() == "reduce" || given.area() == "batch_reduce";
       return delivers && given.has("destinations") && expects_error(given) &&
              (given["destinations"].is_null() || given["destinations"] == "list");
     },
     [](const Case&) { return std::optional<json>(); }},
    {Meaningless, nullptr, "the arguments of run are C++ arguments: there is no sequence that could be something else",
     [](const Case& given) {
       return given.area() == "regroup" && given["method"] == "run_args" && expects_error(given) &&
              given["args"].is_object() && given["args"].contains("not_a_sequence");
     },
     [](const Case&) { return std::optional<json>(); }},
    {Meaningless, nullptr,
     "run gives a PerReplica for one replica too, where TensorFlow gives the plain value: a PerReplica of one is that "
     "value everywhere",
     [](const Case& given) {
       return given.area() == "context" && given.data.value("call", "") == "per_replica_to_tensor" &&
              given["where"] != "replica" && given.replicas() == 1 && expects_error(given);
     },
     [](const Case&) {
       return std::optional(json{{"value", {{"dtype", "float32"}, {"shape", {1}}, {"data", {1.0}}}}});
     }},
};

}  // namespace

std::optional<Exception> exception_for(const Case& given) {
  for (const Rule& rule : kRules) {
    if (given.quirk() != (rule.quirk ? rule.quirk : "") || !rule.applies(given)) continue;
    return Exception{rule.kind, rule.quirk ? std::string(rule.quirk) + ": " + rule.reason : rule.reason,
                     rule.ours(given)};
  }
  return std::nullopt;
}

}  // namespace lockstep::golden
