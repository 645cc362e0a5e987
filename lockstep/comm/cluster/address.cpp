#include "lockstep/comm/cluster/address.h"

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestHost = 253;  // the limit of DNS
constexpr std::string_view kAlphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

[[noreturn]] void refuse(std::string_view address, std::string_view reason) {
  refuse_cluster(str("address '", shown(address), "' ", reason),
                 "write \"host:port\" without a protocol, for example \"10.0.0.1:2222\"; IPv6 is \"[fe80::1]:2222\"");
}

bool consists_of(std::string_view text, std::string_view punctuation) {
  return text.find_first_not_of(str(kAlphanumeric, punctuation)) == std::string_view::npos;
}

}  // namespace

Address parse_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.ends_with(']')) refuse(text, "has no port");
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    const bool is_ipv6 = host.find(':') != std::string_view::npos && consists_of(host, ":.%-_");
    if (!is_ipv6) refuse(text, "must have an IPv6 address in its brackets");
  } else if (!consists_of(host, ".-_")) {
    refuse(text, "has a host with characters other than letters, digits, '.', '-' and '_'");
  }
  if (host.empty() || host.size() > kLongestHost)
    refuse(text, str("needs a host of up to ", kLongestHost, " characters"));
  const auto number = parse_whole_number(port);
  if (!number || *number < 1 || *number > 65'535 || !consists_of(port, "")) {
    refuse(text, str("must have a port from 1 to 65535, got '", shown(port), "'"));
  }
  return {std::string(host), static_cast<std::uint16_t>(*number)};
}

std::string to_string(const Address& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return is_ipv6 ? str('[', address.host, "]:", address.port) : str(address.host, ':', address.port);
}

bool is_loopback(std::string_view host) {
  return equals_ignoring_case(host, "localhost") || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

bool is_same_host(std::string_view a, std::string_view b) {
  return equals_ignoring_case(a, b) || (is_loopback(a) && is_loopback(b));
}

}  // namespace lockstep
