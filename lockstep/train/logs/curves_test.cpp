#include "lockstep/train/logs/curves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/train/logs/chart.h"
#include "lockstep/train/logs/event_file.h"
#include "lockstep/train/logs/line_logs.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

using Points = std::vector<CurvePoint>;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

std::string described(const std::vector<Curve>& curves) {
  std::vector<std::string> lines;
  for (const Curve& curve : curves) {
    std::string line = curve.run + " | " + curve.name + " |";
    for (const auto& [x, y] : curve.points) line += ' ' + std::to_string(int(x)) + ':' + std::to_string(y).substr(0, 4);
    lines.push_back(line);
  }
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

TEST(Curves, ComeFromEveryKindOfLog) {
  const TemporaryFolder folder;
  CsvLog csv(folder / "a/log.csv");
  JsonLinesLog json(folder / "a/log.jsonl", {.key = "step"});
  for (int epoch = 0; epoch < 3; ++epoch) {
    csv.write(epoch, {{"loss", 1.5 - epoch}, {"val_loss", epoch == 1 ? kNotANumber : 2}});
    json.write(10 * epoch, {{"loss", epoch == 2 ? -std::numeric_limits<double>::infinity() : epoch}});
  }
  EventFile(folder / "b/train").scalar("epoch_loss", 0, 0.5);
  EventFile(folder / "b/validation").scalar("epoch_loss", 0, 0.25);
  EXPECT_EQ(described(read_curves(folder / "a/log.csv", "x")),
            "x | loss | 0:1.50 1:0.50 2:-0.5\nx | val_loss | 0:2.00 1:nan 2:2.00\n");
  EXPECT_EQ(described(read_curves(folder / "a/log.jsonl", "x")), "x | loss | 0:0.00 10:1.00 20:-inf\n");
  EXPECT_EQ(described(read_curves(folder / "b", "")),
            "train | epoch_loss | 0:0.50\nvalidation | epoch_loss | 0:0.25\n");
  EXPECT_EQ(described(read_curves(folder / "b", "b")),
            "b/train | epoch_loss | 0:0.50\nb/validation | epoch_loss | 0:0.25\n");
  EXPECT_EQ(described(read_curves(folder / "b/train", "")), " | epoch_loss | 0:0.50\n");
  EXPECT_EQ(read_curves(folder.path(), "").size(), 5);
}

TEST(Curves, HaveEachStepOnceAfterAResume) {
  const TemporaryFolder folder;
  {
    EventFile events(folder.path());
    for (int step = 0; step < 4; ++step) events.scalar("loss", step, 1);
  }
  EventFile resumed(folder.path(), {.resume_after = 1});
  resumed.scalar("loss", 2, 2);
  resumed.flush();
  EXPECT_EQ(described(read_curves(folder.path(), "x")), "x | loss | 0:1.00 1:1.00 2:2.00\n");
}

TEST(Curves, AreReadAsFarAsALogGoes) {
  const TemporaryFolder folder;
  EXPECT_EQ(described(read_curves(folder.file("a.csv", "epoch,loss,name\r\n0,1,x\r\n\r\nnoise\n1,2,y\n2"), "x")),
            "x | loss | 0:1.00 1:2.00\n");
  EXPECT_EQ(described(read_curves(
                folder.file("a.jsonl", "{\"epoch\":0,\"loss\":1,\"x\":[]}\n\n{\"epoch\":1,\"loss\":2}\n{\"ep"), "x")),
            "x | loss | 0:1.00 1:2.00\n");
  const std::pair<std::string, std::string> rows[] = {
      {folder.file("b.csv", ""), "its first line does not name columns"},
      {folder.file("b.jsonl", "[]\n"), "its first line has no \"epoch\" or \"step\""},
      {folder.file("notes.txt", "x"), "its name does not end in .csv or .jsonl"},
      {folder.file("events.tfevents", "x"), "holds a damaged record"},
  };
  for (const auto& [path, text] : rows)
    expect_error([&read = path] { read_curves(read, ""); }, Code::InvalidArgument, errors::kFile, {path, text}, path);
  std::filesystem::create_directory(folder / "empty");
  expect_error([&] { read_curves(folder / "empty", ""); }, Code::InvalidArgument, errors::kFile,
               {"the folder has no values"});
  expect_error([&] { read_curves(folder / "none", ""); }, Code::NotFound, errors::kFile, {"cannot read"});
}

TEST(Curves, AreSmoothedWithoutABiasToZero) {
  EXPECT_EQ(smoothed({}, 0.9), Points{});
  for (const auto& [x, y] : smoothed({{0, 5}, {1, 5}, {2, 5}}, 0.99)) EXPECT_NEAR(y, 5, 1e-12) << x;
  EXPECT_EQ(smoothed({{0, 1}, {1, 2}}, 0), (Points{{0, 1}, {1, 2}}));
  const Points result = smoothed({{0, 0}, {1, kNotANumber}, {2, 3}}, 0.5);
  EXPECT_TRUE(std::isnan(result[1].y));
  EXPECT_EQ(result[2].y, 2);  // (0.5 * 0 + 0.5 * 3) / 0.75
}

TEST(Curves, KeepTheirPeaksWhenThinned) {
  Points points;
  for (int i = 0; i < 100'000; ++i) points.push_back({double(i), i == 70'001 ? 9.0 : i == 3 ? -9.0 : i % 2});
  const Points few = thinned(points, 100);
  EXPECT_LE(few.size(), 200);
  EXPECT_TRUE(std::ranges::is_sorted(few, {}, &CurvePoint::x));
  EXPECT_NE(std::ranges::find(few, CurvePoint{70'001, 9}), few.end());
  EXPECT_NE(std::ranges::find(few, CurvePoint{3, -9}), few.end());
  EXPECT_EQ(thinned({{0, 1}, {1, 2}}, 1).size(), 2);
  EXPECT_EQ(thinned({{0, kNotANumber}, {1, 2}, {2, 1}, {3, kNotANumber}}, 1), (Points{{1, 2}, {2, 1}}));
  EXPECT_EQ(thinned(Points(3, {0, kNotANumber}), 1).size(), 1);
}

TEST(AxisMarks, AreRoundNumbers) {
  const struct {
    double low, high;
    std::vector<double> marks;
  } rows[] = {{0, 1, {0, 0.2, 0.4, 0.6, 0.8, 1}},
              {0.03, 0.97, {0.2, 0.4, 0.6, 0.8}},
              {-10, 10, {-10, -5, 0, 5, 10}},
              {1e6, 1.00005e6, {1e6, 1.00001e6, 1.00002e6, 1.00003e6, 1.00004e6, 1.00005e6}}};
  for (const auto& row : rows) {
    const auto marks = detail::axis_marks(row.low, row.high);
    ASSERT_EQ(marks.size(), row.marks.size()) << row.low;
    for (std::size_t i = 0; i < marks.size(); ++i) EXPECT_NEAR(marks[i], row.marks[i], 1e-6 * std::abs(marks[i]));
  }
}

int times(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
  return found;
}

TEST(Chart, IsOnePerMetricWithTrainingAndValidation) {
  const std::vector<Curve> curves{
      {"", "loss", {{0, 2}, {1, 1}}}, {"", "val_loss", {{0, 3}, {1, 2}}}, {"", "accuracy", {{0, 0.5}}}};
  const std::string svg = svg_of(curves, {.title = "a <b> & \"c\""});
  EXPECT_EQ(times(svg, "class=\"metric\""), 2);
  EXPECT_TRUE(contains(svg, ">training · 1</text>"));
  EXPECT_TRUE(contains(svg, ">validation · 2</text>"));
  EXPECT_TRUE(contains(svg, "a &lt;b> &amp; &quot;c&quot;"));
  EXPECT_TRUE(contains(svg, "prefers-color-scheme:dark"));
  EXPECT_EQ(times(svg, "http"), 1) << "only the name of the format";
  EXPECT_EQ(times(svg, "<g "), times(svg, "</g>"));
  EXPECT_TRUE(contains(svg, "M62.0 ") && contains(svg, "L466.0 ")) << "from end to end";
  EXPECT_TRUE(contains(svg, "h0\"/>")) << "a single value is a dot";
}

TEST(Chart, ComparesRuns) {
  const std::vector<Curve> curves{
      {"a", "epoch_loss", {{0, 2}}}, {"b", "epoch_loss", {{0, 1}}}, {"b", "val_loss", {{0, 1}}}};
  const std::string svg = svg_of(curves, {.smoothing = 0.9});
  EXPECT_EQ(times(svg, "class=\"metric\""), 1);
  for (const char* label : {">a · 2<", ">b · 1<", ">b (validation) · 1<"}) EXPECT_TRUE(contains(svg, label)) << label;
  EXPECT_EQ(times(svg, "class=\"pale\""), 3);
}

TEST(Chart, IsDrawnWhateverTheValuesAre) {
  const double most = std::numeric_limits<double>::max();
  for (const Points& points :
       {Points{}, Points{{0, kNotANumber}}, Points{{0, 0}}, Points{{5, 3}, {5, 3}}, Points{{0, most}, {1, -most}},
        Points{{0, 1}, {1, INFINITY}, {2, 1}}, Points{{0, -1}, {1, 0}}, Points{{0, 1e-300}, {1, 1e300}}}) {
    for (const bool log_scale : {false, true}) {
      const std::string svg = svg_of({{"", "loss", points}}, {.log_scale = log_scale});
      EXPECT_FALSE(contains(svg, "nan")) << svg;
      EXPECT_FALSE(contains(svg, "inf")) << svg;
    }
  }
  EXPECT_TRUE(contains(svg_of({}), "</svg>"));
  for (const double smoothing : {-0.1, 1.0, kNotANumber})
    expect_error([&] { svg_of({}, {.smoothing = smoothing}); }, Code::InvalidArgument, errors::kBadOption,
                 {"must be from 0 to 0.999, got"});
}

}  // namespace
}  // namespace lockstep::train
