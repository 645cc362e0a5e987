#include "lockstep/values/type_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace lockstep {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::string type_name(const std::type_info& type) {
  if (type == typeid(std::string)) return "str";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  std::string name = demangled ? demangled.get() : type.name();
  replace_all(name, "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "str");
  replace_all(name, "at::Tensor", "tensor");
  replace_all(name, "(anonymous namespace)::", "");
  replace_all(name, "lockstep::", "");
  return name;
}

}  // namespace lockstep
