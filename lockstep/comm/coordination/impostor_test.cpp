// A process at the chief's port that does not know the job key.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "coordination.grpc.pb.h"
#include "lockstep/comm/coordination/coordinator.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/member_processes.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;

class Impostor final : public wire::Coordination::Service {
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<wire::FromChief, wire::ToChief>* stream) override {
    wire::ToChief heard;
    stream->Read(&heard);
    wire::FromChief token, roster;
    token.set_generation(1);
    token.set_token("token");
    roster.set_generation(1);
    roster.add_roster();
    roster.add_roster();
    stream->Write(token);
    stream->Write(roster);
    while (stream->Read(&heard)) {
    }
    return grpc::Status::OK;
  }
};

TEST(Impostor, WhoSkipsTheProofOfTheKeyIsNoChief) {
  const Watchdog watchdog(60s, "an impostor");
  const LogSilence silence;
  const TemporaryFolder folder;
  const std::string path = folder.path() / "key";
  std::ofstream(path) << std::string(64, 'a');
  ::chmod(path.c_str(), 0600);
  ::setenv("LOCKSTEP_JOB_KEY_FILE", path.c_str(), 1);
  const auto addresses = free_addresses(2);
  Impostor impostor;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(addresses[0], grpc::InsecureServerCredentials());
  builder.RegisterService(&impostor);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  JoinOptions options{.self = 1, .join_timeout = 500ms};
  for (int i = 0; i < 2; ++i)
    options.members.push_back({"worker", i, parse_address(addresses[static_cast<std::size_t>(i)])});
  expect_error([&] { Coordinator::join(options); }, Code::DeadlineExceeded, errors::kPeerMissing,
               {"worker 0", "not as a chief of this job"});
  ::unsetenv("LOCKSTEP_JOB_KEY_FILE");
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace lockstep::coordination
