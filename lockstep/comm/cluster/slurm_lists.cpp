#include <charconv>

#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/slurm_resolver.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostEntries = 100'000;

/// The rest of a list that is being read, and how to complain about it.
class List {
 public:
  List(const char* kind, const char* example, std::string_view text)
      : kind_(kind), example_(example), text_(text), rest_(text) {}

  bool done() const { return rest_.empty(); }
  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(str("'", c, "' was expected"));
  }
  std::string_view take_until(std::string_view stops) {
    const std::string_view taken = rest_.substr(0, rest_.find_first_of(stops));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  /// Digits, of which the value is put into `value`.
  std::string_view take_number(long long& value) {
    const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const std::string_view digits = rest_.substr(0, static_cast<std::size_t>(end - rest_.data()));
    if (status != std::errc() || digits.starts_with('-')) refuse("a number was expected");
    rest_.remove_prefix(digits.size());
    return digits;
  }
  void check_size(std::size_t entries) const {
    if (entries > kMostEntries) refuse(str("there are more than ", kMostEntries, " entries"));
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw InvalidArgument(
        errors::kSlurm,
        {.what = str("a ", kind_, " of Slurm must look like ", example_, ", got '", shown(text_), "'"),
         .where = str("character ", text_.size() - rest_.size() + 1, ": ", reason),
         .help = "start the program with srun, which sets this list, or give the hosts in tasks_of_hosts"});
  }

 private:
  const char* kind_;
  const char* example_;
  std::string_view text_, rest_;
};

void expand_range(List& list, const std::string& prefix, std::vector<std::string>& hosts) {
  long long first = 0;
  const std::size_t width = list.take_number(first).size();
  long long last = first;
  if (list.take('-')) list.take_number(last);
  if (last < first) return;
  list.check_size(hosts.size() + static_cast<std::size_t>(last - first));
  for (long long number = first; number <= last; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
    hosts.push_back(prefix + digits);
  }
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  List list("host list", "\"gpu5,node[01-03,7]\"", text);
  std::vector<std::string> hosts;
  while (!list.done()) {
    const std::string prefix(list.take_until(",[] \t\r\n"));
    if (list.take('[')) {
      do expand_range(list, prefix, hosts);
      while (list.take(','));
      list.expect(']');
    } else {
      if (prefix.empty()) list.refuse("a host was expected");
      hosts.push_back(prefix);
      list.check_size(hosts.size());
    }
    if (!list.done()) list.expect(',');
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  List list("list of tasks per node", "\"3(x2),1\"", text);
  std::vector<int> counts;
  do {
    long long count = 0, times = 1;
    list.take_number(count);
    if (count > static_cast<long long>(kMostEntries)) list.refuse("there are too many tasks");
    if (list.take('(')) {
      list.expect('x');
      list.take_number(times);
      list.expect(')');
    }
    list.check_size(counts.size() + static_cast<std::size_t>(times));
    counts.insert(counts.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  } while (list.take(','));
  if (!list.done()) list.refuse("',' was expected");
  return counts;
}

}  // namespace lockstep
