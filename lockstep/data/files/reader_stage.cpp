#include "lockstep/data/files/reader_stage.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include "lockstep/base/logging.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/iterators.h"

namespace lockstep::data {
namespace {

/// Where a file begins among all elements, and some places within it, from which `locate` finds earlier elements.
struct Mark {
  std::int64_t count = 0;  // elements before it
  std::int64_t file = 0;   // names taken before this file's
  std::string name;
  RecordPosition place;
};

/// Skips records up to number `end` or the end of the file. Counts each in `number`, including those before one that
/// fails.
void skip_until(RecordReader& reader, std::int64_t end, std::int64_t& number) {
  if (reader.jumps()) {
    number += static_cast<std::int64_t>(reader.skip(static_cast<std::uint64_t>(end - number)));
    return;
  }
  while (number < end && reader.skip(1) == 1) ++number;
}

class FilesIterator final : public ElementIterator {
 public:
  FilesIterator(IteratorPtr names, const ReaderFormat& format) : names_(std::move(names)), format_(format) {}
  ~FilesIterator() override { close(); }

  bool next(Element& element) override {
    while (open_next()) {
      has_read_ = true;
      try {
        if (reader_->next()) {
          format_.to_element(*reader_, element);
          ++count_;
          if (count_ - last_mark_ >= kMarkDistance) mark();
          return true;
        }
      } catch (...) {
        pass_over();
        throw;
      }
      close();
    }
    return false;
  }

  // A damaged record among skipped elements counts as one of them and is not an error, just as it would have counted
  // when read. So does a name that fails.
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t start = count_;
    const std::int64_t end = count > std::numeric_limits<std::int64_t>::max() - start
                                 ? std::numeric_limits<std::int64_t>::max()
                                 : start + count;
    while (count_ < end) {
      try {
        if (!open_next()) break;
        skip_until(*reader_, end, count_);
        if (count_ < end) close();
      } catch (...) {
        if (reader_ != nullptr) pass_over();
        rethrow_if_fatal(std::current_exception());
      }
    }
    if (reader_ != nullptr && count_ - last_mark_ >= kMarkDistance) mark();
    return count_ - start;
  }

  void locate(std::int64_t consumed, Position& position) const override {
    const Mark found = last_mark_before(consumed);
    for (const std::int64_t number :
         {consumed, consumed - found.count, found.file, static_cast<std::int64_t>(found.place.record),
          static_cast<std::int64_t>(found.place.offset), static_cast<std::int64_t>(found.place.line)})
      position.push(number);
    names_->locate(found.file, position);
  }

  void restore(Position& position) override {
    const std::int64_t consumed = position.pop();
    const std::int64_t more = position.pop();
    files_ = position.pop();
    RecordPosition place;
    place.record = static_cast<std::uint64_t>(position.pop());
    place.offset = static_cast<std::uint64_t>(position.pop());
    place.line = static_cast<std::uint64_t>(position.pop());
    names_->restore(position);
    count_ = consumed - more;
    if (place.offset > 0) {
      if (!open_next()) return;
      reader_->restore(place);
    }
    skip(more);
  }

  /// Only for messages, so it may take the time to read the record again, from the last mark before it.
  std::string origin(std::int64_t number, std::int64_t) const override {
    const Mark mark = last_mark_before(number);
    if (mark.name.empty()) return {};
    try {
      const std::unique_ptr<RecordReader> reader = format_.open(mark.name);
      if (mark.place.offset > 0) reader->restore(mark.place);
      for (std::int64_t reached = mark.count; reached < number;) {
        try {
          skip_until(*reader, number, reached);
          if (reached < number) return {};
        } catch (const Error&) {
          ++reached;
          if (!reader->pass_over()) return {};
        }
      }
      return record_place(reader->position().record, reader->position().offset, mark.name);
    } catch (const Error&) {
      return {};
    }
  }

 private:
  static constexpr std::int64_t kMarkDistance = 4096;
  // Enough for all reading ahead. An older place is found from the beginning: slower, but just as exact.
  static constexpr std::size_t kMarks = 1024;

  bool open_next() {
    if (reader_ != nullptr) return true;
    try {
      ++files_;
      if (!names_->next(name_)) {
        --files_;
        return false;
      }
      reader_ = format_.open(name_.bytes(0));
    } catch (...) {
      ++count_;  // a file that cannot be opened, or whose name is unknown, is one failed element
      throw;
    }
    mark();
    return true;
  }

  Mark last_mark_before(std::int64_t count) const {
    const std::lock_guard lock(mutex_);
    const auto behind = std::ranges::upper_bound(marks_, count, {}, &Mark::count);
    return behind == marks_.begin() ? Mark{} : *std::prev(behind);
  }

  void mark() {
    const std::lock_guard lock(mutex_);
    last_mark_ = count_;
    const Mark fresh{count_, files_ - 1, name_.bytes(0), reader_->position()};
    if (!marks_.empty() && marks_.back().count == count_) {
      marks_.back() = fresh;
    } else {
      marks_.push_back(fresh);
      if (marks_.size() > kMarks) marks_.pop_front();
    }
  }

  void pass_over() {
    ++count_;
    bool goes_on = false;
    try {
      goes_on = reader_->pass_over();
    } catch (...) {
      // The first error counts.
    }
    if (!goes_on) close();
  }

  /// Closes the file. Logs what was skipped in it, unless it was only opened to find a place.
  void close() {
    if (reader_ == nullptr) return;
    if (const std::string losses = reader_->losses(); has_read_ && !losses.empty()) say_warning(losses);
    reader_.reset();
    has_read_ = false;
  }

  IteratorPtr names_;
  ReaderFormat format_;
  Element name_;
  std::unique_ptr<RecordReader> reader_;
  bool has_read_ = false;   // from the open file
  std::int64_t files_ = 0;  // names taken
  std::int64_t count_ = 0;  // elements returned or failed
  std::int64_t last_mark_ = 0;

  mutable std::mutex mutex_;  // `locate` may be called by any thread
  std::deque<Mark> marks_;
};

}  // namespace

void record_to_element(const RecordReader& reader, Element& element) {
  element.skeleton = nullptr;
  element.components.resize(1);
  auto* text = std::get_if<std::string>(&element.components.front());
  (text ? *text : element.components.front().emplace<std::string>()).assign(reader.record());
}

StagePtr make_file_reader(ReaderFormat format, StagePtr names) {
  const auto reader_of = [format = std::move(format)](const Stage& below, int, int) -> StageDescription {
    const std::string files = describe_files(below);
    const std::string detail = str(files, files.empty() || format.detail.empty() ? "" : "; ", format.detail);
    return {.kind = format.kind,
            .text = str(format.kind, detail.empty() ? "" : str("(", detail, ")")),  // "tfrecord(3 files: a, ...; GZIP)"
            .identity = str(format.kind, "(", format.identity, ")"),
            .traits = {.source = StageTraits::Source::Files,
                       .rows = StageTraits::Rows::One,
                       .passes_over = true,
                       .runs_functions = false},
            .cardinality = [](const Stage&) { return Cardinality::unknown(); },
            .spec = [spec = format.spec](const Stage&) { return spec; },
            .iterate = over_input<FilesIterator>(format)};
  };
  StageDescription reader = reader_of(*names, 1, 0);
  reader.on_other_input = reader_of;
  return make_stage({std::move(names)}, std::move(reader));
}

std::string describe_files(const Stage& names) {
  constexpr std::size_t kLongest = 80;
  const Cardinality files = names.cardinality();
  if (!files.is_known()) return {};
  std::string text = counted(files.value(), "file");
  // After a shuffle or a shard the source's first name is meaningless.
  const RowSourcePtr rows = names.inputs().empty() ? names.row_source() : nullptr;
  if (rows == nullptr || rows->size() == 0) return text;
  const Element first = rows->row(0);
  const auto* name = first.size() == 1 ? std::get_if<std::string>(&first.components.front()) : nullptr;
  if (name == nullptr) return text;
  const bool is_long = name->size() > kLongest;
  text += str(": ", is_long ? "..." : "", is_long ? name->substr(name->size() - kLongest) : *name);
  return text + (rows->size() > 1 ? ", ..." : "");
}

}  // namespace lockstep::data
