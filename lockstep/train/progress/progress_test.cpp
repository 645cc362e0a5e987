#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/train/progress/progress_printer.h"
#include "lockstep/train/progress/progress_text.h"

namespace lockstep::train {
namespace {

ProgressState state_at(std::int64_t current, double seconds) {
  return {.epoch = 0,
          .epochs = 12,
          .current = current,
          .total = 469,
          .seconds = seconds,
          .values = {{"accuracy", 0.54321}, {"loss", 1.43214}}};
}

TEST(Progress, NumbersReadAsKerasWritesThem) {
  EXPECT_EQ(duration_text(0.4), "0s");
  EXPECT_EQ(duration_text(59.9), "59s");
  EXPECT_EQ(duration_text(65), "1:05");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(step_time_text(2.4), "2s/step");
  EXPECT_EQ(step_time_text(0.0049), "5ms/step");
  EXPECT_EQ(step_time_text(0.000312), "312us/step");
  EXPECT_EQ(value_text(0.54321), "0.5432");
  EXPECT_EQ(value_text(1.43214e-05), "1.4321e-05");
  EXPECT_EQ(value_text(-0.25), "-0.2500");
  EXPECT_EQ(value_text(123456.0), "123456.0000");
  EXPECT_EQ(value_text(std::stod("nan")), "nan");
  EXPECT_EQ(value_text(-std::stod("nan")), "nan");
  EXPECT_EQ(values_text({{"val_a", 1}, {"z", 2}, {"b", 3}}), " - b: 3.0000 - z: 2.0000 - val_a: 1.0000");
}

TEST(Progress, ALineIsLikeKerasAtEightyColumns) {
  const std::string cells = "━━──────────────────";
  EXPECT_EQ(bar_line(state_at(47, 0.235), {.columns = 80}),
            " 47/469 " + cells + " 2s 5ms/step - accuracy: 0.5432 - loss: 1.4321");
  ProgressState done = state_at(469, 3.2);
  EXPECT_EQ(bar_line(done, {.columns = 80, .is_last = true}),
            "469/469 ━━━━━━━━━━━━━━━━━━━━ 3s 7ms/step - accuracy: 0.5432 - loss: 1.4321");
  done.values = {{"val_loss", 0.1623}, {"loss", 0.3521}, {"val_accuracy", 0.9512}, {"accuracy", 0.8912}};
  EXPECT_EQ(
      bar_line(done, {.columns = 200, .is_last = true}),
      "469/469 ━━━━━━━━━━━━━━━━━━━━ 3s 7ms/step - accuracy: 0.8912 - loss: 0.3521 - val_accuracy: 0.9512 - val_loss: "
      "0.1623");
}

TEST(Progress, ALineNeverWraps) {
  ProgressState state = state_at(47, 0.235);
  state.values = {{"größe", 1}, {"val_accuracy", 0.5}, {"a_very_long_name_of_a_metric", 2}, {"loss", 3}};
  for (int columns = 1; columns <= 200; ++columns) {
    const std::string line = bar_line(state, {.columns = columns, .colours = columns % 2 == 0});
    if (columns >= 24) {  // counts and times alone take 23
      EXPECT_LT(columns_of(line), columns) << line;
    }
  }
  EXPECT_EQ(bar_line(state_at(47, 0.235), {.columns = 40}), " 47/469 2s 5ms/step - accuracy: 0.5432");
}

TEST(Progress, TheLastLineOfAnEpochHasEveryValueInSeveralLinesIfItMust) {
  ProgressState done = state_at(469, 3.2);
  done.values = {{"val_loss", 0.1623}, {"loss", 0.3521}, {"val_accuracy", 0.9512}, {"accuracy", 0.8912}};
  EXPECT_EQ(bar_line(done, {.columns = 80, .is_last = true}),
            "469/469 ━━━━━━━━━━━━━━━━━━━━ 3s 7ms/step - accuracy: 0.8912 - loss: 0.3521\n"
            "        - val_accuracy: 0.9512 - val_loss: 0.1623");
  EXPECT_EQ(bar_line(done, {.columns = 30, .is_last = true}),
            "469/469 ━━━━━━━━━ 3s 7ms/step\n"
            "        - accuracy: 0.8912\n        - loss: 0.3521\n        - val_accuracy: 0.9512\n"
            "        - val_loss: 0.1623");
}

TEST(Progress, AnUnknownTotalIsShown) {
  ProgressState state = state_at(47, 0.47);
  state.total = {};
  EXPECT_EQ(bar_line(state, {.columns = 80}),
            "47/Unknown ━━━━━━━━━━━━━━━━━━━━ 0s 10ms/step - accuracy: 0.5432 - loss: 1.4321");
  EXPECT_EQ(plain_line(state, false), "Epoch 1/12: 47 0s 10ms/step - accuracy: 0.5432 - loss: 1.4321");
}

TEST(Progress, ControlSequencesTakeNoColumns) {
  EXPECT_EQ(columns_of("\x1b[32m━━\x1b[0m\x1b[37m━\x1b[0mab"), 5);
  EXPECT_EQ(columns_of("größe"), 5);
  EXPECT_EQ(columns_of(""), 0);
  EXPECT_EQ(columns_of("\x1b["), 0);
}

/// The steps at which a pipe gets a line before the end of an epoch of 100 steps; what it got goes to `text`.
std::vector<std::int64_t> steps_shown(const std::function<double(std::int64_t)>& seconds_of_step, std::string& text) {
  std::ostringstream out;
  ProgressPrinter printer(Verbose::Auto, screen_of(out));
  ProgressState state{.epochs = 2, .total = 100};
  printer.epoch_begins(state);
  std::vector<std::int64_t> shown;
  for (state.current = 1; state.current <= 100; ++state.current) {
    state.seconds += seconds_of_step(state.current);
    if (!printer.is_due(state)) continue;
    shown.push_back(state.current);
    printer.show(state);
  }
  state.current = 100;
  printer.epoch_ends(state);
  text = out.str();
  return shown;
}

TEST(Progress, APipeGetsALineForEachTenthOrThirtySeconds) {
  std::string text;
  const auto shown = steps_shown([](std::int64_t step) { return step == 45 ? 31 : 1; }, text);
  EXPECT_EQ(shown, (std::vector<std::int64_t>{10, 20, 30, 40, 45, 50, 60, 70, 80, 90}));
  EXPECT_EQ(text.find('\r'), text.npos);
  EXPECT_EQ(text.find('\x1b'), text.npos);
  EXPECT_EQ(text.substr(0, 28), "Epoch 1/2: 10/100 (10%) 1:30");
  EXPECT_NE(text.find("Epoch 1/2: 100/100 (100%) 2:10 1s/step\n"), text.npos) << text;
}

TEST(Progress, APipeGetsOneLineForAFastEpoch) {
  std::string text;
  EXPECT_EQ(steps_shown([](std::int64_t) { return 0.045; }, text), std::vector<std::int64_t>{});
  EXPECT_EQ(text, "Epoch 1/2: 100/100 (100%) 4s 45ms/step\n");
  // In 25 seconds there are four before it, at least five seconds apart.
  EXPECT_EQ(steps_shown([](std::int64_t) { return 0.25; }, text), (std::vector<std::int64_t>{20, 40, 60, 80}));
}

/// A terminal whose width a test can change.
struct Terminal {
  std::string shown;
  int columns = 80;
  Screen screen() {
    return {[this](const std::string& text) { shown += text; }, [this] { return columns; }};
  }
};

TEST(Progress, ABarIsRedrawnAtMostTwentyTimesASecond) {
  Terminal terminal;
  ProgressPrinter printer(Verbose::Auto, terminal.screen());
  ProgressState state{.epochs = 1, .total = 1000};
  printer.epoch_begins(state);
  int drawn = 0;
  for (state.current = 1; state.current <= 1000; ++state.current) {
    state.seconds += 0.001;
    if (!printer.is_due(state)) continue;
    printer.show(state);
    ++drawn;
  }
  EXPECT_GE(drawn, 15);
  EXPECT_LE(drawn, 20);
  printer.epoch_ends(state);
  EXPECT_EQ(terminal.shown.substr(0, 10), "Epoch 1/1\n");
  EXPECT_EQ(terminal.shown.back(), '\n');
}

TEST(Progress, ANarrowerTerminalIsClearedOfTheOldLine) {
  Terminal terminal;
  ProgressPrinter printer(Verbose::Bar, terminal.screen());
  printer.epoch_begins(state_at(0, 0));
  printer.show(state_at(47, 0.235));
  terminal.columns = 40;
  terminal.shown.clear();
  printer.show(state_at(48, 0.3));
  EXPECT_EQ(terminal.shown.substr(0, 8), "\r\x1b[1A\x1b[J") << "the old line takes two rows now";
}

TEST(Progress, AMessageTakesThePlaceOfTheBarWhichIsDrawnAgainBelow) {
  Terminal terminal;
  ProgressPrinter printer(Verbose::Bar, terminal.screen());
  printer.epoch_begins(state_at(0, 0));
  printer.show(state_at(47, 0.235));
  terminal.shown.clear();
  printer.say("saved");
  EXPECT_EQ(terminal.shown, "\r\x1b[Ksaved\n");
  EXPECT_TRUE(printer.is_due(state_at(48, 0.24)));
}

TEST(Progress, SilentWritesNothing) {
  std::ostringstream out;
  ProgressPrinter printer(Verbose::Silent, screen_of(out));
  printer.epoch_begins(state_at(0, 0));
  EXPECT_FALSE(printer.is_due(state_at(400, 1000)));
  printer.epoch_ends(state_at(469, 3));
  printer.say("saved");
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace lockstep::train
