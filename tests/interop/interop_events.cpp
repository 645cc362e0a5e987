#include "tests/interop/interop_events.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/train/logs/event_file.h"

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// Everything that depends on the step, and on whether the run was resumed: part 0 or 1.
void log_step(EventFile& file, std::int64_t step, int part) {
  const auto at = static_cast<double>(step);
  file.scalar("loss", step, 100 * part + at / 8);

  std::array<double, 9> numbers{};
  for (std::size_t j = 0; j < numbers.size(); ++j) numbers[j] = static_cast<double>(j) / 4 - 1 + at;
  file.histogram("weights", step, Histogram(std::span<const double>(numbers)));

  const int channels = static_cast<int>(step % 4) + 1;
  std::array<std::uint8_t, 2 * 3 * 4> pixels{};
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<std::uint8_t>((static_cast<std::size_t>(step) * 31 + i * 11) % 256);
  file.image("picture", step, {2, 3, channels, std::span(pixels).first(static_cast<std::size_t>(6 * channels))});

  file.text("note", step, str("*step* ", step, ", part ", part, ", l\xc3\xa4nge"));
}

}  // namespace

void write_tensorboard(const std::string& folder) {
  const std::string run = folder + "/run";
  {
    EventFile first(run);
    first.hparams({{"adam", true}, {"lr", 0.125}, {"net", std::string("conv")}, {"zero", 0.0}}, {"loss"});
    for (std::int64_t step = 0; step < 10; ++step) log_step(first, step, 0);
  }
  EventFile resumed(run, {.resume_after = 6});
  for (std::int64_t step = 7; step < 12; ++step) log_step(resumed, step, 1);
}
