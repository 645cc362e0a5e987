#include "lockstep/strategy/call_place.h"

#include <string_view>

namespace lockstep::detail {
namespace {

thread_local const CallPlace* outermost = nullptr;

}  // namespace

CallPlace::CallPlace(const std::source_location& where) : file_(where.file_name()), line_(where.line()) { enter(); }
CallPlace::CallPlace(const std::string& name) : name_(&name) { enter(); }

CallPlace::~CallPlace() {
  if (is_outermost_) outermost = nullptr;
}

void CallPlace::enter() {
  is_outermost_ = outermost == nullptr;
  if (is_outermost_) outermost = this;
}

std::string CallPlace::current() {
  if (outermost == nullptr) return {};
  if (outermost->name_ != nullptr) return *outermost->name_;
  // Without the folder, which may be another one on another machine.
  std::string_view file = outermost->file_;
  file.remove_prefix(file.find_last_of('/') + 1);
  return std::string(file) + ":" + std::to_string(outermost->line_);
}

}  // namespace lockstep::detail
