#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::wire {
class Details;
class Fault;
class FromChief;
class Meet;
class Reply;
class Roster;
class ToChief;
}  // namespace lockstep::wire

namespace lockstep::coordination {

inline constexpr unsigned kProtocol = 1;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMaxHello = 256;
inline constexpr std::size_t kMaxKey = 4 << 10;
inline constexpr std::size_t kMaxValue = 1 << 20;
inline constexpr std::size_t kMaxStore = 64 << 20;
inline constexpr std::size_t kMaxMessage = kMaxValue + (64 << 10);
inline constexpr std::size_t kMaxPlace = 512;

void write(const Failure& failure, wire::Fault& to);
Failure read(const wire::Fault& from);

std::vector<Fact> facts_of(const wire::Details& details);
std::vector<MemberState> read(const wire::Roster& from, const std::vector<Member>& members);

}  // namespace lockstep::coordination
