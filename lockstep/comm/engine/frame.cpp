#include "lockstep/comm/engine/frame.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::engine {
namespace {

std::string_view differing_part(const Fingerprint& a, const Fingerprint& b) {
  if (a.kind != b.kind) return "operations";
  if (a.dtype != b.dtype) return "element types";
  if (a.elements != b.elements || a.shape_hash != b.shape_hash || a.counts_hash != b.counts_hash) return "shapes";
  if (a.reduce != b.reduce) return "reductions";
  if (a.root != b.root) return "roots";
  if (a.name_hash != b.name_hash) return "names";
  if (a.implementation != b.implementation) return "implementations";
  return "numbers of collectives";
}

}  // namespace

Fingerprint fingerprint_of(const Collective& collective, std::uint64_t sequence) {
  Fingerprint made{};
  made.sequence = sequence;
  made.elements = collective.elements;
  made.counts_hash = fnv1a<std::uint64_t>(collective.counts);
  made.shape_hash = fnv1a<std::int64_t>(collective.shape);
  made.name_hash = fnv1a<char>(collective.name);
  const std::size_t shown = std::min(collective.shape.size(), Fingerprint::kShapeSize);
  std::copy_n(collective.shape.begin(), shown, made.shape);
  made.shape_size = static_cast<std::uint8_t>(std::min<std::size_t>(collective.shape.size(), 255));
  made.root = collective.root;
  made.kind = static_cast<std::uint8_t>(collective.kind);
  made.dtype = static_cast<std::uint8_t>(collective.dtype);
  made.reduce = static_cast<std::uint8_t>(collective.reduce);
  made.implementation = static_cast<std::uint8_t>(collective.implementation);
  if (collective.name.copy(made.name, Fingerprint::kNameSize) < collective.name.size())
    std::fill_n(made.name + Fingerprint::kNameSize - 3, 3, '.');
  return made;
}

std::string describe(const Fingerprint& fingerprint) {
  const auto kind = static_cast<CollectiveKind>(fingerprint.kind);
  std::string text(to_string(kind));
  const std::string_view name(fingerprint.name, ::strnlen(fingerprint.name, Fingerprint::kNameSize));
  if (kind == CollectiveKind::AllReduce || kind == CollectiveKind::ReduceScatter)
    text += str(" ", to_string(static_cast<ReduceOp>(fingerprint.reduce)));
  if (kind != CollectiveKind::Barrier) {
    text += str(" of ", to_string(static_cast<Dtype>(fingerprint.dtype)), " ");
    if (fingerprint.shape_size == 0) {
      text += counted(static_cast<long long>(fingerprint.elements), "element");
    } else {
      text += "[";
      const auto shown = std::min<std::size_t>(fingerprint.shape_size, Fingerprint::kShapeSize);
      for (std::size_t i = 0; i < shown; ++i) text += str(i == 0 ? "" : ", ", fingerprint.shape[i]);
      text += fingerprint.shape_size > Fingerprint::kShapeSize ? ", ...]" : "]";
    }
  }
  if (kind == CollectiveKind::Broadcast) text += str(" from worker ", fingerprint.root);
  if (static_cast<Implementation>(fingerprint.implementation) != Implementation::Auto)
    text += str(" by ", to_string(static_cast<Implementation>(fingerprint.implementation)));
  if (!name.empty()) text += str(" \"", name, "\"");
  return text;
}

ErrorText compare(const std::vector<Fingerprint>& of_workers, int channel) {
  const auto groups = group_by_statement(of_workers);
  if (groups.size() < 2) return {};
  const auto &most = groups.front(), &odd = groups.back();
  ErrorText text{
      .what = str(workers_text(odd.workers), " and ", workers_text(most.workers), " called collectives with different ",
                  differing_part(odd.statement, most.statement)),
      .where = str("collective ", of_workers.front().sequence, " of channel ", channel),
      .help =
          "let every worker make the same collectives in the same order, with equal shapes, types and names; no data "
          "was used"};
  for (std::size_t i = 0; i < groups.size() && i < 6; ++i)
    text.seen += str(i == 0 ? "" : "; ", workers_text(groups[i].workers), ": ", describe(groups[i].statement));
  return text;
}

}  // namespace lockstep::engine
