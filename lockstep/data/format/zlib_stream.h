#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/format/reader_options.h"

struct z_stream_s;

namespace lockstep::data {

/// Turns the bytes of a compressed file into those it was made from, a piece at a time.
class Inflater {
 public:
  Inflater(Compression compression, std::string path);
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater();

  /// Reads compressed bytes: up to so many into the buffer; 0 at the end of the file.
  using Source = FunctionRef<std::size_t(char*, std::size_t)>;

  /// Up to `size` bytes; 0 only at the end. DataLoss when the bytes are damaged, after all bytes before were given.
  std::size_t read(char* out, std::size_t size, Source source);

  void restart();

 private:
  bool refill(Source source);
  [[noreturn]] void damaged(const std::string& what) const;

  Compression compression_;
  std::string path_;
  std::unique_ptr<z_stream_s> stream_;
  std::unique_ptr<char[]> input_;
  std::uint64_t fetched_ = 0;  // compressed bytes taken from the file
  bool source_ended_ = false;
  bool between_members_ = false;
};

/// Compresses; what comes out is added to the end of `out`.
class Deflater {
 public:
  Deflater(Compression compression, int level);
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater();

  void write(std::string_view bytes, std::string& out);
  void flush(std::string& out);   ///< what was written so far can be read
  void finish(std::string& out);  ///< nothing may follow

 private:
  void run(std::string_view bytes, int mode, std::string& out);

  std::unique_ptr<z_stream_s> stream_;
  std::unique_ptr<char[]> output_;
};

}  // namespace lockstep::data
