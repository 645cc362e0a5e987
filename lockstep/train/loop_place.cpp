#include "lockstep/train/loop_place.h"

#include <nlohmann/json.hpp>

#include "lockstep/train/exact_numbers.h"

namespace lockstep::train::detail {

std::string to_text(const LoopPlace& place) {
  nlohmann::json epochs = nlohmann::json::array();
  for (const Logs& logs : place.history.epochs) epochs.push_back(exact_logs(logs));
  return nlohmann::json{
      {"step", place.step},
      {"epoch", place.epoch},
      {"is_in_epoch", place.is_in_epoch},
      {"batch", place.batch},
      {"rows", place.rows},
      {"pass", static_cast<int>(place.pass)},
      {"trainings", place.trainings},
      {"validation_begins", place.validation_begins},
      {"validations", place.validations},
      {"train_logs", exact_logs(place.train_logs)},
      {"validation_logs", exact_logs(place.validation_logs)},
      {"stopping", place.stopping},
      {"ending_epoch", place.ending_epoch},
      {"seconds", place.seconds},
      {"epoch_seconds", place.epoch_seconds},
      {"input_wait_seconds", place.input_wait_seconds},
      {"first_epoch", place.history.first_epoch},
      {"history", epochs},
      {"stopped", place.history.stopped},
  }
      .dump();
}

LoopPlace place_of(const std::string& text) {
  const nlohmann::json saved = nlohmann::json::parse(text);
  LoopPlace place;
  saved.at("step").get_to(place.step);
  saved.at("epoch").get_to(place.epoch);
  saved.at("is_in_epoch").get_to(place.is_in_epoch);
  saved.at("batch").get_to(place.batch);
  saved.at("rows").get_to(place.rows);
  place.pass = static_cast<LoopPlace::Pass>(saved.at("pass").get<int>());
  saved.at("trainings").get_to(place.trainings);
  saved.at("validation_begins").get_to(place.validation_begins);
  saved.at("validations").get_to(place.validations);
  place.train_logs = logs_of(saved.at("train_logs"));
  place.validation_logs = logs_of(saved.at("validation_logs"));
  saved.at("stopping").get_to(place.stopping);
  saved.at("ending_epoch").get_to(place.ending_epoch);
  saved.at("seconds").get_to(place.seconds);
  saved.at("epoch_seconds").get_to(place.epoch_seconds);
  saved.at("input_wait_seconds").get_to(place.input_wait_seconds);
  saved.at("first_epoch").get_to(place.history.first_epoch);
  for (const nlohmann::json& logs : saved.at("history")) place.history.epochs.push_back(logs_of(logs));
  saved.at("stopped").get_to(place.history.stopped);
  return place;
}

}  // namespace lockstep::train::detail
