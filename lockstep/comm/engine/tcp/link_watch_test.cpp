#include "lockstep/comm/engine/tcp/link_watch.h"

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using namespace std::chrono_literals;

TEST(LinkWatch, TellsAPauseFromACut) {
  struct Row {
    Silence silence;
    Way way;
  };
  for (const auto& [silence, way] : std::vector<Row>{
           {{0ms}, Way::Open},
           {{600ms}, Way::Open},  // a beat every half second
           {{750ms}, Way::Doubtful},
           {{2400ms, 1850ms}, Way::Doubtful},
           {{2500ms, 1650ms}, Way::Doubtful},  // a pause of 1.5 s whose end is noticed late
           {{2600ms, 1850ms}, Way::Cut},
           {{2600ms, 0ms}, Way::Doubtful},     // the network is back, and TCP has not noticed yet
           {{4000ms, 1600ms}, Way::Doubtful},  // it was back in between
           {{29s, 100ms}, Way::Doubtful},
           {{30s, 100ms}, Way::Cut},  // a device in between drops this connection and accepts new ones
       }) {
    EXPECT_EQ(judge(silence), way) << silence.on_link.count() << " ms";
  }
}

// Such a link makes no progress, but the machine at its other end answers.
TEST(LinkWatch, ASilentLinkToAMachineThatAnswersIsNotCut) {
  const Descriptor listener = listen_at({"127.0.0.1", 0});
  const std::string address = own_name(listener.get());
  const Descriptor link = connect_to(parse_address(address), Deadline::after(10s));
  LinkWatch watch;
  watch.add(1, link.get(), address);
  for (const Deadline end = Deadline::after(3500ms); !end.expired();) {
    watch.look([](int worker) { ADD_FAILURE() << "worker " << worker << " is reported as cut off"; });
    is_ready(link.get(), 0, watch.next_look());
  }
  EXPECT_FALSE(watch.has_cut());
}

}  // namespace
}  // namespace lockstep::engine
