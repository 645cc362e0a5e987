#include "lockstep/data/iterator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <sstream>
#include <string_view>

#include "lockstep/data/errors.h"
#include "lockstep/data/random_key.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kStateName = "lockstep-iterator-state ";
constexpr std::string_view kStateHeader = "lockstep-iterator-state 4";

[[noreturn]] void throw_bad_state(const std::string& seen) {
  throw DataLoss(errors::kPosition, {.what = "the text is not the state of a dataset's iterator",
                                     .seen = seen,
                                     .help = "give IteratorState::parse what serialize() returned, unchanged"});
}

std::uint64_t fingerprint(const std::string& text) {
  std::uint64_t hash = 0;
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

IterationContext IterationContext::below(std::uint64_t branch) const {
  IterationContext result = *this;
  result.path = mix(path, branch + 1);
  return result;
}

IterationContext IterationContext::pass(std::uint64_t index) const {
  IterationContext result = *this;
  if (index > 0) result.epoch = mix(epoch, index);
  return result;
}

std::uint64_t IterationContext::stage_seed() const { return mix(job_seed, path); }

std::uint64_t IterationContext::pass_key() const { return mix(stage_seed(), epoch); }

IterationContext IterationContext::unmeasured() const {
  IterationContext result = *this;
  result.meter = nullptr;
  result.counters = nullptr;
  return result;
}

std::uint64_t default_job_seed() { return at::detail::getDefaultCPUGenerator().current_seed(); }

std::int64_t Position::pop() {
  if (read_ >= numbers_.size()) throw_bad_state("it ends too early");
  return numbers_[read_++];
}

Position Position::of(std::vector<std::int64_t> numbers) {
  Position position;
  position.numbers_ = std::move(numbers);
  return position;
}

PlaceIterator::~PlaceIterator() = default;

void PlaceIterator::locate(std::int64_t consumed, Position& position) const { position.push(consumed); }

void PlaceIterator::restore(Position& position) { skip(position.pop()); }

std::int64_t ElementIterator::skip(std::int64_t count) {
  Element unwanted;
  std::int64_t skipped = 0;
  for (; skipped < count; ++skipped) {
    try {
      if (!next(unwanted)) break;
    } catch (...) {
      rethrow_if_fatal(std::current_exception());
    }
  }
  return skipped;
}

bool concerns_whole_stream(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const Error& seen) {
    return seen.number() == errors::kNoThreads || seen.number() == errors::kTooFewElements;
  } catch (...) {
    return false;
  }
}

void rethrow_if_fatal(const std::exception_ptr& error) {
  if (concerns_whole_stream(error)) std::rethrow_exception(error);
}

void rethrow_with_stage(const std::string& stage) {
  try {
    throw;
  } catch (Error& error) {
    error.add_where(str("in ", stage));
    throw;
  } catch (c10::Error& error) {
    error.add_context(str("in the dataset's ", stage));
    throw;
  }
}

std::string ElementIterator::origin(std::int64_t, std::int64_t) const { return {}; }

std::string IteratorState::serialize() const {
  std::ostringstream body;
  body << kStateHeader << '\n' << job_seed << ' ' << epoch << ' ' << path << ' ' << consumed << ' ' << position.size();
  for (const std::int64_t number : position) body << ' ' << number;
  body << '\n' << pipeline.size() << '\n' << pipeline << '\n';
  return str(body.str(), fingerprint(body.str()), '\n');
}

IteratorState IteratorState::parse(const std::string& text) {
  std::istringstream in(text);
  std::string header;
  if (!std::getline(in, header) || !header.starts_with(kStateName)) throw_bad_state("its first line is not known");
  if (header != kStateHeader) throw_bad_state("another version of Lockstep saved it");
  IteratorState state;
  std::size_t count = 0;
  std::size_t length = 0;
  if (!(in >> state.job_seed >> state.epoch >> state.path >> state.consumed >> count) || count > text.size())
    throw_bad_state("its numbers cannot be read");
  state.position.resize(count);
  for (std::int64_t& number : state.position) in >> number;
  if (!(in >> length) || length > text.size() || in.get() != '\n') throw_bad_state("its numbers cannot be read");
  state.pipeline.resize(length);
  in.read(state.pipeline.data(), static_cast<std::streamsize>(length));
  std::uint64_t sum = 0;
  if (in.get() != '\n' || !(in >> sum) || state.serialize() != text) throw_bad_state("its check sum does not fit");
  return state;
}

}  // namespace lockstep::data
