#include "lockstep/comm/cluster/address.h"

#include <algorithm>
#include <charconv>

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestHost = 253;  // of a DNS name
constexpr const char* kForm = "write \"host:port\", for example \"10.0.0.1:2222\" or \"[fe80::1]:2222\"";

[[noreturn]] void refuse(std::string_view address, std::string_view reason, const char* help = kForm) {
  refuse_cluster(str("address '", shown(address), "' ", reason), "", help);
}

bool consists_of(std::string_view text, std::string_view punctuation) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           punctuation.find(c) != std::string_view::npos;
  });
}

std::uint16_t parse_port(std::string_view digits, std::string_view address) {
  std::uint16_t port = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (status != std::errc() || end != digits.data() + digits.size() || port == 0) {
    refuse(address, str("must have a port from 1 to 65535, got '", shown(digits), "'"));
  }
  return port;
}

}  // namespace

Address parse_address(std::string_view text) {
  if (text.find("://") != std::string_view::npos) {
    refuse(text, "must not name a protocol", "write \"host:port\" without \"grpc://\"");
  }
  const std::size_t colon = text.rfind(':');
  const bool bracketed = text.starts_with('[');
  const std::size_t bracket = text.rfind(']');
  if (colon == std::string_view::npos || (bracketed && bracket != std::string_view::npos && colon < bracket)) {
    refuse(text, "has no port");
  }
  std::string_view host = text.substr(0, colon);
  if (bracketed) {
    if (bracket != colon - 1) refuse(text, "has a bracket that is not closed before the port");
    host = host.substr(1, host.size() - 2);
    if (!consists_of(host, ":.%-_") || host.find(':') == std::string_view::npos) {
      refuse(text, "must have an IPv6 address in its brackets");
    }
  } else if (host.find(':') != std::string_view::npos) {
    refuse(text, "has several colons", "write an IPv6 address in brackets, as in \"[fe80::1]:2222\"");
  } else if (!consists_of(host, ".-_")) {
    refuse(text, "has a host with characters other than letters, digits, '.', '-' and '_'");
  }
  if (host.empty()) refuse(text, "has no host");
  if (host.size() > kLongestHost) refuse(text, str("has a host of more than ", kLongestHost, " characters"));
  return {std::string(host), parse_port(text.substr(colon + 1), text)};
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
