#include "lockstep/comm/engine/tcp/mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"

namespace lockstep::engine {
namespace {

using Token = std::array<unsigned char, 16>;

struct Hello {
  std::uint32_t magic;
  std::int32_t from;
  std::int32_t to;
  std::int32_t channel;
  std::uint64_t settings;
  Token token;  // of the worker to whom this is sent
  std::uint64_t unused;
};
static_assert(sizeof(Hello) == 48);

constexpr std::uint32_t kMagic = 0x4c534531;  // LSE1
constexpr auto kHelloWait = std::chrono::seconds(5);
constexpr std::size_t kMostUnverified = 128;

std::string hex(const Token& token) {
  std::string text;
  for (const unsigned char byte : token) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

struct Card {  // what a worker leaves in the store
  std::string name;
  Token token{};
};

std::string to_text(const Card& card) { return card.name + " " + hex(card.token); }

Card parse_card(const std::string& text, int rank) {
  Card card;
  const std::size_t space = text.find(' ');
  const std::string digits = space == std::string::npos ? "" : text.substr(space + 1);
  if (digits.size() != 2 * card.token.size())
    throw Failure(Code::DataLoss, errors::kStranger,
                  {.what = str("the store holds no address of worker ", rank, "'s data engine but \"", text, "\""),
                   .help = "give every engine of a job a prefix of its own"},
                  rank);
  card.name = text.substr(0, space);
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  for (std::size_t i = 0; i < card.token.size(); ++i)
    card.token[i] = static_cast<unsigned char>(value(digits[2 * i]) * 16 + value(digits[2 * i + 1]));
  return card;
}

class Mesh {
 public:
  Mesh(const MeshOptions& options, const MeshStore& store, Deadline deadline)
      : options_(options), store_(store), deadline_(deadline), connections_(options.channels) {
    for (auto& channel : connections_) channel.resize(static_cast<std::size_t>(options.workers));
  }

  std::vector<std::vector<Descriptor>> connect() {
    if (options_.workers == 1) return std::move(connections_);
    const Descriptor listener = listen_at(options_.address, options_.port);
    own_.name = own_name(listener.get());
    if (::getrandom(own_.token.data(), own_.token.size(), 0) != static_cast<ssize_t>(own_.token.size()))
      throw Failure(
          Code::Unavailable, errors::kInternal,
          {.what = "the system gives no random numbers", .help = "run where the system call getrandom is allowed"});
    store_.set(key(options_.rank), to_text(own_));
    // Every worker calls those below it and answers those above it; worker 0 answers at once, so nobody waits in a
    // circle.
    for (int rank = 0; rank < options_.rank; ++rank)
      for (int channel = 0; channel < options_.channels; ++channel) call(rank, channel);
    answer_calls(listener.get());
    return std::move(connections_);
  }

 private:
  struct Caller {  // connected, but not yet known
    Descriptor socket;
    Deadline deadline;
    Hello hello{};
    std::size_t read = 0;
  };

  std::string key(int rank) const { return str(options_.prefix, "/data/", rank); }

  const Card& card_of(int rank) {
    auto found = cards_.find(rank);
    if (found == cards_.end()) found = cards_.emplace(rank, parse_card(store_.get(key(rank), deadline_), rank)).first;
    return found->second;
  }

  Hello hello_to(int rank, int channel) {
    Hello hello{};
    hello.magic = kMagic;
    hello.from = options_.rank;
    hello.to = rank;
    hello.channel = channel;
    hello.settings = options_.settings;
    hello.token = card_of(rank).token;
    return hello;
  }

  void call(int rank, int channel) {
    const Hello hello = hello_to(rank, channel);
    const std::string& name = card_of(rank).name;
    Descriptor socket = connect_to(name, deadline_);
    Hello answer{};
    if (!socket || !write_all(socket.get(), &hello, sizeof hello, deadline_) ||
        !read_all(socket.get(), &answer, sizeof answer, deadline_))
      throw missing({rank}, str("worker ", rank, "'s data engine at ", name, " does not answer"));
    if (answer.magic == kMagic && answer.settings != options_.settings && answer.token == own_.token)
      throw differs(rank);
    if (!is_expected(answer, rank, channel))
      throw Failure(Code::Unavailable, errors::kStranger,
                    {.what = str("what answers at ", name, " is not worker ", rank, "'s data engine"),
                     .help = "check that nothing else listens at that address and that all workers use one store"},
                    rank);
    keep(std::move(socket), rank, channel);
  }

  void answer_calls(int listener) {
    std::vector<Caller> callers;
    while (count_left() > 0) {
      std::vector<pollfd> polled{{listener, POLLIN, 0}};
      for (const Caller& caller : callers) polled.push_back({caller.socket.get(), POLLIN, 0});
      const auto until = std::min(deadline_.remaining(), Deadline::Clock::duration(kHelloWait));
      ::poll(polled.data(), polled.size(), poll_milliseconds(Deadline::after(until)));
      if (deadline_.expired()) throw_missing();
      for (std::size_t i = 0; i < callers.size(); ++i) {
        if (polled[i + 1].revents != 0) listen_to(callers[i]);
        if (callers[i].socket && callers[i].deadline.expired()) drop(callers[i]);
      }
      std::erase_if(callers, [](const Caller& caller) { return !caller.socket; });
      if (polled[0].revents != 0) {
        Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket) continue;
        if (callers.size() == kMostUnverified) callers.erase(callers.begin());
        callers.push_back({std::move(socket), Deadline::after(kHelloWait)});
      }
    }
  }

  int count_left() const {
    int left = 0;
    for (const auto& channel : connections_)
      for (int rank = options_.rank + 1; rank < options_.workers; ++rank)
        if (!channel[rank]) ++left;
    return left;
  }

  void listen_to(Caller& caller) {
    const ssize_t count = ::recv(caller.socket.get(), reinterpret_cast<char*>(&caller.hello) + caller.read,
                                 sizeof(Hello) - caller.read, MSG_DONTWAIT);
    if (count <= 0) {
      if (count == 0 || errno != EAGAIN) drop(caller);
      return;
    }
    caller.read += static_cast<std::size_t>(count);
    if (caller.read < sizeof(Hello)) return;
    const Hello& hello = caller.hello;
    const bool knows_token = hello.magic == kMagic && hello.token == own_.token && hello.from > options_.rank &&
                             hello.from < options_.workers;
    if (!knows_token) return drop(caller);
    const Hello answer = hello_to(hello.from, hello.channel);
    const bool answered = write_all(caller.socket.get(), &answer, sizeof answer, Deadline::after(kHelloWait));
    if (hello.settings != options_.settings) throw differs(hello.from);
    if (!answered || !is_expected(hello, hello.from, hello.channel)) return drop(caller);
    keep(std::move(caller.socket), hello.from, hello.channel);
  }

  bool is_expected(const Hello& hello, int rank, int channel) const {
    return hello.magic == kMagic && hello.from == rank && hello.to == options_.rank && hello.channel == channel &&
           channel >= 0 && channel < options_.channels && hello.settings == options_.settings &&
           hello.token == own_.token && !connections_[channel][rank];
  }

  void drop(Caller& caller) {
    log_warning(str("a connection from ", peer_name(caller.socket.get()), " to the data port ", own_.name,
                    " is of no worker of this job and was dropped"));
    caller.socket.close();
  }

  void keep(Descriptor socket, int rank, int channel) {
    prepare_connection(socket.get());
    connections_[channel][rank] = std::move(socket);
  }

  Failure missing(const std::vector<int>& ranks, const std::string& what) const {
    return Failure(
        Code::DeadlineExceeded, errors::kPeerMissing,
        {.what = what,
         .where = str("while the data engines connected, on worker ", options_.rank),
         .help = "look at that worker's log, and check that a firewall lets the workers reach each other's data ports"},
        ranks.empty() ? -1 : ranks.front());
  }

  [[noreturn]] void throw_missing() const {
    std::vector<int> ranks;
    std::string text;
    for (int rank = options_.rank + 1; rank < options_.workers; ++rank) {
      if (std::ranges::all_of(connections_, [&](const auto& channel) { return bool(channel[rank]); })) continue;
      text += str(ranks.empty() ? "" : ", ", rank);
      ranks.push_back(rank);
    }
    throw missing(ranks,
                  str("worker ", text, " did not connect to worker ", options_.rank, "'s data port ", own_.name));
  }

  Failure differs(int rank) const {
    return Failure(
        Code::InvalidArgument, errors::kBadOption,
        {.what = str("the data engines of workers ", options_.rank, " and ", rank, " have different options"),
         .help = "give all workers the same number of replicas and channels and the same chunk sizes"},
        rank);
  }

  const MeshOptions& options_;
  const MeshStore& store_;
  Deadline deadline_;
  Card own_;
  std::map<int, Card> cards_;
  std::vector<std::vector<Descriptor>> connections_;
};

}  // namespace

std::vector<std::vector<Descriptor>> connect_mesh(const MeshOptions& options, const MeshStore& store,
                                                  Deadline deadline) {
  return Mesh(options, store, deadline).connect();
}

}  // namespace lockstep::engine
