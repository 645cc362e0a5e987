#include "lockstep/data/format/zlib_stream.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kPiece = std::size_t{64} << 10;
constexpr std::array<std::string_view, 3> kNames{"", "ZLIB", "GZIP"};  // in the order of Compression

// zlib's way to say which format it is: 15 bits of window, and 16 for the gzip header.
int window_bits(Compression compression) { return compression == Compression::Gzip ? 15 + 16 : 15; }

uInt limited(std::size_t size) {
  return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
}

Bytef* as_bytes(const char* text) { return reinterpret_cast<Bytef*>(const_cast<char*>(text)); }

}  // namespace

std::string_view to_string(Compression compression) { return kNames.at(static_cast<std::size_t>(compression)); }

Compression compression_named(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name == "NONE" ? "" : name);
  if (found != kNames.end()) return static_cast<Compression>(found - kNames.begin());
  throw InvalidArgument(errors::kBadOption,
                        {.what = str("compression must be \"\", \"NONE\", \"ZLIB\" or \"GZIP\", got \"", name, "\""),
                         .help = "name the compression that the file has"});
}

Inflater::Inflater(Compression compression, std::string path)
    : compression_(compression),
      path_(std::move(path)),
      stream_(std::make_unique<z_stream>()),
      input_(std::make_unique_for_overwrite<char[]>(kPiece)) {
  if (inflateInit2(stream_.get(), window_bits(compression)) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(stream_.get()); }

void Inflater::restart() {
  inflateReset(stream_.get());
  stream_->avail_in = 0;
  fetched_ = 0;
  source_ended_ = between_members_ = false;
}

void Inflater::damaged(const std::string& what) const {
  throw DataLoss(errors::kCompression,
                 {.what = str(path_, " holds damaged ", to_string(compression_), " data: ", what),
                  .where = str("compressed byte ", fetched_ - stream_->avail_in, " of ", path_),
                  .help = "set `compression` to the one that the file has, or write the file again"});
}

bool Inflater::refill(Source source) {
  if (stream_->avail_in > 0) return true;
  if (!source_ended_) {
    const std::size_t got = source(input_.get(), kPiece);
    stream_->next_in = as_bytes(input_.get());
    stream_->avail_in = limited(got);
    fetched_ += got;
    source_ended_ = got == 0;
  }
  return !source_ended_;
}

std::size_t Inflater::read(char* out, std::size_t size, Source source) {
  while (size > 0) {
    const bool has_input = refill(source);
    if (between_members_) {
      if (!has_input) return 0;
      if (compression_ == Compression::Zlib) damaged("more bytes follow its end");
      inflateReset(stream_.get());
      between_members_ = false;
    }
    stream_->next_out = as_bytes(out);
    stream_->avail_out = limited(size);
    const int result = inflate(stream_.get(), Z_NO_FLUSH);
    between_members_ = result == Z_STREAM_END;
    const std::size_t made = limited(size) - stream_->avail_out;
    // Bytes first: the next call meets the same damage again.
    if (made > 0) return made;
    switch (result) {
      case Z_OK:
      case Z_STREAM_END: break;
      case Z_BUF_ERROR:
        if (!has_input) damaged("it ends too early");
        break;
      case Z_MEM_ERROR: throw std::bad_alloc();
      default: damaged(stream_->msg != nullptr ? stream_->msg : "its header asks for a dictionary");
    }
  }
  return 0;
}

Deflater::Deflater(Compression compression, int level)
    : stream_(std::make_unique<z_stream>()), output_(std::make_unique_for_overwrite<char[]>(kPiece)) {
  constexpr int kMemoryLevel = 8;
  const int result =
      deflateInit2(stream_.get(), level, Z_DEFLATED, window_bits(compression), kMemoryLevel, Z_DEFAULT_STRATEGY);
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  if (result != Z_OK) {
    throw InvalidArgument(errors::kBadOption, {.what = str("compression level must be -1 to 9, got ", level),
                                               .help = "give 0 (none) to 9 (smallest), or -1 for zlib's default"});
  }
}

Deflater::~Deflater() { deflateEnd(stream_.get()); }

void Deflater::write(std::string_view bytes, std::string& out) { run(bytes, Z_NO_FLUSH, out); }
void Deflater::flush(std::string& out) { run({}, Z_SYNC_FLUSH, out); }
void Deflater::finish(std::string& out) { run({}, Z_FINISH, out); }

void Deflater::run(std::string_view bytes, int mode, std::string& out) {
  do {
    const uInt piece = limited(bytes.size());
    stream_->next_in = as_bytes(bytes.data());
    stream_->avail_in = piece;
    bytes.remove_prefix(piece);
    do {
      stream_->next_out = as_bytes(output_.get());
      stream_->avail_out = limited(kPiece);
      deflate(stream_.get(), bytes.empty() ? mode : Z_NO_FLUSH);
      out.append(output_.get(), kPiece - stream_->avail_out);
    } while (stream_->avail_out == 0);
  } while (!bytes.empty());
}

}  // namespace lockstep::data
