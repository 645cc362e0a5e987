#include <algorithm>
#include <charconv>

#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/slurm_resolver.h"

namespace lockstep {
namespace {

constexpr long long kMostEntries = 100'000;

/// A list being parsed from start to end.
class List {
 public:
  List(std::string_view text, const char* example) : text_(text), rest_(text), example_(example) {}

  bool done() const { return rest_.empty(); }
  bool take(char c) {
    const bool found = rest_.starts_with(c);
    if (found) rest_.remove_prefix(1);
    return found;
  }
  void expect(char c) {
    if (!take(c)) refuse(str("'", c, "' was expected"));
  }
  std::string_view take_name() {
    const std::string_view name = rest_.substr(0, rest_.find_first_of(",[] \t\r\n"));
    rest_.remove_prefix(name.size());
    return name;
  }
  /// Reads a number and returns how many digits it had.
  std::size_t take_number(long long& value) {
    const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (status != std::errc() || value < 0 || rest_.starts_with('-')) refuse("a number was expected");
    const auto digits = static_cast<std::size_t>(end - rest_.data());
    rest_.remove_prefix(digits);
    return digits;
  }
  void check_count(long long entries) const {
    if (entries > kMostEntries) refuse(str("there are more than ", kMostEntries, " hosts or tasks"));
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw InvalidArgument(errors::kSlurm,
                          {.what = str("a list of Slurm must look like ", example_, ", got '", shown(text_), "'"),
                           .where = str("character ", text_.size() - rest_.size() + 1, ": ", reason),
                           .help = "start the program with srun, or give hosts and tasks in tasks_of_hosts"});
  }

 private:
  std::string_view text_, rest_;
  const char* example_;
};

/// "01-03": the numbers keep the width of the first one.
void expand_range(List& list, const std::string& prefix, std::vector<std::string>& hosts) {
  long long first = 0;
  const std::size_t width = list.take_number(first);
  long long last = first;
  if (list.take('-')) list.take_number(last);
  list.check_count(last - first);
  list.check_count(last - first + std::ssize(hosts));
  for (long long number = first; number <= last; ++number) {
    const std::string digits = std::to_string(number);
    hosts.push_back(prefix + std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits);
  }
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  List list(text, "\"gpu5,node[01-03,7]\"");
  std::vector<std::string> hosts;
  while (!list.done()) {
    const std::string prefix(list.take_name());
    if (list.take('[')) {
      do expand_range(list, prefix, hosts);
      while (list.take(','));
      list.expect(']');
    } else {
      if (prefix.empty()) list.refuse("a host was expected");
      hosts.push_back(prefix);
    }
    list.check_count(std::ssize(hosts));
    if (!list.done()) list.expect(',');
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  List list(text, "\"3(x2),1\"");
  std::vector<int> counts;
  do {
    long long count = 0, times = 1;
    list.take_number(count);
    if (list.take('(')) {
      list.expect('x');
      list.take_number(times);
      list.expect(')');
    }
    list.check_count(std::max(count, times));
    list.check_count(times + std::ssize(counts));
    counts.insert(counts.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  } while (list.take(','));
  if (!list.done()) list.refuse("',' was expected");
  return counts;
}

}  // namespace lockstep
