#include "lockstep/data/cardinality.h"

#include <algorithm>

namespace lockstep::data {

std::string to_string(Cardinality cardinality) {
  if (cardinality.is_infinite()) return "infinite";
  if (cardinality.is_unknown()) return "unknown";
  return std::to_string(cardinality.value());
}

Cardinality batched(Cardinality rows, std::int64_t batch_size, bool drop_remainder) {
  if (!rows.is_known()) return rows;
  const std::int64_t full = rows.value() / batch_size;
  return full + (!drop_remainder && rows.value() % batch_size != 0 ? 1 : 0);
}

Cardinality multiplied(Cardinality once, std::int64_t count) {
  if (!once.is_known()) return once;
  std::int64_t product = 0;
  return __builtin_mul_overflow(once.value(), count, &product) ? Cardinality::infinite() : Cardinality(product);
}

Cardinality repeated(Cardinality once, std::int64_t count) {
  if (count == 0) return 0;
  if (count < 0) return once == Cardinality(0) ? Cardinality(0) : Cardinality::infinite();
  return multiplied(once, count);
}

Cardinality taken(Cardinality all, std::int64_t count) {
  if (count < 0 || count == 0) return count < 0 ? all : Cardinality(0);
  if (all.is_infinite()) return count;
  if (all.is_unknown()) return all;
  return std::min(all.value(), count);
}

Cardinality skipped(Cardinality all, std::int64_t count) {
  if (count < 0) return 0;
  if (!all.is_known()) return all;
  return std::max<std::int64_t>(0, all.value() - count);
}

Cardinality sharded(Cardinality all, std::int64_t shards, std::int64_t index) {
  if (!all.is_known()) return all;
  return all.value() / shards + (index < all.value() % shards ? 1 : 0);
}

Cardinality zipped(Cardinality a, Cardinality b) {
  if (a.is_infinite()) return b;
  if (b.is_infinite()) return a;
  if (a.is_unknown() || b.is_unknown()) return Cardinality::unknown();
  return std::min(a.value(), b.value());
}

Cardinality concatenated(Cardinality a, Cardinality b) {
  if (a.is_infinite() || b.is_infinite()) return Cardinality::infinite();
  if (a.is_unknown() || b.is_unknown()) return Cardinality::unknown();
  std::int64_t sum = 0;
  return __builtin_add_overflow(a.value(), b.value(), &sum) ? Cardinality::infinite() : Cardinality(sum);
}

}  // namespace lockstep::data
