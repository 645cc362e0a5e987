#pragma once

#include <type_traits>

namespace lockstep {

template <class T>
class PerReplica;
template <class T>
class Mirrored;

namespace detail {
template <class T>
struct IsDistributed : std::false_type {};
template <class T>
struct IsDistributed<PerReplica<T>> : std::true_type {};
template <class T>
struct IsDistributed<Mirrored<T>> : std::true_type {};
}  // namespace detail

/// Whether T is a distributed value: a PerReplica or a Mirrored.
template <class T>
inline constexpr bool is_distributed_v = detail::IsDistributed<std::remove_cvref_t<T>>::value;

}  // namespace lockstep
