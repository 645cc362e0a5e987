#include "lockstep/train/logs/png.h"

#include <zlib.h>

#include <array>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

constexpr std::array kColorTypes{0, 4, 2, 6};  // by number of channels, from 1
constexpr int kMostPixels = 1 << 28;

void append_big_endian(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_big_endian(out, static_cast<std::uint32_t>(data.size()));
  const std::string chunk = str(type, data);
  out += chunk;
  const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(chunk.size()));
  append_big_endian(out, static_cast<std::uint32_t>(crc));
}

void require_valid(const Image& image) {
  const auto require = [](bool holds, const std::string& what) {
    detail::require_option(holds, "an image for a log", what,
                           "give height * width * channels bytes, row by row, as {height, width, channels, pixels}");
  };
  require(image.channels >= 1 && image.channels <= 4, str("channels must be 1, 2, 3 or 4, got ", image.channels));
  require(image.height >= 1 && image.width >= 1 && image.height <= kMostPixels / image.width,
          str("an image must have 1 to ", kMostPixels, " pixels, got ", image.height, " x ", image.width));
  const auto bytes = std::size_t(image.height) * std::size_t(image.width) * std::size_t(image.channels);
  require(image.pixels.size() == bytes, str("an image of ", image.height, " x ", image.width, " x ", image.channels,
                                            " needs ", bytes, " bytes, got ", image.pixels.size()));
}

}  // namespace

std::string png_of(const Image& image) {
  require_valid(image);
  const std::size_t row = std::size_t(image.width) * std::size_t(image.channels);
  std::string filtered;  // each row has the number of its filter in front: none
  for (std::size_t at = 0; at < image.pixels.size(); at += row) {
    filtered += '\0';
    filtered.append(reinterpret_cast<const char*>(image.pixels.data()) + at, row);
  }
  uLongf size = ::compressBound(filtered.size());
  std::string packed(size, '\0');
  if (::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(filtered.data()),
                 filtered.size()) != Z_OK)
    throw ResourceExhausted(errors::kCompression,
                            {.what = "zlib has no memory to compress an image", .help = "log smaller images"});
  packed.resize(size);

  std::string header;
  append_big_endian(header, static_cast<std::uint32_t>(image.width));
  append_big_endian(header, static_cast<std::uint32_t>(image.height));
  header += '\x08';  // bits per channel
  header += static_cast<char>(kColorTypes.at(static_cast<std::size_t>(image.channels - 1)));
  header += std::string(3, '\0');  // the only compression and filters there are; rows from top to bottom
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", packed);
  append_chunk(png, "IEND", "");
  return png;
}

}  // namespace lockstep::train
