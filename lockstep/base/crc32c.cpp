#include "lockstep/base/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lockstep {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // reflected

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

std::uint64_t load_word(const char* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// kTables[k][b]: the effect of byte b on the checksum after k more zero bytes.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t zeros = 1; zeros < 8; ++zeros) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[zeros - 1][byte];
      tables[zeros][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// The instructions as assembly: the rest of the file is compiled for any processor of the architecture, and the call is
// only made after checking the processor.
#if defined(__aarch64__)
#define LOCKSTEP_CRC32C_INSTRUCTION 1
std::uint32_t add_word(std::uint32_t crc, std::uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
std::uint32_t add_byte(std::uint32_t crc, char byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
      : "+r"(crc)
      : "r"(static_cast<std::uint32_t>(static_cast<unsigned char>(byte))));
  return crc;
}
bool ask_processor() {
  constexpr unsigned long kHwcapCrc32 = 1UL << 7;
  return (getauxval(AT_HWCAP) & kHwcapCrc32) != 0;
}
#elif defined(__x86_64__)
#define LOCKSTEP_CRC32C_INSTRUCTION 1
std::uint32_t add_word(std::uint32_t crc, std::uint64_t word) {
  std::uint64_t wide = crc;
  asm("crc32q %1, %0" : "+r"(wide) : "r"(word));
  return static_cast<std::uint32_t>(wide);
}
std::uint32_t add_byte(std::uint32_t crc, char byte) {
  asm("crc32b %1, %0" : "+r"(crc) : "q"(byte));
  return crc;
}
bool ask_processor() { return __builtin_cpu_supports("sse4.2") != 0; }
#endif

#ifdef LOCKSTEP_CRC32C_INSTRUCTION

// The instruction takes a few cycles but a new one can start in every cycle: three neighbouring lanes are summed in
// parallel and then combined.
constexpr std::size_t kLane = 512;

// The effect of kLane zero bytes on a checksum, by its four bytes.
using LaneShift = std::array<std::array<std::uint32_t, 256>, 4>;

LaneShift make_lane_shift() {
  LaneShift shift{};
  for (std::uint32_t position = 0; position < 4; ++position) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::uint32_t crc = byte << (8 * position);
      for (std::size_t zeros = 0; zeros < kLane; ++zeros) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
      shift[position][byte] = crc;
    }
  }
  return shift;
}

std::uint32_t shift_by_lane(const LaneShift& shift, std::uint32_t crc) {
  return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^ shift[3][crc >> 24];
}

#endif

}  // namespace

namespace detail {

std::uint32_t crc32c_by_table(std::string_view data, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const char* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; at += 8, left -= 8) {
    const std::uint64_t word = load_word(at) ^ crc;
    crc = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) crc ^= kTables[7 - byte][(word >> (8 * byte)) & 0xff];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*at)) & 0xff];
  return ~crc;
}

#ifdef LOCKSTEP_CRC32C_INSTRUCTION

bool has_crc32c_instruction() {
  static const bool has = ask_processor();
  return has;
}

std::uint32_t crc32c_by_instruction(std::string_view data, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const char* at = data.data();
  std::size_t left = data.size();
  if (left >= 3 * kLane) {
    static const LaneShift shift = make_lane_shift();
    for (; left >= 3 * kLane; at += 3 * kLane, left -= 3 * kLane) {
      std::uint32_t second = 0;
      std::uint32_t third = 0;
      for (std::size_t i = 0; i < kLane; i += 8) {
        crc = add_word(crc, load_word(at + i));
        second = add_word(second, load_word(at + kLane + i));
        third = add_word(third, load_word(at + 2 * kLane + i));
      }
      crc = shift_by_lane(shift, shift_by_lane(shift, crc) ^ second) ^ third;
    }
  }
  for (; left >= 8; at += 8, left -= 8) crc = add_word(crc, load_word(at));
  for (; left > 0; ++at, --left) crc = add_byte(crc, *at);
  return ~crc;
}

#else

bool has_crc32c_instruction() { return false; }
std::uint32_t crc32c_by_instruction(std::string_view data, std::uint32_t before) {
  return crc32c_by_table(data, before);
}

#endif

}  // namespace detail

std::uint32_t crc32c(std::string_view data, std::uint32_t before) {
  return detail::has_crc32c_instruction() ? detail::crc32c_by_instruction(data, before)
                                          : detail::crc32c_by_table(data, before);
}

}  // namespace lockstep
