#include <memory>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/data/distribute/distributed_cursor.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/strategy/snapshot.h"

namespace lockstep::data {
namespace {

class CursorState final : public Stateful {
 public:
  explicit CursorState(DistributedCursor& cursor) : cursor_(cursor) {}

  void capture(Snapshot& into, const std::string& name) const override {
    lockstep::detail::put_text(into, str(name, "/place"), cursor_.state().serialize());
  }
  void check(const Snapshot& from, const std::string& name) const override { cursor_.check_state(read(from, name)); }
  void restore(const Snapshot& from, const std::string& name) override { cursor_.go_back_to(read(from, name)); }

 private:
  static IteratorState read(const Snapshot& from, const std::string& name) {
    lockstep::detail::SnapshotReader reader(from, name);
    IteratorState state = IteratorState::parse(reader.text("place"));
    reader.require_all_read();
    return state;
  }

  DistributedCursor& cursor_;
};

}  // namespace

std::shared_ptr<Stateful> state_of_cursor(DistributedCursor& cursor) { return std::make_shared<CursorState>(cursor); }

}  // namespace lockstep::data
