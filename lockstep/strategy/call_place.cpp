#include "lockstep/strategy/call_place.h"

#include <string_view>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::detail {
namespace {

thread_local const CallPlace* outermost = nullptr;
thread_local const std::string* innermost_detail = nullptr;

std::string with_detail(std::string place) {
  if (innermost_detail == nullptr) return place;
  return place.empty() ? *innermost_detail : str(place, ", ", *innermost_detail);
}

}  // namespace

CallPlace::CallPlace(const std::source_location& where)
    : file_(where.file_name()), line_(where.line()), column_(where.column()) {
  enter();
}
CallPlace::CallPlace(const std::string& name) : name_(&name) { enter(); }

CallPlace::~CallPlace() {
  if (is_outermost_) outermost = nullptr;
}

void CallPlace::enter() {
  is_outermost_ = outermost == nullptr;
  if (is_outermost_) outermost = this;
}

std::string CallPlace::current() {
  if (outermost == nullptr) return with_detail({});
  if (outermost->name_ != nullptr) return with_detail(*outermost->name_);
  // Without the folder, which may be another one on another machine.
  std::string_view file = outermost->file_;
  file.remove_prefix(file.find_last_of('/') + 1);
  return with_detail(str(file, ":", outermost->line_, ":", outermost->column_));
}

CallDetail::CallDetail(std::string text) : text_(std::move(text)), outer_(std::exchange(innermost_detail, &text_)) {}
CallDetail::~CallDetail() { innermost_detail = outer_; }

}  // namespace lockstep::detail
