#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {
namespace zlib {

inline constexpr std::size_t kPiece = std::size_t{64} << 10;

// zlib selects the format by the window bits: 15, plus 16 for the gzip header.
inline int window_bits(Compression compression) { return compression == Compression::Gzip ? 15 + 16 : 15; }

inline uInt limited(std::size_t size) {
  return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
}

inline Bytef* as_bytes(const char* text) { return reinterpret_cast<Bytef*>(const_cast<char*>(text)); }

}  // namespace zlib

/// Decompresses a file, a piece at a time.
class Inflater {
 public:
  Inflater(Compression compression, std::string path)
      : compression_(compression),
        path_(std::move(path)),
        input_(std::make_unique_for_overwrite<char[]>(zlib::kPiece)) {
    if (inflateInit2(&stream_, zlib::window_bits(compression)) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  /// Reads up to so many compressed bytes into the buffer; 0 at the end of the file.
  using Source = FunctionRef<std::size_t(char*, std::size_t)>;

  /// Returns up to `size` bytes; 0 only at the end. DataLoss at damaged bytes, after all intact bytes were returned.
  std::size_t read(char* out, std::size_t size, Source source) {
    while (size > 0) {
      const bool has_input = refill(source);
      if (between_members_) {
        if (!has_input) return 0;
        if (compression_ == Compression::Zlib) damaged("more bytes follow its end");
        inflateReset(&stream_);
        between_members_ = false;
      }
      stream_.next_out = zlib::as_bytes(out);
      stream_.avail_out = zlib::limited(size);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      between_members_ = result == Z_STREAM_END;
      const std::size_t made = zlib::limited(size) - stream_.avail_out;
      // Return the bytes first: the next call meets the same damage again.
      if (made > 0) return made;
      switch (result) {
        case Z_OK:
        case Z_STREAM_END: break;
        case Z_BUF_ERROR:
          if (!has_input) damaged("it ends too early");
          break;
        case Z_MEM_ERROR: throw std::bad_alloc();
        default: damaged(stream_.msg != nullptr ? stream_.msg : "its header asks for a dictionary");
      }
    }
    return 0;
  }

  void restart() {
    inflateReset(&stream_);
    stream_.avail_in = 0;
    fetched_ = 0;
    source_ended_ = between_members_ = false;
  }

 private:
  bool refill(Source source) {
    if (stream_.avail_in > 0) return true;
    if (!source_ended_) {
      const std::size_t got = source(input_.get(), zlib::kPiece);
      stream_.next_in = zlib::as_bytes(input_.get());
      stream_.avail_in = zlib::limited(got);
      fetched_ += got;
      source_ended_ = got == 0;
    }
    return !source_ended_;
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw DataLoss(errors::kCompression,
                   {.what = str(path_, " holds damaged ", to_string(compression_), " data: ", what),
                    .where = str("compressed byte ", fetched_ - stream_.avail_in, " of ", path_),
                    .help = "set `compression` to the one that the file has, or write the file again"});
  }

  Compression compression_;
  std::string path_;
  z_stream stream_{};
  std::unique_ptr<char[]> input_;
  std::uint64_t fetched_ = 0;  // compressed bytes taken from the file
  bool source_ended_ = false;
  bool between_members_ = false;
};

/// Compresses; appends the result to `out`.
class Deflater {
 public:
  Deflater(Compression compression, int level) : output_(std::make_unique_for_overwrite<char[]>(zlib::kPiece)) {
    constexpr int kMemoryLevel = 8;
    const int result =
        deflateInit2(&stream_, level, Z_DEFLATED, zlib::window_bits(compression), kMemoryLevel, Z_DEFAULT_STRATEGY);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_OK) {
      throw InvalidArgument(errors::kBadOption, {.what = str("compression level must be -1 to 9, got ", level),
                                                 .help = "give 0 (none) to 9 (smallest), or -1 for zlib's default"});
    }
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream_); }

  void write(std::string_view bytes, std::string& out) { run(bytes, Z_NO_FLUSH, out); }
  void flush(std::string& out) { run({}, Z_SYNC_FLUSH, out); }  ///< what was written so far can be read
  void finish(std::string& out) { run({}, Z_FINISH, out); }     ///< nothing may follow

 private:
  void run(std::string_view bytes, int mode, std::string& out) {
    do {
      const uInt piece = zlib::limited(bytes.size());
      stream_.next_in = zlib::as_bytes(bytes.data());
      stream_.avail_in = piece;
      bytes.remove_prefix(piece);
      do {
        stream_.next_out = zlib::as_bytes(output_.get());
        stream_.avail_out = zlib::limited(zlib::kPiece);
        deflate(&stream_, bytes.empty() ? mode : Z_NO_FLUSH);
        out.append(output_.get(), zlib::kPiece - stream_.avail_out);
      } while (stream_.avail_out == 0);
    } while (!bytes.empty());
  }

  z_stream stream_{};
  std::unique_ptr<char[]> output_;
};

}  // namespace lockstep::data
