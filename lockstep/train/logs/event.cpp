#include "lockstep/train/logs/event.h"

#include "lockstep/train/logs/proto_message.h"

// The numbers of fields are those of event.proto, summary.proto, tensor.proto and the hparams plugin's api.proto.
namespace lockstep::train::detail::event {
namespace {

enum DataType { kFloat = 1, kString = 7 };
enum DataClass { kTensorClass = 2 };
enum HParamType { kStringParam = 1, kBoolParam = 2, kNumberParam = 3 };
constexpr std::int64_t kSessionStart = 1;
constexpr std::string_view kHParamsTag = "_hparams_/";

std::string event(Moment moment, std::uint32_t kind, const ProtoMessage& content) {
  return ProtoMessage().number(1, moment.wall_time).integer(2, moment.step).part(kind, content).bytes();
}

std::string summary(Moment moment, const ProtoMessage& value) {
  return event(moment, 5, ProtoMessage().part(1, value));
}

ProtoMessage vector_of_one(DataType type) {
  return ProtoMessage().integer(1, type).part(2, ProtoMessage().part(2, ProtoMessage().integer(1, 1)));
}

ProtoMessage metadata(std::string_view plugin, const ProtoMessage& content) {
  return ProtoMessage().part(1, ProtoMessage().text(1, plugin).text(2, content.bytes())).integer(4, kTensorClass);
}

std::string hparams_record(Moment moment, std::string_view name, std::uint32_t kind, const ProtoMessage& content) {
  constexpr std::string_view kZero("\0\0\0\0", 4);  // a value that stands for none
  return summary(moment, ProtoMessage()
                             .text(1, std::string(kHParamsTag) + std::string(name))
                             .part(8, vector_of_one(kFloat).part(5, kZero))
                             .part(9, metadata("hparams", ProtoMessage().part(kind, content))));
}

HParamType type_of(const train::HParam& value) {
  if (std::holds_alternative<bool>(value)) return kBoolParam;
  return std::holds_alternative<double>(value) ? kNumberParam : kStringParam;
}

ProtoMessage value_of(const train::HParam& value) {
  ProtoMessage message;  // google.protobuf.Value
  if (const auto* flag = std::get_if<bool>(&value)) message.present(4, *flag);
  if (const auto* number = std::get_if<double>(&value)) message.present(2, *number);
  if (const auto* text = std::get_if<std::string>(&value)) message.part(3, *text);
  return message;
}

}  // namespace

std::string file_version(double wall_time) {
  return ProtoMessage().number(1, wall_time).part(3, "brain.Event:2").bytes();
}

std::string session_start(Moment moment) { return event(moment, 7, ProtoMessage().integer(1, kSessionStart)); }

std::string scalar(Moment moment, std::string_view tag, float value) {
  return summary(moment, ProtoMessage().text(1, tag).present(2, value));
}

std::string histogram(Moment moment, std::string_view tag, const train::Histogram& values) {
  const auto buckets = values.buckets();
  const auto message = ProtoMessage()
                           .number(1, values.min())
                           .number(2, values.max())
                           .number(3, static_cast<double>(values.count()))
                           .number(4, values.sum())
                           .number(5, values.sum_of_squares())
                           .numbers(6, buckets.limits)
                           .numbers(7, buckets.counts);
  return summary(moment, ProtoMessage().text(1, tag).part(5, message));
}

std::string image(Moment moment, std::string_view tag, const train::Image& image) {
  const std::string png = train::png_of(image);
  const auto message =
      ProtoMessage().integer(1, image.height).integer(2, image.width).integer(3, image.channels).part(4, png);
  return summary(moment, ProtoMessage().text(1, tag).part(4, message));
}

std::string text(Moment moment, std::string_view tag, std::string_view text) {
  return summary(
      moment, ProtoMessage().text(1, tag).part(8, vector_of_one(kString).part(8, text)).part(9, metadata("text", {})));
}

std::vector<std::string> hparams(double wall_time, const train::HParams& values,
                                 const std::vector<std::string>& metric_tags) {
  ProtoMessage experiment, session;
  experiment.number(3, wall_time);
  for (const auto& [name, value] : values) {
    experiment.part(4, ProtoMessage().text(1, name).integer(4, type_of(value)));
    session.part(1, ProtoMessage().text(1, name).part(2, value_of(value)));  // an entry of a map
  }
  for (const std::string& tag : metric_tags) experiment.part(5, ProtoMessage().part(1, ProtoMessage().text(2, tag)));
  session.number(5, wall_time);
  const Moment begin{wall_time, 0};
  return {hparams_record(begin, "experiment", 2, experiment), hparams_record(begin, "session_start_info", 3, session)};
}

}  // namespace lockstep::train::detail::event
