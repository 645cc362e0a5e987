#include "lockstep/contrib/tower_words.h"

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/local/replica_team.h"

namespace lockstep::contrib::detail {
namespace {

using Words = std::pair<std::string_view, std::string_view>;
/// Longer words first. "/replica:0" is a part of a device's name and stays.
constexpr std::array<Words, 9> kWords = {{{"/replica", "/replica"},
                                          {"in_replica_context", "in_cross_tower_context"},
                                          {"PerReplica", "PerDevice"},
                                          {"OnlyFirstReplica", "OnlyFirstTower"},
                                          {"given to run", "given to call_for_each_tower"},
                                          {"before run and give the step to run", "first and pass what it returns"},
                                          {"inside run", "inside call_for_each_tower"},
                                          {"replica", "tower"},
                                          {"Replica", "Tower"}}};

std::string in_words_of_towers(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::size_t taken = 1;
    std::string_view written = text.substr(0, 1);
    for (const auto& [from, to] : kWords) {
      if (!text.starts_with(from)) continue;
      taken = from.size();
      written = to;
      break;
    }
    result += written;
    text.remove_prefix(taken);
  }
  return result;
}

}  // namespace

void throw_in_tower_words(const Error& error) {
  ErrorText text = error.text();
  for (std::string* part : {&text.what, &text.where, &text.seen, &text.help}) *part = in_words_of_towers(*part);
  if (error.number() == errors::kUnequalMeetings) {
    text.what = "Some towers made a different number of merge_call and collective calls";
  } else if (error.number() == errors::kVariableAssign && text.what.find("without aggregation") != std::string::npos) {
    text.what = "You must specify an aggregation method to write a mirrored variable inside a tower";
    text.help = "create it with VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER";
  } else if (error.number() == errors::kShape && text.help.find("axis") != std::string::npos) {
    text.help = "give all towers values of one shape, such as the sums of their rows: towers reduce without an axis";
  }
  throw_error(error.code(), error.number(), std::move(text));
}

void require_cross_tower(const Strategy& core, const char* operation) {
  const lockstep::detail::ContextEntry* here = lockstep::detail::current_context();
  if (here != nullptr && here->strategy == &core && here->replica != nullptr) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = str("Method requires being in cross-tower context, use get_tower_context().merge_call(): ", operation,
                     " was called inside a tower"),
         .where = str(operation, ", on tower ", here->replica->replica_id_in_sync_group()),
         .help = str("call ", operation, " outside of the function given to call_for_each_tower, or inside ",
                     "get_tower_context().merge_call(...)")});
  }
  in_tower_words([&] { lockstep::detail::require_cross_replica(core, operation); });
}

void throw_not_mirrored(const char* operation) {
  throw InvalidArgument(
      errors::kComponent,
      {.what = str(operation, ": Expected value to be mirrored across towers, got one value per tower (PerDevice)"),
       .help = "reduce the value first: strategy.reduce(VariableAggregation::MEAN, value, value)"});
}

InTurn::InTurn(bool in_turn) { local::RunInTurn::set(in_turn); }
InTurn::~InTurn() { local::RunInTurn::set(false); }

}  // namespace lockstep::contrib::detail
