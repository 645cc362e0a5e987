// Progress on a real pseudo-terminal, as a user sees it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/train/progress/progress_printer.h"
#include "lockstep/train/progress/progress_text.h"
#include "tests/support/terminal.h"

namespace lockstep::train {
namespace {

using Lines = std::vector<std::string>;
using Variables = std::vector<std::pair<const char*, const char*>>;

constexpr int kEpochs = 2, kSteps = 150;
const std::map<std::string, double> kValues{{"accuracy", 0.54321}, {"loss", 1.43214}, {"top_3", 0.75}};
const std::map<std::string, double> kAll{
    {"accuracy", 0.8912}, {"loss", 0.3521}, {"top_3", 0.97}, {"val_accuracy", 0.9512}, {"val_loss", 0.1623}};

/// A training, without the training. The width of the terminal changes after some steps of the first epoch.
void show_progress(const std::map<std::int64_t, int>& widths) {
  ProgressPrinter printer(Verbose::Auto, standard_output());
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    ProgressState state{.epoch = epoch, .epochs = kEpochs, .total = kSteps, .values = kValues};
    printer.epoch_begins(state);
    for (state.current = 1; state.current <= kSteps; ++state.current) {
      state.seconds += 0.0625;
      if (printer.is_due(state)) printer.show(state);
      const auto width = widths.find(state.current);
      if (epoch == 0 && width != widths.end()) resize_terminal(width->second);
      if (epoch == 0 && state.current == 75) printer.say("Epoch 1: save");
      if (epoch == 1 && state.current == 75) log_warning("left out");
    }
    state.current = kSteps;
    state.values = kAll;
    printer.epoch_ends(state);
  }
}

std::string output(int columns, const std::map<std::int64_t, int>& widths, const Variables& variables = {}) {
  return output_in_terminal(columns, [&] {
    for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG", "LOCKSTEP_LOG", "NO_COLOR"}) ::unsetenv(name);
    ::setenv("TERM", "xterm-256color", 1);
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    show_progress(widths);
  });
}

TEST(ProgressOnATerminal, IsRedrawnInPlaceAtEveryWidth) {
  const std::string bar = "━━━━━━━━━━━━━━━━━━━━";
  const struct {
    int columns;
    Lines last;  ///< lines of an epoch
  } cases[] = {
      {40,
       {"150/150 ━━━━━━━━━━━━━━━━━━ 9s 62ms/step", "        - accuracy: 0.8912",
        "        - loss: 0.3521 - top_3: 0.9700", "        - val_accuracy: 0.9512", "        - val_loss: 0.1623"}},
      {80,
       {"150/150 " + bar + " 9s 62ms/step - accuracy: 0.8912 - loss: 0.3521",
        "        - top_3: 0.9700 - val_accuracy: 0.9512 - val_loss: 0.1623"}},
      {200,
       {"150/150 " + bar +
        " 9s 62ms/step - accuracy: 0.8912 - loss: 0.3521 - top_3: 0.9700 - val_accuracy: 0.9512 - val_loss: 0.1623"}},
  };
  for (const auto& [columns, last] : cases) {
    TerminalEmulator terminal(columns);
    terminal.show(output(columns, {}));
    Lines expected{"Epoch 1/2", "Epoch 1: save"};
    expected.insert(expected.end(), last.begin(), last.end());
    expected.insert(expected.end(), {"Epoch 2/2", "lockstep: warning: left out"});
    expected.insert(expected.end(), last.begin(), last.end());
    EXPECT_EQ(terminal.lines(), expected) << columns;
    EXPECT_EQ(terminal.too_wide(), Lines{}) << columns;
    EXPECT_EQ(terminal.unknown(), Lines{}) << columns;
    EXPECT_GT(terminal.redrawn(), kEpochs * kSteps) << "every step is drawn over the one before";
  }
}

TEST(ProgressOnATerminal, FollowsItsWidth) {
  const std::string seen = output(200, {{20, 80}, {40, 40}, {60, 120}, {100, 60}, {101, 43}, {148, 80}});
  TerminalEmulator terminal(200);
  terminal.show(seen);
  EXPECT_EQ(terminal.too_wide(), Lines{});
  EXPECT_EQ(terminal.unknown(), Lines{});
  const std::string first = "150/150 ━━━━━━━━━━━━━━━━━━━━ 9s 62ms/step - accuracy: 0.8912 - loss: 0.3521",
                    second = "        - top_3: 0.9700 - val_accuracy: 0.9512 - val_loss: 0.1623";
  EXPECT_EQ(terminal.lines(), (Lines{"Epoch 1/2", "Epoch 1: save", first, second, "Epoch 2/2",
                                     "lockstep: warning: left out", first, second}));
}

bool is_ascii(const std::string& text) {
  return std::ranges::all_of(text, [](char letter) { return static_cast<unsigned char>(letter) < 0x80; });
}

TEST(ProgressOnATerminal, IsAsciiWhereTheLocaleHasNoUtf8) {
  for (const auto& variables : {Variables{{"LC_ALL", "C"}, {"LANG", "de_DE.UTF-8"}}, Variables{{"LC_CTYPE", "POSIX"}},
                                Variables{{"LANG", "en_US.ISO-8859-1"}}}) {
    const std::string seen = output(80, {}, variables);
    EXPECT_TRUE(is_ascii(seen)) << seen;
    EXPECT_NE(seen.find("75/150 ====.... 4s "), seen.npos) << seen;
    TerminalEmulator terminal(80);
    terminal.show(seen);
    EXPECT_EQ(terminal.lines().at(2), "150/150 ==================== 9s 62ms/step - accuracy: 0.8912 - loss: 0.3521");
  }
  for (const auto& variables : {Variables{}, Variables{{"LC_ALL", ""}, {"LANG", "C.utf8"}}})
    EXPECT_FALSE(is_ascii(output(80, {}, variables)));
}

TEST(ProgressOnATerminal, HasNoColoursWithNoColor) {
  EXPECT_NE(output(80, {}).find("\x1b[32m"), std::string::npos);
  const std::string seen = output(80, {}, {{"NO_COLOR", "1"}});
  EXPECT_EQ(seen.find("\x1b[3"), seen.npos);
  EXPECT_NE(seen.find("━─"), seen.npos) << "the rest of the bar looks different all the same";
}

TEST(ProgressOnATerminal, IsLinesIfItCannotRedraw) {
  const std::string seen = output(80, {}, {{"TERM", "dumb"}});
  EXPECT_EQ(seen.find('\x1b'), seen.npos);
  TerminalEmulator terminal(80);
  terminal.show(seen);
  EXPECT_EQ(terminal.redrawn(), 0);
  EXPECT_EQ(terminal.lines().back().substr(0, 45), "Epoch 2/2: 150/150 (100%) 9s 62ms/step - accu");
}

}  // namespace
}  // namespace lockstep::train
